"""The report of part 2, recorded from outside: what the kernel kills takes no report with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overspill.errors import UnavailableError
from overspill.linux.cgroups import MemoryUse
from overspill.linux.confine import MemoryGroup
from overspill.recording import Recording
from overspill.recording.loader_counts import LoaderCounts
from overspill.recording.memory_sources import TreeMemory
from overspill.recording.publish import require_writable_report
from overspill.recording.sampler import Sampler


class PartRecording:
    """Records a process that tells its phases and what its loaders counted.

    Args:
        path: Where the report goes.
        title: What is recorded.
        limit_bytes: The limit that it plans with.

    Attributes:
        path: The same path, absolute.
        loaded: What its loaders counted so far; to be set as it tells.

    Raises:
        InputError: It is no path, or something other than a file stands there.
        DiskRefusedError: No report can be written there.
    """

    def __init__(self, path: Path, title: str, limit_bytes: int) -> None:
        self.path = require_writable_report(path)
        self.loaded = LoaderCounts()
        self._title, self._limit_bytes = title, limit_bytes
        self._recording: Recording | None = None
        self._phase: str | None = None
        self._span: Any = None

    @contextmanager
    def of(self, pid: int, group: MemoryGroup | None) -> Iterator[None]:
        """Record a process for as long as the ``with`` lasts, then publish the report.

        Args:
            pid: The process.
            group: The group whose memory it is; None adds up the process and its children.
        """
        memory = _GroupOrTree(group, TreeMemory(pid, self._limit_bytes))
        sampler = Sampler(memory, pid=pid, loaders=lambda: self.loaded)
        with Recording(sampler, path=self.path, title=self._title) as self._recording:
            try:
                yield
            finally:
                self._recording.end_phase(self._span)

    def enter(self, phase: str) -> None:
        """It is in this phase now; the one before ends."""
        if phase == self._phase or self._recording is None:
            return
        self._recording.end_phase(self._span)
        self._phase, self._span = phase, self._recording.begin_phase(phase)


class _GroupOrTree:
    """A group, or the process tree while the group cannot be read: a scope that still starts."""

    def __init__(self, group: MemoryGroup | None, tree: TreeMemory) -> None:
        self._group, self._tree = group, tree

    def read(self) -> MemoryUse:
        if self._group is None:
            return self._tree.read()
        try:
            return self._group.read()
        except UnavailableError:
            return self._tree.read()

    def kill_count(self) -> int:
        return 0 if self._group is None else self._group.kill_count()
