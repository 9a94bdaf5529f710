"""The edges that one hop followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.graph.sampling.buffers import Buffer

_Ids = npt.NDArray[np.int64]


class HopEdges:
    """The edges of one type that one hop followed, in buffers that the next batch overwrites.

    Where places need not be remembered, they stand where the rows will: an edge is first known by
    its place, then by the local id of its source.

    Args:
        with_places: Whether to remember them.
    """

    def __init__(self, *, with_places: bool) -> None:
        self.count = 0
        self._with_places = with_places
        self._rows, self._columns = Buffer(np.int64), Buffer(np.int64)
        self._places = Buffer(np.int64) if with_places else self._rows

    def room(self, count: int, *, keep: int = 0) -> tuple[_Ids, _Ids]:
        """Places and columns with room for `count` edges, the first `keep` as they were."""
        return self._places.array(count, keep=keep), self._columns.array(count, keep=keep)

    def all_room(self, count: int, *, keep: int = 0) -> tuple[_Ids, _Ids, _Ids]:
        """Rows, columns and places, as `room` gives them; without places those are empty."""
        rows = self._rows.array(count, keep=keep)
        places = self._places.array(count if self._with_places else 0, keep=keep)
        return rows, self._columns.array(count, keep=keep), places

    @property
    def rows(self) -> _Ids:
        """int64 (count,): local ids of the sources, once they are known."""
        return self._rows.array(self.count)

    @property
    def columns(self) -> _Ids:
        """int64 (count,): local ids of the destinations."""
        return self._columns.array(self.count)

    @property
    def taken(self) -> _Ids:
        """int64 (count,): places of the edges, until the rows take their room."""
        return self._places.array(self.count)

    @property
    def places(self) -> npt.NDArray[Any]:
        """int64 (count,): places of the edges (InputError where they were not remembered)."""
        if not self._with_places:
            raise InputError(
                "which edges were taken was not remembered",
                remedy="make the sampler with SamplingSpec(..., edge_places=True)",
            )
        return self._places.array(self.count)
