"""Blocks of edges by range, wherever they lie: which there are, and how they are read.

The table takes 25 bytes a block. What lies in neighbouring places is read at once, and several
reads are under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from overspill.linux.direct import aligned_bytes

Ids = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
READERS = 4  # reads of one bucket under way at a time


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


class BlockFile(Protocol):
    """Where the bytes of blocks are read from."""

    def ask(self, offset: int, nbytes: int) -> None:
        """Start reading a range ahead, where that helps."""

    def read(self, out: Bytes, offset: int) -> None:
        """Fill a flat array of bytes."""


class BlockStore(Protocol):
    """What holds blocks: a spool, or files that were staged elsewhere.

    Attributes:
        columns: Numbers of a record.
        grain: Blocks take multiples of so many bytes.
    """

    columns: int
    grain: int

    @property
    def file(self) -> BlockFile:
        """Where they are read from."""

    def record_bytes(self, wide: bool) -> int:
        """Bytes of a record."""


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
        self, spool: BlockStore, ranges: Ids, offsets: Ids, counts: Ids, wide: npt.NDArray[np.bool_]
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

    def __init__(self, spool: BlockStore, dtype: np.dtype[Any], memory: Bytes) -> None:
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
