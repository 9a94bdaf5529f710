"""Rows as they come in, checked, and as they go out, in order: shared by all ways to move them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from overspill.build.moving.row_blocks import Ids, Words, as_words
from overspill.build.moving.row_output import MissingPositionError, RowOutput
from overspill.build.moving.row_sources import ended
from overspill.build.pipeline import Behind
from overspill.build.remedies import DIRECTORY_ALONE, REPORT
from overspill.errors import FormatError, InputError
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import numpy_view_dtype

Pieces = Iterator[tuple[Ids, npt.NDArray[Any]]]


class GivenPiece(NamedTuple):
    """Checked rows, the first of which is number `first` in the order of the input."""

    positions: Ids
    rows: Words
    first: int


class GivenRows:
    """The rows as they come, checked."""

    def __init__(self, pieces: Pieces, output: RowOutput) -> None:
        self._pieces, self._output = pieces, output
        self.dropped = 0

    def pieces(self) -> Iterator[GivenPiece]:
        """Yield the pieces; see `scatter.scatter_rows` for the errors."""
        output, first = self._output, 0
        dtype = numpy_view_dtype(output.dtype)
        with ended(self._pieces):
            for positions, rows in self._pieces:
                if rows.dtype != dtype or rows.shape != (len(positions), *output.shape[1:]):
                    raise FormatError(
                        f"{output.path}: rows {rows.dtype} {rows.shape} for {len(positions)} "
                        f"positions of a {output.dtype} {output.shape} array",
                        remedy=REPORT,
                    )
                positions = np.require(positions, np.int64, ["C", "A", "W"])
                self._check(positions, first)
                yield GivenPiece(positions, as_words(rows, output.row_bytes), first)
                first += len(positions)

    def _check(self, positions: Ids, first: int) -> None:
        lowest, highest = positions.min(initial=0), positions.max(initial=-1)
        if lowest < 0:
            self.dropped += int(np.count_nonzero(positions == -1))
        if lowest < -1 or highest >= self._output.count:
            wrong = int(np.flatnonzero((positions < -1) | (positions >= self._output.count))[0])
            raise InputError(
                f"row {first + wrong} has a position outside of the {self._output.count} rows",
                row=first + wrong,
                value=str(int(positions[wrong])),
                remedy=DIRECTORY_ALONE,
            )


class RowsOut:
    """The rows as they go out, in order: filled where missing, written by a thread behind."""

    def __init__(
        self,
        output: RowOutput,
        writer: ArrayWriter,
        element: npt.NDArray[Any] | None,
        tell: Callable[[int], None],
    ) -> None:
        self.dtype = numpy_view_dtype(output.dtype)
        self.element = element
        self._output, self._writer, self._tell = output, writer, tell
        self._behind: Behind[None] = Behind("overspill-rows")
        self._total = output.count * output.row_bytes
        self._told = self._written = 0
        self._first_missing = -1
        self._missing = 0

    def put(self, first: int, rows: Words, seen: npt.NDArray[np.bool_]) -> None:
        """Take the next rows; they belong to the writer until the `put` after the next."""
        count = int(np.count_nonzero(seen))
        elements = rows.reshape(-1).view(np.uint8).view(self.dtype)
        if count < len(seen):
            self.miss(first + int(seen.argmin()), len(seen) - count)
            if self.element is not None:
                elements.reshape(len(seen), -1 if elements.size else 0)[~seen] = self.element
        self.put_elements(elements)

    def put_elements(self, elements: npt.NDArray[Any]) -> None:
        """Take the next elements, likewise."""
        if self.element is None and self._missing:
            return  # only counted from here on
        self._behind.submit(self._writer.append, elements)
        self._written += elements.nbytes
        self._reach((self._total + self._written) // 2)

    def miss(self, position: int, count: int) -> None:
        """Note rows that are missing, in order."""
        if not self._missing:
            self._first_missing = position
        self._missing += count

    def taken(self, nbytes: int) -> None:
        """Say how many bytes have been taken in: half of the work."""
        self._reach(min(nbytes, self._total) // 2)

    def finish(self) -> int:
        """Wait for the writer; returns how many rows were missing."""
        self._behind.wait()
        if self.element is None and self._missing:
            raise MissingPositionError(self._first_missing, self._missing)
        self._reach(self._total)
        return self._missing

    def close(self) -> None:
        """Wait for the thread to end."""
        self._behind.close()

    def _reach(self, done: int) -> None:
        if done > self._told:
            self._tell(done - self._told)
            self._told = done
