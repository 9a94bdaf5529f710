"""Give a file's page cache back to the kernel: write back, unmap, drop, in this order.

Dirty pages cannot be dropped, so the write-back comes first. Pages in any page table are skipped
silently, so this process lets go of its own before it asks for the drop. Completed is not evicted:
another process may keep pages. Bottleneck: the write-back of what is dirty.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from overspill.errors import MappingError, UnavailableError
from overspill.linux import libc
from overspill.linux.pages import PAGE_BYTES, advise, resident_bytes

_PAGES_A_READ = 1 << 17
# Not to wait for the other end of a named pipe.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
# Bits of a /proc/self/pagemap entry: in memory, in swap, of a file or shared memory.
_PRESENT, _SWAPPED, _FILE = 1 << 63, 1 << 62, 1 << 61


@dataclass(frozen=True)
class ReleaseResult:
    """What a release of page cache did; true only when every step completed.

    Attributes:
        completed: Whether every step completed.
        resident_before_bytes: What was in memory before.
        resident_after_bytes: What still is: pages that another process maps, or has just read.
        failed_step: "open", "write back", "unmap" or "drop"; the later steps were skipped.
        reason: Why it failed.
    """

    completed: bool
    resident_before_bytes: int
    resident_after_bytes: int
    failed_step: str | None = None
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.completed


def release_mapped(
    address: int, nbytes: int, path: str | Path, *, shared: bool = False
) -> ReleaseResult:
    """Release the cache of a whole file that this process maps; the mapping stays valid.

    Pages of a private mapping that were written to are this process's only copy and stay. Which
    these are is read from /proc/self/pagemap, 8 bytes a page; nothing else is allocated.
    Thread-safe; a thread that reads meanwhile brings pages back. The first write to a private page
    between that reading and the release is lost: nobody may write to the mapping meanwhile.

    Args:
        address: Start of the mapped range.
        nbytes: Its length.
        path: The file mapped there.
        shared: The mapping is known to be shared, so that no page can be a private copy.

    Returns:
        The steps' outcome; resident bytes are those of the range. Never raises for a step that
        failed.
    """
    before = _resident(address, nbytes)

    def outcome(step: str | None = None, reason: str | None = None) -> ReleaseResult:
        return ReleaseResult(step is None, before, _resident(address, nbytes), step, reason)

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return outcome("open", str(error))
    try:
        return outcome(
            *_first_failure(
                ("write back", lambda: os.fsync(fd)),
                ("unmap", lambda: _unmap_pages(address, nbytes, shared=shared)),
                ("drop", lambda: _drop(fd)),
            )
        )
    finally:
        os.close(fd)


def drop_cache(path_or_fd: str | Path | int) -> ReleaseResult:
    """Release the cache of a file that nothing maps; pages that something maps stay.

    Args:
        path_or_fd: A path or an open descriptor.

    Returns:
        The steps' outcome; resident bytes are those of the file.
    """
    if isinstance(path_or_fd, int):
        return _drop_descriptor(path_or_fd)
    try:
        fd = os.open(path_or_fd, _READ)
    except OSError as error:
        return ReleaseResult(False, 0, 0, "open", str(error))
    try:
        return _drop_descriptor(fd)
    finally:
        os.close(fd)


def cached_bytes(path_or_fd: str | Path | int) -> int:
    """Count the bytes of a file that are in the page cache, by a mapping made for the question.

    Raises:
        OSError: The file cannot be opened.
        MappingError: It cannot be mapped.
    """
    if not isinstance(path_or_fd, int):
        fd = os.open(path_or_fd, _READ)
        try:
            return cached_bytes(fd)
        finally:
            os.close(fd)
    nbytes = os.fstat(path_or_fd).st_size
    if nbytes == 0:
        return 0
    try:
        address = libc.call("mmap", None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, path_or_fd, 0)
    except OSError as error:
        raise MappingError(
            "cannot map the file to count its cached pages",
            errno=error.errno,
            needed_bytes=nbytes,
            remedy="raise vm.max_map_count, or check the file",
        ) from error
    try:
        return resident_bytes(address, nbytes)
    finally:
        libc.call("munmap", address, nbytes)


def _drop_descriptor(fd: int) -> ReleaseResult:
    before = cached_bytes(fd)
    step, reason = _first_failure(("write back", lambda: os.fsync(fd)), ("drop", lambda: _drop(fd)))
    return ReleaseResult(step is None, before, cached_bytes(fd), step, reason)


def _first_failure(
    *steps: tuple[str, Callable[[], object]],
) -> tuple[str | None, str | None]:
    for name, act in steps:
        try:
            act()
        except (OSError, UnavailableError) as error:
            return name, str(error)
    return None, None


def _drop(fd: int) -> None:
    libc.require_linux("posix_fadvise(2)")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _unmap_pages(address: int, nbytes: int, *, shared: bool) -> None:
    if shared:
        advise(address, nbytes, "dontneed")
        return
    start = address - address % PAGE_BYTES
    pages = -(-(address + nbytes - start) // PAGE_BYTES)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as entries:
        for first in range(0, pages, _PAGES_A_READ):
            count = min(_PAGES_A_READ, pages - first)
            begin = start + first * PAGE_BYTES
            raw = os.pread(entries.fileno(), count * 8, begin // PAGE_BYTES * 8)
            _unmap_unchanged(begin, np.frombuffer(raw, dtype=np.uint64))


def _unmap_unchanged(begin: int, entries: np.ndarray) -> None:
    present = entries & np.uint64(_PRESENT) != 0
    changed = (present & (entries & np.uint64(_FILE) == 0)) | (entries & np.uint64(_SWAPPED) != 0)
    # Edges of the runs of unchanged pages: one madvise a run, one in all when nothing was written.
    edges = np.flatnonzero(np.diff(changed, prepend=True, append=True))
    for first, last in edges.reshape(-1, 2).tolist():
        advise(begin + first * PAGE_BYTES, (last - first) * PAGE_BYTES, "dontneed")


def _resident(address: int, nbytes: int) -> int:
    return resident_bytes(address, nbytes) if nbytes else 0
