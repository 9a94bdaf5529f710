"""A ledger that any thread may write to, a signal handler and a forked child included.

One lock is held for what changes it; a mark alone waits for nothing, and is taken in by whoever
holds the lock next. In a forked child nothing happens any more.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from dataclasses import replace

from overspill.errors import UnavailableError
from overspill.recording.fields import column
from overspill.recording.ledger import Ledger, Snapshot
from overspill.recording.phases import Span
from overspill.recording.sampler import Sampler

_YOUNG_NS = 10_000_000  # of a sample that stands for a phase's begin or end, whatever the interval
_MOST_WAITING = 512  # marks that no sample has taken in


class SharedLedger:
    """Samples, phases and marks of one process, from the first sample until `end`.

    Args:
        sampler: Takes the samples.
        interval_ns: Time between samples, as asked for.

    Raises:
        UnavailableError: The first sample cannot be taken.
    """

    def __init__(self, sampler: Sampler, interval_ns: int) -> None:
        self._sampler, self._held = sampler, Ledger(interval_ns)
        self._ended = False
        self._owner = os.getpid()
        # Not reentrant: a signal handler must find a ledger whole, or leave it alone.
        self._lock = threading.Lock()
        self._marked: deque[tuple[str, int]] = deque()  # not taken in yet
        self._held.add(sampler.take(), sampler.source, sampler.source)
        _LIVING.add(self)

    def elapsed_ns(self) -> int:
        """Time since the sampler was made."""
        return time.monotonic_ns() - self._sampler.began_ns

    def is_own(self) -> bool:
        """Whether this process began it, and is no child of that one."""
        return os.getpid() == self._owner

    def goes_on(self) -> bool:
        """Whether it takes anything in."""
        return not self._ended and self.is_own()

    def mark(self, name: object) -> None:
        """Mark this moment; without waiting, and from anywhere."""
        if not self.goes_on():
            return
        # Perhaps a signal handler, amid anything that this thread does: no lock is waited for.
        self._marked.append((str(name), self.elapsed_ns()))
        if len(self._marked) >= _MOST_WAITING and self._lock.acquire(blocking=False):
            try:
                self._take_in_marks()
            finally:
                self._lock.release()

    def begin_phase(self, name: object) -> Span | None:
        """Begin a phase; None once it has ended."""
        if not self.goes_on():
            return None
        self.sample(boundary=True)
        with self._lock:
            assert self._held.last is not None
            return self._held.phases.begin(name, self.elapsed_ns(), self._held.last)

    def end_phase(self, span: Span) -> None:
        """End a phase; once more does nothing."""
        if not self.goes_on():
            return
        self.sample(boundary=True)
        with self._lock:
            assert self._held.last is not None
            self._held.phases.end(span, self.elapsed_ns(), self._held.last)

    def sample(self, *, boundary: bool = False) -> None:
        """Take a sample; at a phase's boundary only where the last one is too old to stand for it.

        Args:
            boundary: A phase begins or ends here.
        """
        with self._lock:
            last = self._held.last
            if boundary and last is not None:
                # Phases of a few us each must not cost a sample each.
                age = self.elapsed_ns() - int(column(last, "elapsed_ns"))
                if age < min(self._held.interval_ns // 10, _YOUNG_NS):
                    return
            self._take(boundary=boundary)

    def end(self) -> bool:
        """Take a last sample; False where it had ended before."""
        with self._lock:
            if self._ended:
                return False
            self._take()
            self._ended = True
        return True

    def snapshot(self, *, title: str, started: str, ended_by: str | None) -> Snapshot:
        """All that is known so far, for a page or a document.

        Args:
            title: What was recorded.
            started: When, in ISO 8601.
            ended_by: The name of the exception that ended it.
        """
        with self._lock:
            self._take_in_marks()
            held, phases = self._held, self._held.phases
            assert held.last is not None
            now = int(column(held.last, "elapsed_ns")) if self._ended else self.elapsed_ns()
            return Snapshot(
                title=title,
                pid=self._sampler.pid,
                started=started,
                source=self._sampler.source,
                interval_ns=held.interval_ns,
                elapsed_ns=now,
                running=not self._ended,
                ended_by=ended_by,
                samples=held.samples,
                samples_a_row=held.series.samples_a_row,
                rows=held.series.rows(),
                last=held.last,
                peaks=dict(held.peaks),
                totals=phases.totals(now),
                spans=[replace(span) for span in phases.spans()],
                forgotten_spans=phases.forgotten_spans,
                # One that waited may be older than what the sample before it found.
                marks=sorted(phases.marks, key=lambda mark: mark.elapsed_ns),
                forgotten_marks=phases.forgotten_marks,
                longest_gap=held.longest_gap,
            )

    def _take(self, *, boundary: bool = False) -> None:
        """With the lock held."""
        self._take_in_marks()
        before = self._sampler.source
        try:
            row = self._sampler.take(boundary=boundary)
        except UnavailableError:  # for example, its group is gone
            return
        self._held.add(row, self._sampler.source, before)

    def _take_in_marks(self) -> None:
        """With the lock held; what is marked while it ends is too late."""
        while self._marked and not self._ended:
            self._held.phases.mark(*self._marked.popleft())


_LIVING: weakref.WeakSet[SharedLedger] = weakref.WeakSet()


def _unlock_in_child() -> None:
    """The thread that held a lock at the fork is not in the child."""
    for ledger in _LIVING:
        ledger._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)
