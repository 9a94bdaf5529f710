"""How rows are cut into ranges of positions, and how a range's rows lie in blocks.

A block holds the positions of its rows, uint32 and relative to the range, then the rows, as the
widest words that their size allows. On disk, blocks are whole pages: no page is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import FormatError
from overspill.kernels.rows import Geometry

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[Any]
_PAGE = 4096
_CACHE_LINE = 64
_GOOD_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 128 << 10, 256 << 10
_WIDEST_SHIFT = 32
_CACHED_BYTES = 2 << 20
_POSITION_BYTES = 4


def word_dtype(row_bytes: int) -> np.dtype[Any]:
    """The widest word that rows of this size consist of."""
    if row_bytes and row_bytes % 8 == 0:
        return np.dtype(np.uint64)
    return np.dtype(np.uint32 if row_bytes and row_bytes % 4 == 0 else np.uint8)


def as_words(rows: npt.NDArray[Any], row_bytes: int) -> Words:
    """Rows as (n, words a row); copied only where they are strided or lie at odd addresses."""
    word = word_dtype(row_bytes)
    flat = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).view(word)
    if not flat.flags.aligned:
        flat = flat.copy()
    return flat.reshape(len(rows), row_bytes // word.itemsize)


@dataclass(frozen=True)
class SpoolShape:
    """How positions are cut into ranges, and rows into blocks.

    Attributes:
        count: Number of positions.
        shift: A range has 2**shift positions.
        row_bytes: Bytes a row.
        capacity: Rows a block.
        block_bytes: Bytes a block, whole pages.
        spare_blocks: Blocks in memory beside the one that each range has open.
    """

    count: int
    shift: int
    row_bytes: int
    capacity: int
    block_bytes: int
    spare_blocks: int

    @property
    def width(self) -> int:
        """Positions a range."""
        return 1 << self.shift

    @property
    def ranges(self) -> int:
        """Number of ranges."""
        return _ranges(self.count, self.shift)

    @property
    def region_bytes(self) -> int:
        """Bytes from one range's region to the next."""
        return -(-self.width // self.capacity) * self.block_bytes

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        last = self.width_of(self.ranges - 1)
        return (self.ranges - 1) * self.region_bytes + self.blocks_for(last) * self.block_bytes

    @property
    def first_row_byte(self) -> int:
        """Where in a block its rows start."""
        return -(-_POSITION_BYTES * self.capacity // 8) * 8

    @property
    def geometry(self) -> Geometry:
        """How blocks lie in the file, for the kernels."""
        return self._geometry(self.block_bytes)

    @property
    def staged_bytes(self) -> int:
        """Bytes from one block to the next in the pool.

        All blocks fill at about the same rate: at a distance of a power of two, what is written
        next in each would fall into the same few lines of the processor's caches.
        """
        return self.block_bytes + _PAGE + _CACHE_LINE

    @property
    def staged_geometry(self) -> Geometry:
        """How blocks lie in the pool, for the kernels."""
        return self._geometry(self.staged_bytes)

    def _geometry(self, stride: int) -> Geometry:
        word_bytes = word_dtype(self.row_bytes).itemsize
        return (
            self.capacity,
            stride // _POSITION_BYTES,
            stride // word_bytes,
            self.first_row_byte // word_bytes,
        )

    def width_of(self, index: int) -> int:
        """Positions in a range; the last one may have fewer."""
        return min(self.width, self.count - index * self.width)

    def blocks_for(self, rows: int) -> int:
        """Blocks that so many rows take."""
        return -(-rows // self.capacity)


@dataclass(frozen=True)
class SpoolLimits:
    """What a spool may take.

    Attributes:
        most_ranges: Ranges that one level tells apart.
        least_block_bytes: Smaller blocks are not worth a write.
        pool_bytes: Memory for all blocks.
        bucket_rows: Rows that are put in place at a time: no range need be narrower.
    """

    most_ranges: int
    least_block_bytes: int
    pool_bytes: int
    bucket_rows: int


def shape_spool(count: int, row_bytes: int, limits: SpoolLimits) -> SpoolShape:
    """Cut into ranges of at most a bucket if one level can, else evenly into two levels or more.

    Raises:
        FormatError: More rows than a spool can tell apart.
    """
    record = row_bytes + _POSITION_BYTES
    least = _whole_pages(max(limits.least_block_bytes, record + 8))
    # A quarter more blocks than ranges, so that the writer has something to do.
    most = max(4, min(limits.most_ranges, limits.pool_bytes * 4 // (5 * least)))
    shift = _shift(count, record, limits, most)
    wanted = _ranges(count, shift)
    if shift > _WIDEST_SHIFT:
        raise FormatError(
            f"{count} rows are more than can be put in order with this memory",
            remedy="raise memory_limit",
        )
    fitting = limits.pool_bytes * 4 // (5 * wanted) // _PAGE * _PAGE
    block_bytes = max(least, min(fitting, _LARGEST_BLOCK_BYTES))
    # A block is no larger than its range.
    capacity = min((block_bytes - 8) // record, 1 << shift)
    block_bytes = _whole_pages(-(-_POSITION_BYTES * capacity // 8) * 8 + capacity * row_bytes)
    spare = max(2, min(limits.pool_bytes // block_bytes - wanted, wanted))
    return SpoolShape(count, shift, row_bytes, capacity, block_bytes, spare)


def _shift(count: int, record: int, limits: SpoolLimits, most: int) -> int:
    bucket = max(1, limits.bucket_rows).bit_length() - 1
    needed = _ranges(count, bucket)
    if needed > most:
        # Levels of equal fan-out leave both with large blocks; never all in one range.
        shift = bucket + ((needed - 1).bit_length() + 1) // 2
        while _ranges(count, shift) > most:
            shift += 1
        return shift
    # Narrower ranges than memory asks for stay in the processor's caches while they are filled.
    cheap = min(most, limits.pool_bytes * 4 // (5 * _GOOD_BLOCK_BYTES))
    while record << bucket > _CACHED_BYTES and _ranges(count, bucket - 1) <= cheap:
        bucket -= 1
    return bucket


def _ranges(count: int, shift: int) -> int:
    return (count - 1 >> shift) + 1


def most_block_bytes(row_bytes: int, limits: SpoolLimits) -> int:
    """No block of a spool within these limits is larger."""
    least = _whole_pages(max(limits.least_block_bytes, row_bytes + _POSITION_BYTES + 8))
    return max(least, _LARGEST_BLOCK_BYTES)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


@dataclass(frozen=True)
class Slots:
    """Consecutive blocks of one range in memory: `rows` rows, all blocks full but the last."""

    data: npt.NDArray[np.uint8]
    rows: int
    shape: SpoolShape

    def views(self) -> tuple[npt.NDArray[np.uint32], Words]:
        """The bytes as positions and as words, for the kernels."""
        return self.data.view(np.uint32), self.data.view(word_dtype(self.shape.row_bytes))

    def pieces(self) -> Iterator[tuple[Ids, Words]]:
        """Yield the positions, relative to the range, and the rows of each block."""
        staged, words = self.views()
        capacity, ids, block_words, first = self.shape.geometry
        span = self.shape.row_bytes // words.itemsize
        for block in range(self.shape.blocks_for(self.rows)):
            rows = min(capacity, self.rows - block * capacity)
            word = block * block_words + first
            yield (
                staged[block * ids : block * ids + rows].astype(np.int64),
                words[word : word + rows * span].reshape(rows, span),
            )
