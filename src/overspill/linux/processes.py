"""What a process holds in memory, and what it maps, as /proc tells it."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from overspill.errors import UnavailableError
from overspill.linux.kernel_fields import read_fields
from overspill.linux.paths import require_path
from overspill.linux.process_io import descendants

PROC = Path("/proc")
_REMEDIES = {errno.ENOENT: "the process has ended, or /proc is not mounted"}


@dataclass(frozen=True)
class ProcessMemory:
    """Resident memory of a process, or of several together.

    Attributes:
        anon_bytes: Anonymous memory: heap, stacks, copies of privately mapped pages.
        file_bytes: Pages of mapped files; the page cache's own, reclaimable when clean.
        shmem_bytes: Shared memory: /dev/shm, tmpfs, shared anonymous mappings.
        rss_bytes: All of it.
        source: "smaps_rollup" (exact, walks the page tables) or "status" (the kernel's counters).
    """

    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    rss_bytes: int
    source: Literal["smaps_rollup", "status"]


def process_memory(
    pid: int | None = None, *, exact: bool = True, proc: Path = PROC
) -> ProcessMemory:
    """Read what a process has resident.

    Walking the page tables takes about 1 ms a GiB resident.

    Args:
        pid: The process; None is this one.
        exact: Walk the page tables; otherwise the kernel's counters, which lag by some pages a
            thread, are read at once whatever is resident.
        proc: Where /proc is.

    Returns:
        Its memory; a page shared with others counts whole.

    Raises:
        UnavailableError: There is no such process, or /proc does not show it.
    """
    status = _fields(_directory(pid, proc) / "status")
    shmem = status.get("RssShmem", 0)
    walked = {}
    if exact:
        with contextlib.suppress(UnavailableError):
            walked = _fields(_directory(pid, proc) / "smaps_rollup")
    if "Rss" in walked and "Anonymous" in walked:
        rss, anon = walked["Rss"], walked["Anonymous"]
        return ProcessMemory(anon, max(0, rss - anon - shmem), shmem, rss, "smaps_rollup")
    return ProcessMemory(
        anon_bytes=status.get("RssAnon", 0),
        file_bytes=status.get("RssFile", 0),
        shmem_bytes=shmem,
        rss_bytes=status.get("VmRSS", 0),
        source="status",
    )


def process_tree_memory(pid: int | None = None, *, proc: Path = PROC) -> ProcessMemory:
    """Add up a process and all its descendants, each shared page counted once.

    Proportional shares (Pss) are added, so that what a fork shares with its parent does not count
    twice. Where only counters can be read, it does.

    Args:
        pid: The root of the tree; None is this process.
        proc: Where /proc is.

    Returns:
        The sum; processes that end meanwhile count nothing.

    Raises:
        UnavailableError: The root itself cannot be read.
    """
    root = os.getpid() if pid is None else pid
    total = _shares(root, proc)
    for child in descendants(root, proc=proc):
        try:
            total = _added(total, _shares(child, proc))
        except UnavailableError:
            continue
    return total


def has_mapping(device: int, inode: int, *, proc: Path = PROC) -> bool:
    """Whether this process maps the file now; right also after the file was unlinked.

    Args:
        device: The file's device number.
        inode: Its inode number.
        proc: Where /proc is.

    Returns:
        False also where the kernel's list cannot be read. On btrfs, where the list shows another
        device than ``os.stat``, a mapping is not recognised.
    """
    wanted = (f"{os.major(device):02x}:{os.minor(device):02x}", str(inode))
    try:
        with (proc / "self" / "maps").open("rb") as lines:
            for line in lines:
                fields = line.split(maxsplit=5)
                if len(fields) > 4 and (fields[3].decode(), fields[4].decode()) == wanted:
                    return True
    except OSError:
        return False
    return False


def maps_path(path: str | Path, *, proc: Path = PROC) -> bool:
    """Whether this process maps the file at a path now, or the one that was unlinked there.

    Args:
        path: The file; it may be gone.
        proc: Where /proc is.

    Returns:
        False also where the kernel's list cannot be read, and where another file stands at the
        path now that is not mapped.

    Raises:
        InputError: The path is none, or holds a NUL byte.
    """
    place = os.path.realpath(require_path(path))
    try:
        held: os.stat_result | None = os.stat(place)  # noqa: PTH116 - realpath gave text
    except OSError:
        held = None
    if held is not None and has_mapping(held.st_dev, held.st_ino, proc=proc):
        return True
    # The list escapes a line break alone.
    name = os.fsencode(place).replace(b"\n", b"\\012")
    wanted = name if held is not None else name + b" (deleted)"
    try:
        with (proc / "self" / "maps").open("rb") as lines:
            for line in lines:
                fields = line.rstrip(b"\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5] == wanted:
                    # btrfs lists another device than stat gives, but the same inode.
                    return held is None or int(fields[4]) == held.st_ino
    except OSError:
        return False
    return False


def _shares(pid: int, proc: Path) -> ProcessMemory:
    try:
        exact = _fields(proc / str(pid) / "smaps_rollup")
    except UnavailableError:
        exact = {}
    if "Pss_Anon" not in exact:
        return process_memory(pid, proc=proc)
    return ProcessMemory(
        anon_bytes=exact["Pss_Anon"],
        file_bytes=exact["Pss_File"],
        shmem_bytes=exact["Pss_Shmem"],
        rss_bytes=exact["Pss"],
        source="smaps_rollup",
    )


def _added(one: ProcessMemory, other: ProcessMemory) -> ProcessMemory:
    return ProcessMemory(
        one.anon_bytes + other.anon_bytes,
        one.file_bytes + other.file_bytes,
        one.shmem_bytes + other.shmem_bytes,
        one.rss_bytes + other.rss_bytes,
        one.source,
    )


def _directory(pid: int | None, proc: Path) -> Path:
    return proc / ("self" if pid is None else str(pid))


def _fields(path: Path) -> dict[str, int]:
    return read_fields(path, wanted="the process cannot be looked at", remedies=_REMEDIES)
