"""Where the rows of a compressed layout end: read at some places, or as lengths in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.moving.row_sources import ArrayRows, ended
from overspill.build.remedies import DAMAGED_DATASET
from overspill.build.whole_reads import fill_from, unreadable
from overspill.errors import FormatError
from overspill.storage.arrays import read_array_info
from overspill.storage.records import FileRecord

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowEnds:
    """An array file of int64 (rows + 1,): row i is from place i to place i + 1.

    Attributes:
        path: The file.
        record: What it holds.
        total: Where the last row ends.
    """

    path: Path
    record: FileRecord
    total: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.record.shape[0] - 1

    def lengths(self, most_bytes: int, *, buffers: int = 3) -> Iterator[Ids]:
        """Yield the length of each row, in order.

        Args:
            most_bytes: Size of a piece.
            buffers: A piece is valid until so many more were asked for.

        Raises:
            FormatError: The rows are not in order, or do not end at `total`.
            StaleFileError: The file is not the one that the record describes, or cannot be read.
        """
        last, seen = 0, 0
        source = ArrayRows(self.path, self.record)
        # A piece is told by the one before it: they lie in the reader's buffers, turned in place.
        with ended(source.elements(most_bytes, buffers=buffers)) as pieces:
            for ends in pieces:
                before, last = last, int(ends[-1])
                ends[1:] -= ends[:-1].copy()
                ends[0] -= before
                if ends.min() < 0 or (seen == 0 and ends[0]):
                    raise self.damaged()
                yield ends if seen else ends[1:]
                seen += len(ends)
        if last != self.total:
            raise self.damaged()

    @contextmanager
    def opened(self) -> Iterator[EndsAt]:
        """Open the file for some ends, read one at a time."""
        info = read_array_info(self.path)
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(str(self.path), error, remedy=DAMAGED_DATASET) from error
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            yield EndsAt(self, fd, info.payload_offset)
        finally:
            os.close(fd)

    def damaged(self) -> FormatError:
        """The error of ends that cannot be."""
        return FormatError(
            f"{self.path} is damaged: its rows are not in order, or do not end at {self.total}",
            path=str(self.path),
            remedy=DAMAGED_DATASET,
        )


@dataclass(frozen=True)
class EndsAt:
    """The opened file of some ends.

    Attributes:
        ends: What it holds.
        fd: Its descriptor.
        payload_offset: Where the ends begin.
    """

    ends: RowEnds
    fd: int
    payload_offset: int

    def at(self, row: int) -> int:
        """Where a row begins, and the one before it ends.

        Raises:
            FormatError: It begins outside of what there is.
            StaleFileError: The file was cut or cannot be read.
        """
        held, path = np.empty(8, np.uint8), str(self.ends.path)
        offset = self.payload_offset + 8 * row
        fill_from(self.fd, held, offset, path=path, remedy=DAMAGED_DATASET)
        end = int(held.view("<i8")[0])
        if not 0 <= end <= self.ends.total:
            raise self.ends.damaged()
        return end
