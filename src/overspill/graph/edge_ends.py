"""The ends of a dataset's own edges, by their places."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from overspill.graph.item_reader import Opened
from overspill.storage.type_records import EdgeTypeRecord

_Ids = npt.NDArray[np.int64]


class Ends(Protocol):
    """Tells the ends of edges by their places."""

    def at(self, places: _Ids) -> _Ids:
        """Sources and targets: int64 (2, edges); see `EdgeEnds.at`."""
        ...


class EdgeEnds:
    """The ends of a dataset's own edges by their places: what a worker asks for all of them.

    All is read as `PagedArray` reads. The targets are found by bisection in the offsets, of all
    edges at once, a read a level: 30 levels of a thousand million nodes, of which the first 15 or
    so look at the same few pages. 72 bytes of memory an edge. Threads may share one.

    Args:
        record: The edge type.
        opened: Opens an array file as a random reader.
    """

    def __init__(self, record: EdgeTypeRecord, opened: Opened) -> None:
        parts = record.layouts["csc"]
        self._dtype = np.dtype(parts["indices"].dtype)
        item = self._dtype.itemsize
        self._indices = opened(parts["indices"], item, item)
        self._nodes = parts["indptr"].shape[0] - 1
        self._indptr = opened(parts["indptr"], 8, 8)

    def at(self, places: _Ids) -> _Ids:
        """Sources and targets of edges.

        Args:
            places: int64 (edges,), within the edges.

        Returns:
            int64 (2, edges).

        Raises:
            StaleFileError: A file was cut, replaced or removed.
            MappingError: The disk refused to read.
        """
        for array in (self._indices, self._indptr):
            array.check_unchanged()
        sources = np.empty(places.size, self._dtype)
        self._indices.take(places, sources)
        return np.stack([sources.astype(np.int64), self._targets(places)])

    def _targets(self, places: _Ids) -> _Ids:
        """The last node whose edges begin at a place or before it."""
        low, high = np.zeros(places.size, np.int64), np.full(places.size, self._nodes)
        begins = np.empty(places.size, np.int64)
        for _ in range(self._nodes.bit_length()):
            # An end that was reached stays where it is.
            middle = (low + high) // 2
            self._indptr.take(middle, begins)
            after = begins <= places
            low, high = np.where(after, middle, low), np.where(after, high, middle)
        return low
