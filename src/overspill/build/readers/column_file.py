"""The bytes of one column of a file, read ahead in large pieces past the page cache.

Bottleneck: the device. Arrow asks for some hundred KiB at a time; through the page cache these are
copied from memory that was faulted in and evicted for that alone, which took a third of the time of
decoding. Here they come from a piece of 1 MiB that lies in the processor's cache, while a thread
reads the next one. Memory: two pieces.
Limits: whoever reads goes forward through the column; what lies elsewhere is read as asked for.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, DirectReader, aligned_bytes

PIECE_BYTES = 1 << 20


class ColumnFile(io.RawIOBase):
    """A file to be read by Arrow, one thread at a time; close it, the descriptor stays open.

    Args:
        fd: Open for reading.
        nbytes: Size of the file.
        places: Where the column lies: start and end of each of its chunks, as the file says; what
            cannot be is passed over.
    """

    def __init__(self, fd: int, nbytes: int, places: Sequence[tuple[int, int]]) -> None:
        self._fd, self._nbytes = fd, nbytes
        self._places = sorted(place for place in places if 0 <= place[0] < place[1] <= nbytes)
        self._reader = DirectReader(fd)
        self._memories = [aligned_bytes(PIECE_BYTES + 2 * DIRECT_ALIGNMENT_BYTES) for _ in range(2)]
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="overspill-column")
        self._coming: _Coming | None = None
        self._piece = memoryview(b"")
        self._first = self._at = 0

    def close(self) -> None:
        """Wait for the thread to end, and give the descriptor of the reader back."""
        self._pool.shutdown()
        self._reader.__exit__()
        super().close()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._nbytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, or all that follow; fewer at the end alone."""
        left = max(0, self._nbytes - self._at)
        size = left if size < 0 else min(size, left)
        parts = []
        while size and (part := self._part(size)):
            parts.append(part)
            self._at += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer."""
        held = self.read(len(buffer))
        buffer[: len(held)] = held
        return len(held)

    def _part(self, size: int) -> bytes:
        place = self._at - self._first
        if not 0 <= place < len(self._piece):
            if not self._fetch():
                return os.pread(self._fd, size, self._at)
            place = 0
        return bytes(self._piece[place : place + size])

    def _fetch(self) -> bool:
        """Take the piece that begins here, and have the one after it read."""
        coming, self._coming = self._coming, None
        # Waited for, wanted or not: it is being read into memory that is used again.
        start = None if coming is None else _started(coming.read)
        if coming is None or start is None or coming.first != self._at:
            coming = self._begun(self._at)
            start = None if coming is None else _started(coming.read)
        if coming is None or start is None:
            return False
        self._memories.reverse()
        self._first = self._at
        self._piece = self._memories[1][start : start + coming.nbytes].data
        self._coming = self._begun(self._first + coming.nbytes, beyond=True)
        return True

    def _begun(self, at: int, *, beyond: bool = False) -> _Coming | None:
        """Begin to read the piece at a position, or beyond it; None where the column has none."""
        chunk = max(0, bisect_right(self._places, (at, self._nbytes)) - 1)
        for start, end in self._places[chunk : chunk + 2]:
            first = max(at, start)
            if first < end and (beyond or first == at):
                nbytes = min(PIECE_BYTES, end - first)
                read = self._pool.submit(self._reader.read, first, nbytes, self._memories[0])
                return _Coming(first, nbytes, read)
        return None


@dataclass(frozen=True)
class _Coming:
    first: int
    nbytes: int
    read: Future[int]


def _started(read: Future[int]) -> int | None:
    """Where in its memory a piece begins; None: the file was cut, as Arrow says of what lacks."""
    try:
        return read.result()
    except EOFError:
        return None
