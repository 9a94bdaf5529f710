"""Records a program's memory over time, from a thread of its own.

Why a thread and not a process of its own: an interpreter more is some 10 MiB charged to the very
limit that is looked at, one more process to start, to reap and to keep from signals, and what
loaders and phases count would have to be sent to it. The thread reads a few small files each
interval, some 0.3 ms that the interpreter's lock is given up for most of, and now and then makes
the page, some 15 ms; then it rests until all that it has taken so far is no more than 2% of the
time gone by. What it gives up: while an extension holds the interpreter's lock no sample is taken
(the longest gap is told), and what kills the process kills the recording.
"""

from __future__ import annotations

import atexit
import contextlib
import html
import logging
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from overspill.errors import DiskRefusedError
from overspill.recording.arguments import require_interval, require_title
from overspill.recording.document import as_json
from overspill.recording.ledger import Snapshot
from overspill.recording.memory_sources import BindingMemory
from overspill.recording.page import as_page
from overspill.recording.phases import Span
from overspill.recording.publish import require_writable_report
from overspill.recording.report import Report, write_report
from overspill.recording.sampler import Sampler
from overspill.recording.shared_ledger import SharedLedger
from overspill.units import format_bytes

logger = logging.getLogger("overspill")

_REST = 50  # times what the thread has taken of a processor


