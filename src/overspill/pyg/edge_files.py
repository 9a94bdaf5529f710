"""What a dataset's own edges are, by their places: their ends, and their numbers in the input."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.paged import PagedArray

_Ids = npt.NDArray[np.int64]


class EdgeEnds:
    """The ends of a dataset's own edges by their places: what a worker asks for all of them.

    The sources are read as `PagedArray` reads; the targets are found by bisection in the offsets,
    about 20 pages an edge that are mostly the same. Threads may share one.

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
        """
        for array in (self._indices, self._indptr):
            array.check_unchanged()
        sources = np.empty(places.size, self._dtype)
        self._indices.take(places, sources)
        offsets = self._indptr.elements(np.int64)
        targets = np.searchsorted(offsets, places, side="right") - 1
        return np.stack([sources.astype(np.int64), targets])


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
        """
        self._ids.check_unchanged()
        found = out if self._dtype == np.int64 else np.empty(places.size, self._dtype)
        self._ids.take(places, found)
        if found is not out:
            out[:] = found


def keeps_edge_ids(dataset: Dataset, edge_type: EdgeType) -> bool:
    """Whether the build kept the edges' numbers in the input."""
    return "edge_ids" in dataset.edge_record(edge_type).layouts["csc"]
