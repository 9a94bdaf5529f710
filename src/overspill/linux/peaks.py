"""Sample what a memory group or a process tree holds, and keep the peaks.

A group's own peak counters include page cache, which the kernel takes back when it must; what
kills is anonymous and shared memory, and that is sampled here. Limits: a peak between two samples
is missed; the proof that a program fits is that it survives a hard limit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from overspill.errors import UnavailableError
from overspill.linux.cgroups import MemoryUse
from overspill.linux.processes import process_memory, process_tree_memory


class Readable(Protocol):
    """What can tell its memory: a `MemoryGroup`."""

    def read(self) -> MemoryUse:
        """Read the use now; UnavailableError when it is gone."""
        ...


@dataclass(frozen=True)
class Peaks:
    """The largest value of each kind that was sampled, each at its own moment.

    Attributes:
        anon_bytes: Anonymous memory.
        shmem_bytes: Shared memory.
        clean_file_bytes: Clean page cache (of a process tree: its resident file pages).
        dirty_bytes: Dirty page cache, write-back included; 0 for a process tree.
        anon_shmem_bytes: Anonymous and shared memory together, at one moment.
        samples: How many samples were taken.
    """

    anon_bytes: int = 0
    shmem_bytes: int = 0
    clean_file_bytes: int = 0
    dirty_bytes: int = 0
    anon_shmem_bytes: int = 0
    samples: int = 0

    def including(self, anon: int, shmem: int, clean: int, dirty: int) -> Peaks:
        """The peaks with one more sample."""
        return Peaks(
            max(self.anon_bytes, anon),
            max(self.shmem_bytes, shmem),
            max(self.clean_file_bytes, clean),
            max(self.dirty_bytes, dirty),
            max(self.anon_shmem_bytes, anon + shmem),
            self.samples + 1,
        )


class PeakSampler:
    """Samples from a thread of its own between ``start`` and ``stop``, or within a ``with``.

    A sample of a group or a single process costs less than 0.1 ms, one of a process tree some ms
    and more with each process of the machine. Do not fork while it runs.

    Args:
        group: The group to sample; None samples a process tree.
        pid: The root of that tree; None is this process.
        children: Whether the processes below the root are counted.
        interval_s: Seconds between samples.
    """

    def __init__(
        self,
        group: Readable | None = None,
        *,
        pid: int | None = None,
        children: bool = True,
        interval_s: float = 0.05,
    ) -> None:
        self._group = group
        self._pid = pid
        # A walk of the page tables keeps the process from mapping pages meanwhile, and took 8% of
        # the processor of a build of some seconds; the counters lag by less than a MiB.
        self._read = process_tree_memory if children else partial(process_memory, exact=False)
        self._interval_s = interval_s
        self._peaks = Peaks()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def peaks(self) -> Peaks:
        """The peaks so far; may be read while sampling goes on."""
        return self._peaks

    def sample(self) -> None:
        """Take one sample now; what has ended adds nothing."""
        try:
            if self._group is not None:
                self._include(self._group.read())
                return
            tree = self._read(self._pid)
        except UnavailableError:
            return
        self._peaks = self._peaks.including(tree.anon_bytes, tree.shmem_bytes, tree.file_bytes, 0)

    def start(self) -> None:
        """Take a first sample and start the thread."""
        self._stopping.clear()
        self.sample()
        self._thread = threading.Thread(target=self._run, name="overspill-peaks", daemon=True)
        self._thread.start()

    def stop(self) -> Peaks:
        """Stop the thread, take a last sample, and return the peaks; idempotent."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None
            self.sample()
        return self.peaks

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self.sample()

    def _include(self, use: MemoryUse) -> None:
        dirty = use.dirty_bytes + use.writeback_bytes
        self._peaks = self._peaks.including(
            use.anon_bytes, use.shmem_bytes, use.clean_file_bytes, dirty
        )
