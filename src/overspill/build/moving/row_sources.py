"""Where rows come from: .npy files and array files; in order, in pieces of bounded size.

Bottleneck: the device. Pieces are read into three buffers in turn, so that one may be made in a
thread ahead while another waits and a third is used. What was read of an array file leaves the page
cache. Limits: a piece holds one row at least.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.passes.spool import ScratchFile
from overspill.build.readers.npy import NpyFile, NpyReader
from overspill.build.readers.reorder import Reorder, as_they_lie
from overspill.build.remedies import FILE_ALONE
from overspill.build.whole_reads import fill_from, unreadable
from overspill.errors import StaleFileError
from overspill.storage.arrays import read_array_info
from overspill.storage.records import FileRecord, numpy_view_dtype

Rows = npt.NDArray[Any]
Item = TypeVar("Item")
_BUFFERS = 3


class RowSource(Protocol):
    """Rows that can be read in order, again for each call of `pieces`."""

    @property
    def count(self) -> int:
        """Number of rows."""

    @property
    def dtype(self) -> str:
        """A name of `STORED_DTYPES`."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""

    def pieces(self, most_bytes: int) -> Iterator[Rows]:
        """Yield (k, ...) rows, unsigned bits where numpy lacks the dtype.

        A piece takes at most so many bytes, or is one row. It is valid until the third after it.
        """


@dataclass(frozen=True)
class NpyRows:
    """The rows of a checked .npy file, in C order and little-endian.

    Attributes:
        file: The file; its first axis counts the rows.
        directory: Where scratch files go, which some files in Fortran order need.
        name: What these files are called; different for sources that are read at the same time.
    """

    file: NpyFile
    directory: BuildDirectory
    name: str = "reorder"

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.file.shape[0]

    @property
    def dtype(self) -> str:
        """A name of `STORED_DTYPES`."""
        return self.file.type_name

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.file.shape[1:]

    def pieces(self, most_bytes: int) -> Iterator[Rows]:
        """Yield whole rows.

        Raises:
            InputError: The file cannot be read, or is no longer the one that was checked.
        """
        width = math.prod(self.row_shape)
        most_rows = max(1, most_bytes // max(1, width * self.file.dtype.itemsize))
        if not width:
            dtype = numpy_view_dtype(self.dtype)
            for first in range(0, self.count, most_rows):
                yield np.empty((min(most_rows, self.count - first), *self.row_shape), dtype)
        elif self.file.fortran:
            with ended(self.elements(most_bytes)) as parts:
                for rows in _regrouped(parts, width * most_rows):
                    yield rows.reshape(-1, *self.row_shape)
        else:
            size = width * most_rows * self.file.dtype.itemsize
            with ended(self.elements(size)) as parts:
                for part in parts:
                    yield part.reshape(-1, *self.row_shape)

    def elements(self, slice_bytes: int) -> Iterator[Rows]:
        """Yield the elements in C order, flat, in slices however large a row is.

        Raises:
            InputError: As `pieces`.
        """
        file = self.file
        if not file.nbytes:
            return
        little = file.dtype.newbyteorder("<")
        with NpyReader(file) as reader:
            if file.fortran:
                reorder = Reorder(file.dtype, _BUFFERS * slice_bytes, self._scratch_maker())
                parts = reorder.slices(reader.elements, 0, file.shape)
            else:
                most = max(1, slice_bytes // file.dtype.itemsize)
                buffers = itertools.cycle([np.empty(most, file.dtype) for _ in range(_BUFFERS)])
                parts = as_they_lie(reader.elements, 0, math.prod(file.shape), buffers)
            with ended(parts):
                for part in parts:
                    yield part if file.dtype == little else part.byteswap(inplace=True).view(little)

    def _scratch_maker(self) -> Callable[[], ScratchFile]:
        numbers = itertools.count(1)
        scratch = f"scratch/{self.name}"
        return lambda: ScratchFile(self.directory.file(f"{scratch}-{next(numbers)}"))


@dataclass(frozen=True)
class ArrayRows:
    """The rows of an array file, read from the disk and dropped from the cache behind.

    Attributes:
        path: The file.
        record: What it holds.
    """

    path: Path
    record: FileRecord

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.record.shape[0]

    @property
    def dtype(self) -> str:
        """A name of `STORED_DTYPES`."""
        return self.record.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.record.shape[1:]

    def pieces(self, most_bytes: int) -> Iterator[Rows]:
        """Yield whole rows.

        Raises:
            StaleFileError: The file is not the one that the record describes, or cannot be read.
        """
        yield from self._slices(self.count, self.row_shape, most_bytes, _BUFFERS)

    def elements(self, slice_bytes: int, *, buffers: int = _BUFFERS) -> Iterator[Rows]:
        """Yield the elements in C order, flat, in slices however large a row is.

        Args:
            slice_bytes: Size of a slice.
            buffers: A slice is valid until so many more were asked for.

        Raises:
            StaleFileError: As `pieces`.
        """
        yield from self._slices(math.prod(self.record.shape), (), slice_bytes, buffers)

    def _slices(
        self, count: int, row_shape: tuple[int, ...], most_bytes: int, buffers: int
    ) -> Iterator[Rows]:
        found = read_array_info(self.path)
        if (found.dtype, found.shape) != (self.dtype, self.record.shape):
            raise StaleFileError(
                f"{self.path} is not the array it was", path=str(self.path), remedy=FILE_ALONE
            )
        dtype = numpy_view_dtype(self.dtype)
        row_bytes = math.prod(row_shape) * dtype.itemsize
        most_rows = max(1, most_bytes // max(1, row_bytes))
        shape = (min(most_rows, count), *row_shape)
        ring = itertools.cycle([np.empty(shape, dtype) for _ in range(buffers)])
        with self._opened() as fd:
            for first in range(0, count, most_rows):
                rows = next(ring)[: count - first]
                self._read(fd, rows, found.payload_offset + first * row_bytes)
                yield rows

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(str(self.path), error, remedy=FILE_ALONE) from error
        try:
            yield fd
        finally:
            os.close(fd)

    def _read(self, fd: int, rows: Rows, offset: int) -> None:
        view = rows.reshape(-1).view(np.uint8)
        fill_from(fd, view, offset, path=str(self.path), remedy=FILE_ALONE)
        # From the start: the kernel drops whole folios only, and one may lie across two parts.
        os.posix_fadvise(fd, 0, offset + len(view), os.POSIX_FADV_DONTNEED)


@contextmanager
def ended(items: Iterator[Item]) -> Iterator[Iterator[Item]]:
    """Close an iterator at the end of the block, if it is one that can be closed."""
    try:
        yield items
    finally:
        getattr(items, "close", lambda: None)()


def _regrouped(parts: Iterator[Rows], size: int) -> Iterator[Rows]:
    """Cut flat parts anew, into `size` elements each and a rest."""
    buffers: Iterator[Rows] = iter(())
    out, held = np.empty(0), 0
    for part in parts:
        while len(part):
            if not held:
                if not out.size:
                    buffers = itertools.cycle([np.empty(size, part.dtype) for _ in range(_BUFFERS)])
                out = next(buffers)
            taken = min(len(part), size - held)
            out[held : held + taken] = part[:taken]
            held, part = held + taken, part[taken:]
            if held == size:
                yield out
                held = 0
    if held:
        yield out[:held]
