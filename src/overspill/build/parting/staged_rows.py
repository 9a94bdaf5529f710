"""Rows of edge arrays that were staged for a part: files of nothing but rows, read as one."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.part_spec import StagedRows
from overspill.build.remedies import STAGE_ANEW
from overspill.build.whole_reads import fill_from, unreadable
from overspill.storage.arrays import open_regular
from overspill.storage.records import numpy_view_dtype

Rows = npt.NDArray[Any]
_BUFFERS = 3


@dataclass(frozen=True)
class StagedRowSource:
    """See `moving.row_sources.RowSource`.

    Attributes:
        spec: The files.
    """

    spec: StagedRows

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(self.spec.counts)

    @property
    def dtype(self) -> str:
        """A name of `STORED_DTYPES`."""
        return self.spec.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.spec.row_shape

    def pieces(self, most_bytes: int) -> Iterator[Rows]:
        """Yield (k, ...) rows, in order; each is valid until the third after it.

        Raises:
            StaleFileError: A file is gone, was cut, or cannot be read.
        """
        dtype = numpy_view_dtype(self.dtype)
        row_bytes = math.prod(self.row_shape) * dtype.itemsize
        most_rows = max(1, most_bytes // max(1, row_bytes))
        shape = (min(most_rows, max(self.spec.counts, default=0)), *self.row_shape)
        ring = itertools.cycle([np.empty(shape, dtype) for _ in range(_BUFFERS)])
        for path, count in zip(self.spec.paths, self.spec.counts, strict=True):
            with _opened(path) as fd:
                for first in range(0, count, most_rows):
                    rows = next(ring)[: count - first]
                    _fill(fd, rows, first * row_bytes, path)
                    yield rows


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        fd = open_regular(Path(path))
    except OSError as error:
        raise unreadable(path, error, remedy=STAGE_ANEW) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _fill(fd: int, rows: Rows, offset: int, path: str) -> None:
    view = rows.reshape(-1).view(np.uint8)
    fill_from(fd, view, offset, path=path, remedy=STAGE_ANEW)
    # Read once: from the start, for the kernel drops whole folios only.
    os.posix_fadvise(fd, 0, offset + len(view), os.POSIX_FADV_DONTNEED)
