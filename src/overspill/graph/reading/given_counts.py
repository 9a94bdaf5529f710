"""How often rows were used, as the caller counted it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.graph.reading.array_keys import Owner

_PIECE = 1 << 19


class GivenUses:
    """Counts that were given for the rows of a type, checked.

    Args:
        owner: The node or edge type.
        counts: Whole numbers (rows,), tensor or array; None where none were given.
        rows: How many there must be.

    Raises:
        InputError: None were given, not one a row, negative ones, or no whole numbers.
    """

    def __init__(self, owner: Owner, counts: Any, rows: int) -> None:
        if counts is None:
            raise InputError(
                f"no counts were given for {owner!r}", remedy="give counts of each type of `keys`"
            )
        held = counts.detach().numpy() if isinstance(counts, torch.Tensor) else np.asarray(counts)
        if held.shape != (rows,) or held.dtype.kind not in "iu":
            raise InputError(
                f"the counts of {owner!r} are {held.dtype} {held.shape}",
                remedy=f"give whole numbers of shape ({rows},)",
            )
        self._owner, self._held = owner, held

    def forget(self) -> None:
        """Nothing is kept but what was given."""

    def pieces(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield int64 counts of consecutive rows (InputError: a negative one)."""
        for first in range(0, len(self._held), _PIECE):
            piece = self._held[first : first + _PIECE].astype(np.int64)
            if piece.min(initial=0) < 0:
                place = int(np.argmin(piece))
                raise InputError(
                    f"a count of {self._owner!r} is negative",
                    row=first + place,
                    value=str(int(piece[place])),
                    remedy="count from 0",
                )
            yield piece
