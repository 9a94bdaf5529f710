"""A scratch file of blocks, each belonging to a range, with its table in memory.

One file and one descriptor whatever the number of ranges. The table takes 25 bytes a block: 3 MB
at a thousand million edges. Blocks of whole pages are written and read past the page cache, in
order and by range; others, and where the file system has no direct I/O, go through it behind a
bounded window of dirty pages. The file is removed at the end.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from overspill.errors import DiskRefusedError, StaleFileError
from overspill.linux.blocks import refused, reserve_blocks, write_all
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, aligned_bytes, set_direct
from overspill.storage.write_behind import WriteBehind

Ids = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_SMALLEST_EXTENT_BYTES, _LARGEST_EXTENT_BYTES = 1 << 20, 64 << 20
_ADVICE_BYTES = 128 << 10  # longer requests are silently cut to the read-ahead window
_MOST_PIECES = 512  # of one call; the system takes 1024
READERS = 4  # reads of one bucket under way at a time


def most_reserved_bytes(nbytes: int) -> int:
    """The most that a scratch file of so many bytes has of the disk while it is written."""
    return nbytes + min(_LARGEST_EXTENT_BYTES, max(_SMALLEST_EXTENT_BYTES, nbytes))


class ScratchFile:
    """A file that is reserved ahead of its writer, kept out of the cache, and removed at the end.

    Args:
        path: Where it goes; nothing is there.
        paged: Everything is written and read in whole pages, from and to addresses at whole pages:
            past the cache where the file system can.

    Raises:
        DiskRefusedError: The disk refused; the file is removed when the block is left.
    """

    def __init__(self, path: Path, *, paged: bool = False) -> None:
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise DiskRefusedError(
                f"{path} cannot be made: {error.strerror}", path=str(path), errno=error.errno
            ) from error
        self._direct = paged and set_direct(self.fd, True)
        self._out = WriteBehind(self.fd, path=str(path))
        self._reserved = 0

    def append(self, *pieces: memoryview) -> None:
        """Write bytes at the end, reserving an extent at a time before the first write to it."""
        end = self._out.offset + sum(map(len, pieces))
        if end > self._reserved:
            # As much again as there is: a nearly full disk is not asked for much too much.
            ahead = min(_LARGEST_EXTENT_BYTES, max(_SMALLEST_EXTENT_BYTES, self._reserved))
            self._reserved = max(end, self._reserved + ahead)
            reserve_blocks(self.fd, self._reserved, path=str(self.path))
        for start in range(0, len(pieces), _MOST_PIECES):
            some = pieces[start : start + _MOST_PIECES]
            if self._direct:
                self._append_direct(some)
            else:
                for piece in some:
                    self._out.append(piece)

    def seal(self) -> int:
        """Write back what is left, give back what was reserved too much; returns the size."""
        if not self._direct:
            self._out.drain()
        try:
            os.ftruncate(self.fd, self._out.offset)
        except OSError as error:
            raise DiskRefusedError(
                f"{self.path}: {error.strerror}", path=str(self.path), errno=error.errno
            ) from error
        return self._out.offset

    def ask(self, offset: int, nbytes: int) -> None:
        """Start reading a range ahead, where it is going to be read through the cache."""
        if self._direct:
            return
        for start in range(offset, offset + nbytes, _ADVICE_BYTES):
            length = min(_ADVICE_BYTES, offset + nbytes - start)
            os.posix_fadvise(self.fd, start, length, os.POSIX_FADV_WILLNEED)

    def read(self, out: Bytes, offset: int, *, drop: bool = True) -> None:
        """Fill a flat array of bytes; pages that came through the cache are dropped from it."""
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self.fd, [out[done:].data], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL and self._direct:
                    self._go_through_cache()
                    continue
                raise StaleFileError(
                    f"{self.path} cannot be read: {error.strerror}",
                    path=str(self.path),
                    errno=error.errno,
                ) from error
            if count == 0:
                raise StaleFileError(f"{self.path} was cut while in use", path=str(self.path))
            done += count
        if drop and not self._direct:
            os.posix_fadvise(self.fd, offset, len(out), os.POSIX_FADV_DONTNEED)

    def remove(self) -> None:
        """Close and remove the file; does nothing the second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.path.unlink(missing_ok=True)

    def _append_direct(self, pieces: Sequence[memoryview]) -> None:
        total = sum(map(len, pieces))
        try:
            written = os.pwritev(self.fd, pieces, self._out.offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise refused(error, "cannot write", self.fd, str(self.path), total) from error
            self._go_through_cache()
            written = 0
        for piece in pieces if written < total else ():
            # A short write, or a file system that wants another alignment.
            kept = min(written, len(piece))
            written -= kept
            self._out.offset += kept
            write_all(self.fd, piece[kept:], self._out.offset, path=str(self.path))
            self._out.offset += len(piece) - kept
        self._out.offset += written

    def _go_through_cache(self) -> None:
        set_direct(self.fd, False)
        self._direct = False


@dataclass(frozen=True)
class Hub:
    """A target whose edges have ranges of their own, told apart by source.

    Attributes:
        target: Its id.
        first_range: The first of its ranges.
        ranges: How many there are, a power of two; 1 keeps the order of the edges.
        first_source: Where the first range begins.
        shift: Each but the last holds 2**shift sources; the last holds all that follow.
    """

    target: int
    first_range: int
    ranges: int
    first_source: int
    shift: int


class Spool:
    """Blocks of records in a scratch file, and which range each belongs to.

    Args:
        path: Where the file goes.
        columns: 2 for (source, target), 3 with an edge id.
        paged: Whether every block takes whole pages.
    """

    def __init__(self, path: Path, *, columns: int = 2, paged: bool = False) -> None:
        self.columns, self.grain = columns, DIRECT_ALIGNMENT_BYTES if paged else 1
        self.file = ScratchFile(path, paged=paged)
        self._ranges, self._offsets, self._counts = array("q"), array("q"), array("q")
        self._wide = array("b")
        self._end = 0

    def record_bytes(self, wide: bool) -> int:
        """Bytes of a record."""
        return self.columns * (8 if wide else 4)

    def note(self, ranges: Ids, counts: Ids, wide: bool) -> None:
        """Record blocks in the order in which they are going to be appended."""
        sizes = -(-counts * self.record_bytes(wide) // self.grain) * self.grain
        ends = self._end + np.cumsum(sizes)
        self._ranges.frombytes(ranges.tobytes())
        self._counts.frombytes(counts.tobytes())
        self._offsets.frombytes((ends - sizes).tobytes())
        self._wide.frombytes(bytes([wide]) * len(ranges))
        self._end = int(ends[-1])

    def widen_ranges(self, shift: int, below: int) -> None:
        """Ranges below a number become 2**shift times as wide: older blocks belong to these."""
        ranges = np.array(self._ranges)
        self._ranges = array("q", np.where(ranges < below, ranges >> shift, ranges).tobytes())

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
    """A selection of a spool's blocks, sorted by range and then by the order of their edges.

    Attributes:
        ranges: The range of each.
        counts: The edges of each.
        edges: The sum of these.
        shift: Range r holds the targets from ``r << shift`` on (of a whole spool).
        hubs: The targets that have ranges of their own instead (of a whole spool).
        by_source: Whether a hub's ranges may tell sources apart, so that its edges are no longer
            in the order in which they came.
    """

    shift = 0
    hubs: tuple[Hub, ...] = ()
    by_source = False

    def __init__(
        self, spool: Spool, ranges: Ids, offsets: Ids, counts: Ids, wide: npt.NDArray[np.bool_]
    ) -> None:
        self._spool = spool
        self.ranges, self._offsets, self.counts, self._wide = ranges, offsets, counts, wide
        self.edges = int(counts.sum())

    @property
    def has_wide(self) -> bool:
        """Whether any block holds 8-byte ids."""
        return bool(self._wide.any())

    @property
    def has_edge_ids(self) -> bool:
        """Whether records have a third column."""
        return self._spool.columns == 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that holds every id of these blocks."""
        return np.dtype(np.int64 if self.has_wide else np.int32)

    def of_ranges(self, first: int, last: int) -> Blocks:
        """The blocks of the ranges first <= range < last."""
        low, high = np.searchsorted(self.ranges, [first, last])
        return self._slice(slice(int(low), int(high)))

    def by_range(self) -> tuple[Ids, Ids, Ids]:
        """The ranges that have blocks, their edges, and the room that reading each takes."""
        found, first = np.unique(self.ranges, return_index=True)
        edges = np.add.reduceat(self.counts, first) if len(found) else found
        grain = self._spool.grain
        payload = edges * self._spool.record_bytes(self.has_wide)
        return found, edges, -(-payload // grain) * grain

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

    def start_read(
        self, memory: Bytes, submit: Callable[[Callable[[], None]], None]
    ) -> list[tuple[int, npt.NDArray[Any]]]:
        """Have all edges read, each range at the start of a page where blocks take whole pages.

        Args:
            memory: Where they go, at the start of a page; as much as `by_range` says.
            submit: Called with each part of the work; threads may do them at the same time.

        Returns:
            Each range with its records, (edges, columns) of `dtype`: views of `memory`, filled once
            the work is done.
        """
        segments, reads, at = [], _Reads(self._spool, self.dtype, memory), 0
        found, first = np.unique(self.ranges, return_index=True)
        for number, low, high in zip(found, first, [*first[1:], len(self.ranges)], strict=True):
            start = at
            for place in range(low, high):
                block = _Block(
                    int(self._offsets[place]), int(self.counts[place]), bool(self._wide[place])
                )
                at = reads.add(block, at, last=place + 1 == high)
            records = memory[start:at].view(self.dtype).reshape(-1, self._spool.columns)
            segments.append((int(number), records))
            at = -(-at // self._spool.grain) * self._spool.grain
        for part in reads.parts():
            submit(part)
        return segments

    def read(self) -> npt.NDArray[Any]:
        """All edges, (edges, columns) of `dtype`, in fresh memory, read by this thread."""
        _, _, rooms = self.by_range()
        memory = aligned_bytes(int(rooms.sum()))
        segments = self.start_read(memory, lambda act: act())
        if len(segments) == 1:
            return segments[0][1]
        none = np.empty((0, self._spool.columns), self.dtype)
        return np.concatenate([none, *(records for _, records in segments)])

    def _slice(self, part: slice) -> Blocks:
        return Blocks(
            self._spool,
            self.ranges[part],
            self._offsets[part],
            self.counts[part],
            self._wide[part],
        )


class _Block(NamedTuple):
    offset: int
    edges: int
    wide: bool


class _Reads:
    """What is to be read where; neighbours in the file and in memory are read at once."""

    def __init__(self, spool: Spool, dtype: np.dtype[Any], memory: Bytes) -> None:
        self._spool, self._dtype, self._memory = spool, dtype, memory
        self._straight: list[list[int]] = []
        self._copied: list[tuple[_Block, int]] = []

    def add(self, block: _Block, at: int, *, last: bool) -> int:
        """Note a block that goes to a place in memory, and returns where it ends.

        What lies behind the last block of a range is free for what fills its page in the file.
        """
        stored = block.edges * self._spool.record_bytes(block.wide)
        end = at + block.edges * self._spool.columns * self._dtype.itemsize
        padded = self._padded(stored)
        if end - at != stored or at % self._spool.grain or not (last or padded == stored):
            self._copied.append((block, at))
            return end
        before = self._straight[-1] if self._straight else [0, 0, -1]
        if before[0] + before[2] == block.offset and before[1] + before[2] == at:
            before[2] += padded
        else:
            self._straight.append([block.offset, at, padded])
        return end

    def parts(self) -> list[Callable[[], None]]:
        """The work, in parts with about the same number of reads."""
        self._straight.sort()
        for offset, _, nbytes in self._straight:
            self._spool.file.ask(offset, nbytes)
        found: list[Callable[[], None]] = []
        for number in range(min(READERS, len(self._straight))):
            found.append(partial(self._read_straight, self._straight[number::READERS]))
        if self._copied:
            found.append(self._read_copied)
        return found

    def _padded(self, nbytes: int) -> int:
        return -(-nbytes // self._spool.grain) * self._spool.grain

    def _read_straight(self, some: list[list[int]]) -> None:
        for offset, at, nbytes in some:
            self._spool.file.read(self._memory[at : at + nbytes], offset)

    def _read_copied(self) -> None:
        for block, at in self._copied:
            stored = np.dtype(np.int64 if block.wide else np.int32)
            nbytes = block.edges * self._spool.record_bytes(block.wide)
            memory = aligned_bytes(self._padded(nbytes))
            self._spool.file.read(memory, block.offset)
            ids = memory[:nbytes].view(stored)
            out = self._memory[at : at + len(ids) * self._dtype.itemsize]
            out.view(self._dtype)[:] = ids
