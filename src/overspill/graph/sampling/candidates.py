"""Reads of weights and times of whole rows, a bounded number of edges at a time.

Rows are not in the order of time or weight, so a choice by either reads all of a row. Memory: at
most 50 bytes an edge of `MOST_EDGES` here, and 30 of the picks of a group, whatever the batch; the
frontier comes in groups of destinations, and a hub with more edges in pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.graph.sampling.buffers import Buffer
from overspill.graph.sampling.in_edges import Column, InEdges
from overspill.kernels.gather import first_outside
from overspill.kernels.sample_ranked import LEAST_WEIGHT, first_bad_weight, list_candidates

_Ids = npt.NDArray[np.int64]
MOST_EDGES = 1 << 18
_NO_WEIGHTS = np.empty(0, np.float64)
_NO_TIMES = np.empty(0, np.int64)


class Candidates:
    """Buffers for the edges among which a group of destinations chooses."""

    def __init__(self) -> None:
        self._places, self._sources = Buffer(np.int64), Buffer(np.int64)
        self._raw = Buffer(np.uint8)
        self._weights, self._times = Buffer(np.float64), Buffer(np.int64)

    def places(self, extents: _Ids, *, skipped: int = -1) -> _Ids:
        """Places of all edges of some rows, but for rows of up to `skipped` edges."""
        degrees = extents[:, 1] - extents[:, 0]
        held = self._places.array(int(degrees[degrees > skipped].sum()))
        list_candidates(extents, skipped, held)
        return held

    def sources(self, edges: InEdges, places: _Ids) -> npt.NDArray[Any]:
        """Sources of edges, as they are stored; unchecked."""
        return self._read(edges.sources, places)

    def weights(self, edges: InEdges, places: _Ids) -> npt.NDArray[np.float64]:
        """Weights of edges; none where the type has none.

        Raises:
            InputError: One of them is negative, below 1e-300, infinite or no number; names edge and
                weight.
        """
        if edges.weights is None:
            return _NO_WEIGHTS
        weights = self._weights.array(places.size)
        weights[:] = self._read(edges.weights, places)
        bad = first_bad_weight(weights)
        if bad >= 0:
            raise InputError(
                f"edge {int(places[bad])} of type {edges.key} has the weight {weights[bad]}",
                path=edges.weights.array.path,
                row=int(places[bad]),
                value=str(weights[bad]),
                remedy="build the dataset with finite weights of 0 or more, positive ones at least "
                f"{LEAST_WEIGHT}: only their proportions count",
            )
        return weights

    def times(self, edges: InEdges, places: _Ids) -> _Ids:
        """Times of edges, their own or their sources'; none where the type has none.

        Raises:
            FormatError: A source is no node.
        """
        if edges.times is not None:
            return self.numbers(edges.times, places)
        if edges.source_times is None:
            return _NO_TIMES
        sources = self._sources.array(places.size)
        sources[:] = self.sources(edges, places)
        outside, first = first_outside(sources, edges.counts[0])
        if outside:
            raise edges.damaged_source(int(sources[first]))
        return self.numbers(edges.source_times, sources)

    def numbers(self, column: Column, ids: _Ids) -> _Ids:
        """Whole numbers at some places of an array, within it."""
        numbers = self._times.array(ids.size)
        numbers[:] = self._read(column, ids)
        return numbers

    def _read(self, column: Column, ids: _Ids) -> npt.NDArray[Any]:
        raw = self._raw.typed(ids.size, column.dtype)
        column.array.take(ids, raw)
        return raw
