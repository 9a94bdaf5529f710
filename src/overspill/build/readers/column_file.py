"""The bytes of one column of a file, read ahead in large pieces past the page cache.

Bottleneck: the device. Arrow asks for some hundred KiB at a time; through the page cache these are
copied from memory that was faulted in and evicted for that alone, which took a third of the time of
decoding. Here they come from a piece of 1 MiB that lies in the processor's cache.
Limits: whoever reads goes forward through the column; what lies elsewhere is read as asked for.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Sequence
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
        self._memory = aligned_bytes(PIECE_BYTES + 2 * DIRECT_ALIGNMENT_BYTES)
        self._piece = memoryview(b"")
        self._first = self._at = 0

    def close(self) -> None:
        """Give the descriptor of the reader back."""
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
            chunk = bisect_right(self._places, (self._at, self._nbytes)) - 1
            left = self._places[chunk][1] - self._at if chunk >= 0 else 0
            if left <= 0 or not self._fetch(min(PIECE_BYTES, left)):
                return os.pread(self._fd, size, self._at)
            place = 0
        return bytes(self._piece[place : place + size])

    def _fetch(self, nbytes: int) -> bool:
        try:
            start = self._reader.read(self._at, nbytes, self._memory)
        except EOFError:  # it was cut since: Arrow says so of what is missing
            return False
        self._first, self._piece = self._at, self._memory[start : start + nbytes].data
        return True