class Recording:
    """Memory, devices and loaders over time, with phases and marks; see `record_memory`.

    Every method may be called from any thread; from a signal handler or a finalizer `mark` alone,
    which waits for nothing and takes no sample. A forked child has a copy in which nothing happens:
    what it marks is not seen, and it publishes nothing. It does not pickle.

    Args:
        sampler: Takes the samples.
        path: Where the report goes; None publishes none.
        interval: Seconds between samples.
        title: What is recorded; None names the program.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        path: str | Path | None = None,
        interval: float = 0.1,
        title: str | None = None,
    ) -> None:
        interval, title = require_interval(interval), require_title(title)
        self._report = None if path is None else Report(path)
        self._title = _program() if title is None else title
        self._started = datetime.now().astimezone().isoformat(timespec="seconds")
        self._interval_s = interval
        self._ledger = SharedLedger(sampler, int(interval * 1e9))
        self._ended_by: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overspill-recording", daemon=True)
        self._thread.start()
        atexit.register(self._stop_or_tell)

    @property
    def path(self) -> Path | None:
        """Where the report goes, absolute; None of none."""
        return None if self._report is None else self._report.path

    def mark(self, name: object) -> None:
        """Mark this moment, in about 1 us.

        Args:
            name: What happened; cut at 200 characters. Of more than 512 marks, every second one is
                forgotten.
        """
        self._ledger.mark(name)

    @contextlib.contextmanager
    def phase(self, name: object) -> Iterator[None]:
        """Mark what runs within a ``with`` as a phase; phases may nest, overlap and repeat.

        Args:
            name: The phase; those of the same name are added up. Cut at 200 characters.
        """
        span = self.begin_phase(name)
        try:
            yield
        finally:
            self.end_phase(span)

    def begin_phase(self, name: object) -> Span | None:
        """Begin a phase that no ``with`` can hold; None once the recording has ended.

        Takes a sample, some 0.3 ms, unless the last is younger than 10 ms and an interval's tenth.
        """
        return self._ledger.begin_phase(name)

    def end_phase(self, span: Span | None) -> None:
        """End what `begin_phase` began; once more does nothing."""
        if span is not None:
            self._ledger.end_phase(span)

    def stop(self) -> None:
        """Take a last sample, end the thread and publish the report; once more does nothing.

        Raises:
            DiskRefusedError: The report cannot be written; `save` it somewhere else.
        """
        if not self._ledger.is_own():
            return
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        if not self._ledger.end():
            return
        atexit.unregister(self._stop_or_tell)
        if self._report is not None:
            self._report.publish(self._snapshot())

    def save(self, path: str | Path) -> None:
        """Write what was recorded so far.

        Args:
            path: Where to; a name that ends in ".json" gets the document, any other the page.

        Raises:
            InputError: It is no path, or something other than a file stands there.
            DiskRefusedError: It cannot be written; what stood there before still does.
        """
        write_report(require_writable_report(path), self._snapshot(), durable=True)

    def to_json(self) -> str:
        """What was recorded so far, as one JSON object, on one line.

        Keys: ``format`` ("overspill-recording"), ``version`` (1), ``title``, ``pid``, ``started``
        (ISO 8601), ``source`` (the control group's directory, or /proc/meminfo), ``interval_s``,
        ``elapsed_s``, ``running``, ``ended_by`` (an exception's name or null), ``samples``,
        ``samples_a_row``, ``longest_gap`` (``start_s`` and ``stop_s``, or null), ``peaks`` (by
        kind: ``nbytes``, ``elapsed_s``, ``phase``), ``columns`` (one list a field, all of the same
        length; counters are since the start; null where the system does not tell), ``phases``
        (totals by name), ``spans`` (``name``, ``start_s``, ``stop_s`` or null, ``lane``),
        ``marks`` (``name``, ``elapsed_s``), ``spans_left_out`` and ``marks_left_out``.
        """
        return as_json(self._snapshot())

    def to_html(self) -> str:
        """What was recorded so far, as one page that needs nothing else."""
        return as_page(self._snapshot())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended_by = None if kind is None else kind.__name__
        if kind is None:
            self.stop()
        else:  # the program's own error is the one to see
            self._stop_or_tell()

    def __repr__(self) -> str:
        snapshot = self._snapshot()
        peak = snapshot.peaks["anon_shmem_bytes"].value
        told = [
            "running" if snapshot.running else "ended",
            f"{snapshot.elapsed_ns / 1e9:.1f} s",
            f"{snapshot.samples} samples",
            f"peak anon + shmem {_told(peak)} of {_told(snapshot.limit_bytes)}",
            f"read {_told(snapshot.total('read_bytes'))}",
            f"written {_told(snapshot.total('written_bytes'))}",
        ]
        if self.path is not None:
            told.append(f"report {str(self.path)!r}")
        return f"Recording({', '.join(told)})"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, whose styles and script stay within it."""
        page = html.escape(self.to_html(), quote=True)
        return (
            f'<iframe title="Memory report" srcdoc="{page}" sandbox="allow-scripts" '
            'style="width: 100%; height: 48rem; border: 0"></iframe>'
        )

    def _run(self) -> None:
        rest_s = self._interval_s
        while not self._stopping.wait(rest_s):
            self._ledger.sample()
            self._publish_if_due()
            # Of the whole, so that a page is paid for by many short rests, not by one long gap.
            owed_s = _REST * time.thread_time() - self._ledger.elapsed_ns() / 1e9
            rest_s = max(self._interval_s, owed_s)

    def _publish_if_due(self) -> None:
        if self._report is not None:
            self._report.publish_if_due(self._ledger.elapsed_ns(), self._snapshot)

    def _snapshot(self) -> Snapshot:
        return self._ledger.snapshot(
            title=self._title, started=self._started, ended_by=self._ended_by
        )

    def _stop_or_tell(self) -> None:
        try:
            self.stop()
        except DiskRefusedError as error:
            logger.warning("%s", error)


def record_memory(
    path: str | Path | None = None, *, interval: float = 0.1, title: str | None = None
) -> Recording:
    """Record what this program's memory is spent on, from now until the end of a ``with``.

    Sampled are the control group that binds (v1 or v2, own or ancestor; else the machine, of
    /proc/meminfo): anonymous and shared memory, clean and dirty cache and what is being written,
    against the limit; this process's own resident memory; what devices read and wrote for it and
    its children; and the rows that Overspill's loaders deliver in it::

        with ov.record_memory("report.html") as recording:
            with recording.phase("build"):
                ...
            recording.mark("epoch 1")

    Without ``with``, `Recording.stop` ends it, or the interpreter's end does. An exception ends it
    like any other end, and is named. The report is published by renaming: early, at the latest
    every minute while it goes on, and at the end.

    Costs one thread, at most 2% of a processor (about 0.3 ms a sample, 15 ms a page), and about
    1 MiB, however long it goes on: a row then stands for several samples. A phase's begin and end
    take a sample each, at most one in 10 ms or in a tenth of the interval. Several may run at once,
    and a program may fork meanwhile.

    Args:
        path: Where the report goes: one HTML page that needs nothing else, or the JSON document
            where the name ends in ".json". None only keeps it in memory. Processes that run side by
            side want a path each: the last one's stays.
        interval: Seconds between samples, 0.001 to 3600.
        title: What is recorded; None names the program.

    Returns:
        The recording, which has begun; a context manager.

    Raises:
        InputError: The interval is no number of that range, the path none, the title no text.
        DiskRefusedError: No report could be written there.
        UnavailableError: /proc cannot be read.
    """
    return Recording(Sampler(BindingMemory()), path=path, interval=interval, title=title)


def _program() -> str:
    """The program's name, without arguments, which may hold what a report must not."""
    script = Path(sys.argv[0] if sys.argv else "")
    if script.name == "__main__.py":  # python -m package
        return script.parent.name
    if script.name == "ipykernel_launcher.py":
        return "notebook"
    return "python" if script.name in ("", "-c", "-") else script.name


def _told(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_bytes(nbytes)
