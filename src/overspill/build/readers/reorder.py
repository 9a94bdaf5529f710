"""A Fortran-ordered array on disk as C-ordered slices, in memory that its shape does not change.

Bottleneck: the device, or the number of reads where a column gives few elements at a time.
Algorithm: as long as a slice holds so many whole rows that each column's part is worth a read, they
are read column by column and turned in memory. Otherwise square tiles are turned into a scratch
file, a band of rows at a time, whose rows are then read in order; with more than two axes, each of
them is again such an array. Limits: the scratch file takes a band, for each axis but the last two
another; the array is then read once and written and read once more for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.passes.spool import ScratchFile
from overspill.linux.blocks import finish_writeback, reserve_blocks, write_all

Elements = npt.NDArray[Any]
# Fills an array with elements from a position on, in the order in which they lie.
Read = Callable[[int, Elements], None]
_BUFFERS = 5
# Below it, the calls take longer than the bytes.
_LEAST_READ_BYTES = 512
_DIRTY_BYTES = 16 << 20


def as_they_lie(
    read: Read, first: int, count: int, buffers: Iterator[Elements]
) -> Iterator[Elements]:
    """Yield elements in the order in which they lie, each slice in the next of the buffers."""
    end = first + count
    while first < end:
        out = next(buffers)[: end - first]
        read(first, out)
        yield out
        first += len(out)


class Reorder:
    """Gives C-ordered slices of Fortran-ordered arrays; a slice is valid until the third after it.

    Args:
        dtype: Of the elements.
        nbytes: Memory for all buffers.
        make_scratch: Makes a new, empty scratch file.
    """

    def __init__(
        self, dtype: np.dtype[Any], nbytes: int, make_scratch: Callable[[], ScratchFile]
    ) -> None:
        self._dtype, self._make_scratch = dtype, make_scratch
        self._most = max(1, nbytes // _BUFFERS // dtype.itemsize)
        self._tile, self._turned, *slices = (np.empty(self._most, dtype) for _ in range(_BUFFERS))
        self._slices = itertools.cycle(slices)

    def slices(self, read: Read, first: int, shape: tuple[int, ...]) -> Iterator[Elements]:
        """Yield the elements of an array of `shape` that starts at `first`, flat, in C order.

        No axis of `shape` is empty.
        """
        rows, width = shape[0], math.prod(shape[1:])
        most_rows = self._most // width
        if width == 1:
            yield from as_they_lie(read, first, rows, self._slices)
        elif most_rows >= rows or most_rows * self._dtype.itemsize >= _LEAST_READ_BYTES:
            yield from self._whole_rows(read, first, shape, most_rows)
        else:
            with closing(_Bands(self._make_scratch(), self._dtype.itemsize)) as bands:
                yield from self._through_scratch(read, first, shape, bands)

    def _whole_rows(
        self, read: Read, first: int, shape: tuple[int, ...], most_rows: int
    ) -> Iterator[Elements]:
        width = math.prod(shape[1:])
        for start in range(0, shape[0], most_rows):
            rows = min(most_rows, shape[0] - start)
            tile = self._tile[: rows * width].reshape(width, rows)
            _read_tile(read, first + start, shape[0], tile)
            out = next(self._slices)[: rows * width]
            out.reshape(rows, *shape[1:])[:] = tile.reshape(*shape[:0:-1], rows).T
            yield out

    def _through_scratch(
        self, read: Read, first: int, shape: tuple[int, ...], bands: _Bands
    ) -> Iterator[Elements]:
        width = math.prod(shape[1:])
        most_rows = min(shape[0], math.isqrt(self._most))
        step = self._most // most_rows
        bands.reserve(most_rows * width)
        for start in range(0, shape[0], most_rows):
            rows = min(most_rows, shape[0] - start)
            for column in range(0, width, step):
                columns = min(step, width - column)
                tile = self._tile[: columns * rows].reshape(columns, rows)
                _read_tile(read, first + column * shape[0] + start, shape[0], tile)
                turned = self._turned[: columns * rows].reshape(rows, columns)
                turned[:] = tile.T
                bands.write(turned, column, width)
            if math.prod(shape[2:]) == 1:
                yield from as_they_lie(bands.read, 0, rows * width, self._slices)
            else:
                for row in range(rows):
                    yield from self.slices(bands.read, row * width, shape[1:])


class _Bands:
    """A scratch file for one band of rows after the other; few of its pages are dirty at a time."""

    def __init__(self, file: ScratchFile, itemsize: int) -> None:
        self._file, self._itemsize = file, itemsize
        self._nbytes = self._dirty = 0

    def reserve(self, elements: int) -> None:
        self._nbytes = elements * self._itemsize
        reserve_blocks(self._file.fd, self._nbytes, path=str(self._file.path))

    def write(self, part: Elements, column: int, width: int) -> None:
        """Put a part of each row at its `column`."""
        for row, elements in enumerate(part):
            offset = (row * width + column) * self._itemsize
            data = elements.view(np.uint8).data
            write_all(self._file.fd, data, offset, path=str(self._file.path))
        self._dirty += part.nbytes
        if self._dirty >= _DIRTY_BYTES:
            finish_writeback(self._file.fd, 0, self._nbytes)
            self._dirty = 0

    def read(self, first: int, out: Elements) -> None:
        self._file.read(out.view(np.uint8), first * self._itemsize, drop=False)

    def close(self) -> None:
        self._file.remove()


def _read_tile(read: Read, first: int, stride: int, tile: Elements) -> None:
    """Fill each row of a tile from places `stride` elements apart."""
    if tile.shape[1] == stride:
        read(first, tile.reshape(-1))
        return
    for number, elements in enumerate(tile):
        read(first + number * stride, elements)
