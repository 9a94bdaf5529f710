"""Which edge of the input each of a dataset's own edges is, by its place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overspill.graph.dataset import Dataset, EdgeType

_Ids = npt.NDArray[np.int64]


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
        self._ids = dataset.open_reader(record, item, item)

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
