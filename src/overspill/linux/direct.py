"""O_DIRECT: reads and writes past the page cache.

It is a hint that a file system may refuse, now or at the first use. Whoever uses it keeps an
ordinary read or write at hand.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os

import numpy as np
import numpy.typing as npt

from overspill.errors import MappingError, UnavailableError
from overspill.linux.pages import resident_pages

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Offset, length and address: a multiple of every device's logical block, and of a page.
DIRECT_ALIGNMENT_BYTES = 4096


def set_direct(fd: int, on: bool) -> bool:
    """Switch O_DIRECT of an open descriptor on or off.

    The flag belongs to the open file description: every duplicate of the descriptor, a forked
    child's too, sees it.

    Args:
        fd: An open descriptor.
        on: Whether writes shall go past the page cache.

    Returns:
        Whether the descriptor is as asked now; False where the system or the file system has no
        direct I/O, and nothing was changed.
    """
    flag = getattr(os, "O_DIRECT", 0)
    if fcntl is None or not flag:
        return not on
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
    except OSError:
        return False
    return True


def aligned_bytes(nbytes: int) -> npt.NDArray[np.uint8]:
    """Fresh memory for direct I/O: (nbytes,), from the start of a page on."""
    raw = np.empty(nbytes + DIRECT_ALIGNMENT_BYTES, np.uint8)
    skip = -raw.ctypes.data % DIRECT_ALIGNMENT_BYTES
    return raw[skip : skip + nbytes]


class DirectReader:
    """Reads parts of a file past the page cache, or from it where they lie there already.

    Through the cache a byte is fetched, copied and evicted; past it the processor does next to
    nothing, and several reads at a time keep the device busy. Threads may read at the same time.
    Close it, or use it as a context manager; the descriptor stays open.

    Args:
        fd: A descriptor open for reading.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct = -1
        # A second description of the same file: the flag would change what others do with fd.
        with contextlib.suppress(OSError):
            flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0)
            self._direct = os.open(f"/proc/self/fd/{fd}", flags) if hasattr(os, "O_DIRECT") else -1
        self._mapped: mmap.mmap | None = None
        with contextlib.suppress(OSError, ValueError):  # an empty file
            self._mapped = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> DirectReader:
        return self

    def __exit__(self, *_: object) -> None:
        direct, self._direct, self._mapped = self._direct, -1, None
        if direct >= 0:
            os.close(direct)

    def read(self, offset: int, nbytes: int, memory: npt.NDArray[np.uint8]) -> int:
        """Read a part of the file.

        Args:
            offset: Where it begins.
            nbytes: Its length.
            memory: From `aligned_bytes`, two alignments longer than that at least.

        Returns:
            Where in `memory` the part begins: ``offset`` modulo the alignment.

        Raises:
            EOFError: The file ends before.
            OSError: It cannot be read.
        """
        skip = offset % DIRECT_ALIGNMENT_BYTES
        if self._direct >= 0 and not self.is_cached(offset, nbytes):
            start, wanted = offset - skip, skip + nbytes
            padded = -(-wanted // DIRECT_ALIGNMENT_BYTES) * DIRECT_ALIGNMENT_BYTES
            done = self._read_direct(start, memory[:padded], wanted)
            if done >= wanted:
                return skip
        self._fill(self._fd, offset, memory[skip : skip + nbytes])
        return skip

    def _read_direct(self, start: int, memory: npt.NDArray[np.uint8], wanted: int) -> int:
        """Fill memory; what was read, which falls short where direct reading is not possible."""
        done = 0
        try:
            while done < wanted and done % DIRECT_ALIGNMENT_BYTES == 0:
                count = os.preadv(self._direct, [memory[done:].data], start + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        return done

    def _fill(self, fd: int, offset: int, out: npt.NDArray[np.uint8]) -> None:
        done = 0
        while done < len(out):
            count = os.preadv(fd, [out[done:].data], offset + done)
            if count == 0:
                raise EOFError
            done += count

    def is_cached(self, offset: int, nbytes: int) -> bool:
        """Whether more than half of a part's pages lie in the page cache."""
        mapped = self._mapped
        if mapped is None or offset + nbytes > len(mapped) or not nbytes:
            return False
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        try:
            held = resident_pages(address + offset, nbytes)
        except (MappingError, UnavailableError):
            return False
        return bool(2 * np.count_nonzero(held) > len(held))
