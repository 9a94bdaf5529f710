"""A scratch file of rows on their way to their positions: each range of positions has its region.

Bottleneck: the device. Positions are dense and each is given once, so a range cannot hold more rows
than it is wide: its region's size is known beforehand, no table of blocks is needed however many
rows there are, and a range is read back in one sequential piece. Rows are staged in blocks
(`overspill.kernels.rows`); a thread behind writes full ones, of 256 KiB where memory allows: there,
scattered writes run as fast as sequential ones, at 64 KiB at half to two thirds of it.
Memory: the pool of blocks. Limits: 2**32 positions a range.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.pipeline import Behind
from overspill.build.spool import ScratchFile
from overspill.errors import FormatError
from overspill.kernels.rows import DROPPED, FREE, FULL, Geometry, stage_rows
from overspill.linux.blocks import finish_writeback, reserve_blocks, start_writeback, write_all

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[Any]
_PAGE = 4096
_CACHE_LINE = 64
_WINDOW_BYTES = 8 << 20
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


class ScatteredFile:
    """A scratch file of known size, written at any place behind a bounded window of dirty pages.

    Raises:
        DiskRefusedError: The disk refused; nothing is left behind.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self._file = ScratchFile(path)
        self._dirty: list[tuple[int, int]] = []
        self._behind: list[tuple[int, int]] = []
        self._dirty_bytes = self._read_before = 0
        try:
            reserve_blocks(self._file.fd, nbytes, path=str(path))
        except BaseException:
            self._file.remove()
            raise

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes; pages that no later write shares should be whole."""
        write_all(self._file.fd, data, offset, path=str(self._file.path))
        self._dirty.append((offset, len(data)))
        self._dirty_bytes += len(data)
        if self._dirty_bytes >= _WINDOW_BYTES:
            self._turn_window()

    def drain(self) -> None:
        """Wait until everything is on its way to the device, and out of the cache."""
        self._turn_window()
        self._turn_window()

    def ask(self, offset: int, nbytes: int) -> None:
        """Start reading a range ahead."""
        self._file.ask(offset, nbytes)

    def read(self, out: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill a flat array of bytes; the pages are dropped from the cache afterwards."""
        self._file.read(out, offset, drop=False)
        # The kernel drops whole folios only: with the part before, the one across both goes too.
        start = min(self._read_before, offset)
        os.posix_fadvise(self._file.fd, start, offset + len(out) - start, os.POSIX_FADV_DONTNEED)
        self._read_before = offset

    def close(self) -> None:
        """Close and remove the file; does nothing the second time."""
        self._file.remove()

    def _turn_window(self) -> None:
        for part in self._dirty:
            start_writeback(self._file.fd, *part)
        for part in self._behind:
            finish_writeback(self._file.fd, *part)
        self._behind, self._dirty, self._dirty_bytes = self._dirty, [], 0


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
        raise FormatError(f"{count} rows are more than can be put in order with this memory")
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


