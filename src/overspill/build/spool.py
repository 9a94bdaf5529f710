"""A scratch file of blocks, each belonging to a range, with its table in memory.

One file and one descriptor whatever the number of ranges. The table takes 25 bytes a block: 3 MB
at a thousand million edges. Written in order behind a bounded window of dirty pages, read by range
with the blocks asked for ahead, and removed at the end.
"""

from __future__ import annotations

import os
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import DiskRefusedError, StaleFileError
from overspill.linux.blocks import reserve_blocks
from overspill.storage.write_behind import WriteBehind

_SMALLEST_EXTENT_BYTES, _LARGEST_EXTENT_BYTES = 1 << 20, 64 << 20
_ADVICE_BYTES = 128 << 10  # longer requests are silently cut to the read-ahead window


class ScratchFile:
    """A file that is reserved ahead of its writer, dropped from the cache, and removed at the end.

    Raises:
        DiskRefusedError: The disk refused; the file is removed when the block is left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise DiskRefusedError(
                f"{path} cannot be made: {error.strerror}", path=str(path), errno=error.errno
            ) from error
        self._out = WriteBehind(self.fd, path=str(path))
        self._reserved = 0

    def append(self, data: memoryview) -> None:
        """Write bytes at the end, reserving an extent at a time before the first write to it."""
        end = self._out.offset + len(data)
        if end > self._reserved:
            # As much again as there is: a nearly full disk is not asked for much too much.
            ahead = min(_LARGEST_EXTENT_BYTES, max(_SMALLEST_EXTENT_BYTES, self._reserved))
            self._reserved = max(end, self._reserved + ahead)
            reserve_blocks(self.fd, self._reserved, path=str(self.path))
        self._out.append(data)

    def seal(self) -> int:
        """Write back what is left, give back what was reserved too much; returns the size."""
        self._out.drain()
        try:
            os.ftruncate(self.fd, self._out.offset)
        except OSError as error:
            raise DiskRefusedError(
                f"{self.path}: {error.strerror}", path=str(self.path), errno=error.errno
            ) from error
        return self._out.offset

    def ask(self, offset: int, nbytes: int) -> None:
        """Start reading a range ahead."""
        for start in range(offset, offset + nbytes, _ADVICE_BYTES):
            length = min(_ADVICE_BYTES, offset + nbytes - start)
            os.posix_fadvise(self.fd, start, length, os.POSIX_FADV_WILLNEED)

    def read(self, out: npt.NDArray[np.uint8], offset: int, *, drop: bool = True) -> None:
        """Fill a flat array of bytes; the pages are dropped from the cache afterwards."""
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self.fd, [out[done:].data], offset + done)
            except OSError as error:
                raise StaleFileError(
                    f"{self.path} cannot be read: {error.strerror}",
                    path=str(self.path),
                    errno=error.errno,
                ) from error
            if count == 0:
                raise StaleFileError(f"{self.path} was cut while in use", path=str(self.path))
            done += count
        if drop:
            os.posix_fadvise(self.fd, offset, len(out), os.POSIX_FADV_DONTNEED)

    def remove(self) -> None:
        """Close and remove the file; does nothing the second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.path.unlink(missing_ok=True)


class Spool:
    """Blocks of (source, target) pairs in a scratch file, and which range each belongs to."""

    def __init__(self, path: Path) -> None:
        self.file = ScratchFile(path)
        self._ranges, self._offsets, self._counts = array("q"), array("q"), array("q")
        self._wide = array("b")
        self._end = 0

    def note(
        self, ranges: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], wide: bool
    ) -> None:
        """Record blocks in the order in which they are going to be appended."""
        sizes = counts * (16 if wide else 8)
        ends = self._end + np.cumsum(sizes)
        self._ranges.frombytes(ranges.tobytes())
        self._counts.frombytes(counts.tobytes())
        self._offsets.frombytes((ends - sizes).tobytes())
        self._wide.frombytes(bytes([wide]) * len(ranges))
        self._end = int(ends[-1])

    def widen_ranges(self, shift: int) -> None:
        """Ranges become 2**shift times as wide: older blocks belong to the wider ones."""
        ranges = np.array(self._ranges) >> shift
        self._ranges = array("q", ranges.tobytes())

    def blocks(self) -> Blocks:
        """The table as arrays, sorted by range and then by place in the file."""
        ranges = np.array(self._ranges, np.int64)
        order = np.argsort(ranges, kind="stable")
        return Blocks(
            self,
            ranges[order],
            np.array(self._offsets, np.int64)[order],
            np.array(self._counts, np.int64)[order],
            np.array(self._wide, np.bool_)[order],
        )


class Blocks:
    """A selection of a spool's blocks."""

    def __init__(
        self,
        spool: Spool,
        ranges: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        wide: npt.NDArray[np.bool_],
    ) -> None:
        self._spool = spool
        self.ranges, self._offsets, self.counts, self._wide = ranges, offsets, counts, wide
        self.edges = int(counts.sum())

    def of_ranges(self, first: int, last: int) -> Blocks:
        """The blocks of the ranges first <= range < last."""
        low, high = np.searchsorted(self.ranges, [first, last])
        return self._slice(slice(int(low), int(high)))

    def slices(self, most_edges: int) -> list[Blocks]:
        """Cut into runs of blocks of at most so many edges (one block at least)."""
        cuts, held = [0], 0
        for place, count in enumerate(self.counts):
            if held + count > most_edges and held:
                cuts.append(place)
                held = 0
            held += int(count)
        cuts.append(len(self.counts))
        return [self._slice(slice(*pair)) for pair in pairwise(cuts)]

    def read(self, pairs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Read all edges into the front of `pairs` (n, 2), int32 or, for wide ids, int64.

        Returns:
            The part of `pairs` that was filled.
        """
        order = np.argsort(self._offsets)
        file = self._spool.file
        sizes = self.counts * np.where(self._wide, 16, 8)
        for place in order:
            file.ask(int(self._offsets[place]), int(sizes[place]))
        at = 0
        for place in order:
            count = int(self.counts[place])
            out = pairs[at : at + count]
            self._read_block(int(self._offsets[place]), out, wide=bool(self._wide[place]))
            at += count
        return pairs[:at]

    @property
    def has_wide(self) -> bool:
        """Whether any block holds 8-byte ids."""
        return bool(self._wide.any())

    def _read_block(self, offset: int, out: npt.NDArray[Any], *, wide: bool) -> None:
        stored = np.dtype(np.int64 if wide else np.int32)
        file = self._spool.file
        if out.dtype == stored:
            file.read(out.reshape(-1).view(np.uint8), offset)
            return
        narrow = np.empty(out.shape, stored)
        file.read(narrow.reshape(-1).view(np.uint8), offset)
        out[:] = narrow

    def _slice(self, part: slice) -> Blocks:
        return Blocks(
            self._spool,
            self.ranges[part],
            self._offsets[part],
            self.counts[part],
            self._wide[part],
        )
