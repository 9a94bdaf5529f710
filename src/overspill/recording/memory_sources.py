"""Whose memory a recording is of: the tightest control group, the machine, or a process tree."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from overspill.errors import UnavailableError
from overspill.linux.cgroups import (
    PROC,
    MemoryUse,
    kill_count,
    memory_directories,
    read_group,
    tightest_group,
)
from overspill.linux.machine_memory import machine_memory
from overspill.linux.processes import process_tree_memory


class MemorySource(Protocol):
    """What can tell its memory and its kills; a `MemoryGroup` is one, too."""

    def read(self) -> MemoryUse:
        """Read the use now; UnavailableError where it cannot be."""
        ...

    def kill_count(self) -> int:
        """How many processes were killed for want of memory so far."""
        ...


class BindingMemory:
    """The limited control group with the least headroom, own or ancestor; else the machine.

    Which groups there are is found once: a program that is moved to another group goes on being
    told of the one that it was in. Which of them binds may change. What binds is what
    `binding_memory_group` says, but of two that are about level the one before stays.

    Args:
        proc: Where /proc is.

    Raises:
        UnavailableError: /proc cannot be read.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._machine_bytes = machine_memory(proc=proc).limit_bytes
        places = [place for places in memory_directories(proc) for place in places]
        uses = [(place, self._read_group(place)) for place in places]
        self._directories = [place for place, use in uses if use and use.limit_bytes is not None]
        self._bound: str | None = None

    def read(self) -> MemoryUse:
        """Read the group that binds now.

        Raises:
            UnavailableError: The groups are gone, or cannot be read any more.
        """
        if not self._directories:
            return machine_memory(proc=self._proc)
        uses = [use for place in self._directories if (use := self._read_group(place))]
        if not uses:
            raise UnavailableError(
                "the memory group cannot be read any more",
                path=str(self._directories[0]),
                remedy="record in a process that stays in its control group",
            )
        least = tightest_group(uses)
        if least is None:  # the limit was lifted
            return machine_memory(proc=self._proc)
        limited = [use for use in uses if use.limit_bytes is not None]
        before = next((use for use in limited if use.path == self._bound), least)
        # Two that are about level would take turns: clearly less, or the one before stays.
        if _headroom(least) + (least.limit_bytes or 0) // 64 < _headroom(before):
            before = least
        self._bound = before.path
        return before

    def kill_count(self) -> int:
        """Kills in the group that bound at the last reading; 0 of the machine."""
        return 0 if self._bound is None else kill_count(Path(self._bound)) or 0

    def _read_group(self, place: Path) -> MemoryUse | None:
        return read_group(place, machine_bytes=self._machine_bytes)


class TreeMemory:
    """A process and all below it, where no group holds them; their cache is not told apart.

    Args:
        pid: The root.
        limit_bytes: The limit that they plan with, which nothing enforces.
    """

    def __init__(self, pid: int, limit_bytes: int) -> None:
        self._pid, self._limit_bytes = pid, limit_bytes

    def read(self) -> MemoryUse:
        """Add them up; some ms, and 1 ms a GiB resident.

        Raises:
            UnavailableError: The root is gone.
        """
        tree = process_tree_memory(self._pid)
        return MemoryUse(
            limit_bytes=self._limit_bytes,
            usage_bytes=tree.rss_bytes,
            anon_bytes=tree.anon_bytes,
            shmem_bytes=tree.shmem_bytes,
            clean_file_bytes=tree.file_bytes,
            dirty_bytes=0,
            writeback_bytes=0,
            path=f"process {self._pid} and its children",
        )

    def kill_count(self) -> int:
        """0: no limit kills it."""
        return 0


def _headroom(use: MemoryUse) -> int:
    return use.headroom_bytes or 0