class RowSpool:
    """Takes rows with their positions, and gives them back range by range; a context manager.

    Args:
        path: Where the file goes.
        shape: Ranges and blocks.

    Attributes:
        overfull: A range that was given more rows than it has positions, so that some position
            was given twice; nothing is taken any more. None as long as there is none.
    """

    def __init__(self, path: Path, shape: SpoolShape) -> None:
        self.shape = shape
        blocks = shape.ranges + shape.spare_blocks
        self._bytes = np.empty((blocks, shape.staged_bytes), np.uint8)
        self._opened = np.arange(shape.ranges)
        self._fill = np.zeros(shape.ranges, np.int64)
        self._written = np.zeros(shape.ranges, np.int64)
        self._free = np.zeros(blocks, np.int64)
        self._free[: shape.spare_blocks] = np.arange(shape.ranges, blocks)
        self._full_blocks, self._full_ranges = (np.empty(blocks, np.int64) for _ in range(2))
        self._state = np.array([shape.spare_blocks, 0, 0], np.int64)
        self._surplus: Slots | None = None
        self.overfull: int | None = None
        self._file = ScatteredFile(path, shape.nbytes)
        self._writer: Behind[list[int]] = Behind("overspill-row-spool")

    def __enter__(self) -> RowSpool:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._file.close()

    @property
    def dropped(self) -> int:
        """Rows whose position was -1."""
        return int(self._state[DROPPED])

    def add(self, positions: Ids, rows: Words) -> int:
        """Append rows; both arrays may be reused after the call.

        Returns:
            How many were taken: all, or up to a position out of range, or fewer once `overfull`.
        """
        flat = self._bytes.reshape(-1)
        pool = flat.view(np.uint32), flat.view(word_dtype(self.shape.row_bytes))
        tables = (self._opened, self._fill, self._free, self._full_blocks, self._full_ranges)
        at = 0
        while at < len(positions):
            at = stage_rows(
                (positions, rows, at),
                (self.shape.shift, self.shape.count),
                pool,
                self.shape.staged_geometry,
                tables,
                self._state,
            )
            full = int(self._state[FULL])
            if full:
                self._write(self._full_blocks[:full], self._full_ranges[:full])
                self._state[FULL] = 0
            if self.overfull is not None:
                return at
            if self._state[FREE] == 0:
                self._take_back(self._writer.wait())
            elif at < len(positions) and not full:
                return at  # neither rows nor blocks ran out: the position stopped it
        return at

    def finish(self) -> None:
        """Write what is staged and free the pool; ranges can then be read."""
        partial = np.flatnonzero(self._fill)
        if self.overfull is None and len(partial):
            self._write(self._opened[partial], partial, self._fill[partial])
        self._writer.wait()
        self._writer.close()
        self._file.drain()
        self._bytes = np.empty((0, 0), np.uint8)

    def rows_in(self, index: int) -> int:
        """Rows of a range, without the surplus of an overfull one."""
        return int(self._written[index])

    def slots(self, index: int, buffers: Iterator[npt.NDArray[np.uint8]]) -> Iterator[Slots]:
        """Yield a range's rows in the order in which they came, each part in the next buffer."""
        shape, left = self.shape, self.rows_in(index)
        offset = index * shape.region_bytes
        end = offset + shape.blocks_for(left) * shape.block_bytes
        asked = offset
        while offset < end:
            buffer = next(buffers)
            most = len(buffer) // shape.block_bytes * shape.block_bytes
            if asked < (ahead := min(offset + 2 * most, end)):
                self._file.ask(asked, ahead - asked)
                asked = ahead
            data = buffer[: min(most, end - offset)]
            self._file.read(data, offset)
            rows = min(left, len(data) // shape.block_bytes * shape.capacity)
            yield Slots(data, rows, shape)
            offset, left = offset + len(data), left - rows
        if index == self.overfull and self._surplus is not None:
            yield self._surplus

    def _write(self, blocks: Ids, ranges: Ids, counts: Ids | None = None) -> None:
        writes = []
        for place, (block, index) in enumerate(zip(blocks.tolist(), ranges.tolist(), strict=True)):
            rows = self.shape.capacity if counts is None else int(counts[place])
            before = int(self._written[index])
            if before + rows > self._room(index):
                data = self._bytes[block, : self.shape.block_bytes].copy()
                self._surplus = Slots(data, rows, self.shape)
                self.overfull = index
                break
            self._written[index] += rows
            offset = index * self.shape.region_bytes
            offset += before // self.shape.capacity * self.shape.block_bytes
            writes.append((block, offset, self.shape.first_row_byte + rows * self.shape.row_bytes))
        self._take_back(self._writer.submit(self._write_blocks, writes))

    def _room(self, index: int) -> int:
        return self.shape.blocks_for(self.shape.width_of(index)) * self.shape.capacity

    def _write_blocks(self, writes: list[tuple[int, int, int]]) -> list[int]:
        for block, offset, nbytes in writes:
            self._file.write(self._bytes[block, :nbytes].data, offset)
        return [block for block, _, _ in writes]

    def _take_back(self, blocks: list[int] | None) -> None:
        if blocks:
            free = int(self._state[FREE])
            self._free[free : free + len(blocks)] = blocks
            self._state[FREE] = free + len(blocks)
