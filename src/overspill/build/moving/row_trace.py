"""Positions in the order in which they came, on disk, to tell which rows had a repeated one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.moving.row_output import RowOutput
from overspill.build.passes.spool import ScratchFile
from overspill.build.pipeline import Behind

_SLICE = 1 << 16


class PositionTrace:
    """Keeps positions in a scratch file, written by a thread behind; a context manager.

    Args:
        output: What the positions are in.
    """

    def __init__(self, output: RowOutput) -> None:
        # As uint32, -1 becomes the largest number, which must then be no position.
        self._dtype = np.dtype(np.uint32 if output.count < 2**32 else np.int64)
        self._file = ScratchFile(output.scratch("positions"))
        self._behind: Behind[None] = Behind("overspill-trace")
        self._count = 0

    def __enter__(self) -> PositionTrace:
        return self

    def __exit__(self, *_: object) -> None:
        self._behind.close()
        self._file.remove()

    def note(self, positions: npt.NDArray[np.int64]) -> None:
        """Append the positions of the next rows; they may be reused after the call."""
        self._count += len(positions)
        kept = positions.astype(self._dtype)
        if len(kept):
            self._behind.submit(self._file.append, kept.view(np.uint8).data)

    def first_two(self, position: int) -> tuple[int, int]:
        """The first two rows with a position that is known to have been given twice."""
        self._behind.wait()
        self._file.seal()
        found: list[int] = []
        for first in range(0, self._count, _SLICE):
            part: npt.NDArray[Any] = np.empty(min(_SLICE, self._count - first), self._dtype)
            self._file.read(part.view(np.uint8), first * self._dtype.itemsize)
            found += (first + np.flatnonzero(part == position)).tolist()
            if len(found) > 1:
                break
        return found[0], found[1]
