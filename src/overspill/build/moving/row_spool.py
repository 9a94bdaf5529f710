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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.moving.row_blocks import Ids, Slots, SpoolShape, Words, word_dtype
from overspill.build.passes.spool import ScratchFile
from overspill.build.pipeline import Behind
from overspill.kernels.open_blocks import FREE, FULL
from overspill.kernels.rows import DROPPED, stage_rows
from overspill.linux.blocks import finish_writeback, reserve_blocks, start_writeback, write_all

_WINDOW_BYTES = 8 << 20


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
