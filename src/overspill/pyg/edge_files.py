"""What a dataset's own edges are, by their places: their ends, and their numbers in the input."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.paged import PagedArray

_Ids = npt.NDArray[np.int64]


class EdgeEnds:
    """The ends of a dataset's own edges by their places: what a worker asks for all of them.

    All is read as `PagedArray` reads. The targets are found by bisection in the offsets, of all
    edges at once, a read a level: 30 levels of a thousand million nodes, of which the first 15 or
    so look at the same few pages. 72 bytes of memory an edge. Threads may share one.

    Args:
        dataset: The dataset.
        edge_type: The edge type.
    """

    def __init__(self, dataset: Dataset, edge_type: EdgeType) -> None:
        parts = dataset.edge_record(edge_type).layouts["csc"]
        self._dtype = np.dtype(parts["indices"].dtype)
        item = self._dtype.itemsize
        self._indices = PagedArray(
            dataset.path / parts["indices"].path,
            parts["indices"],
            stride_bytes=item,
            span_bytes=item,
        )
        self._nodes = parts["indptr"].shape[0] - 1
        self._indptr = PagedArray(
            dataset.path / parts["indptr"].path, parts["indptr"], stride_bytes=8, span_bytes=8
        )

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


class EdgeNumbers:
    """Which edge of the input each edge is: the dataset's edge ids, read as `PagedArray` reads.

    Threads may share one; it does not pickle.

    Args:
        dataset: The dataset.
        edge_type: An edge type whose ids the build kept.
    """

    def __init__(self, dataset: Dataset, edge_type: EdgeType) -> None:
        record = dataset.edge_record(edge_type).layouts["csc"]["edge_ids"]
        self._dtype = np.dtype(record.dtype)
        item = self._dtype.itemsize
        self._ids = PagedArray(
            dataset.path / record.path, record, stride_bytes=item, span_bytes=item
        )

    def write(self, places: _Ids, out: _Ids) -> None:
        """Write the numbers of edges into int64 (edges,).

        Raises:
            StaleFileError: The file was cut, replaced or removed.
            MappingError: The disk refused to read.
        """
        self._ids.check_unchanged()
        found = out if self._dtype == np.int64 else np.empty(places.size, self._dtype)
        self._ids.take(places, found)
        if found is not out:
            out[:] = found


def keeps_edge_ids(dataset: Dataset, edge_type: EdgeType) -> bool:
    """Whether the build kept the edges' numbers in the input."""
    return "edge_ids" in dataset.edge_record(edge_type).layouts["csc"]
