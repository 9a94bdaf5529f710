"""The actor that serves the parts of one machine.

Bottleneck: the disk, then Ray's copies of a reply into its object store and out of it. It holds no
state but open files: what it is asked may be asked again, and after a restart it opens the files as
the first request wants them, in milliseconds. Several requests are answered at a time, by threads;
it asks no other actor anything, so that none waits for another.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.cluster.layout import Ids, Layout
from overspill.cluster.local_parts import LocalParts, Picked, Size
from overspill.cluster.warm import warm_parts
from overspill.graph.dataset import EdgeType
from overspill.graph.sampling.picks import Wish
from overspill.graph.warm import warm_reading

# Requests that one server answers at a time.
CONCURRENCY = 8


class PartServer:
    """Serves parts; made an actor by `overspill.cluster.machines`.

    Args:
        layout: The dataset.
        number: Of this server's machine among those of the layout.
    """

    def __init__(self, layout: Layout, number: int) -> None:
        self._layout = layout
        self._parts = LocalParts(layout, layout.machines[number].parts)
        # Threads that compile the same kernel at the same time would wait for each other.
        warm_reading()
        warm_parts(layout)

    def layout(self) -> Layout:
        """What a process that was sent the dataset needs to know."""
        return self._layout

    def pid(self) -> int:
        """The actor's process."""
        return os.getpid()

    def gather(self, array: str, size: Size, ids: Ids) -> npt.NDArray[np.uint8]:
        """Rows, uint8 (ids, bytes an item), by their numbers; see `LocalParts.take`."""
        ids = _owned(ids)
        rows = np.empty((ids.size, size[1]), np.uint8)
        self._parts.check_unchanged(array, size)
        self._parts.take(array, size, ids, rows, threads=1)
        # A cut within a page leaves zeros in it, and no error.
        self._parts.check_unchanged(array, size)
        return rows

    def sample(self, edge_type: EdgeType, ids: Ids, local_ids: Ids, wish: Wish) -> Picked:
        """In-edges of nodes; see `LocalParts.pick`."""
        ids, local_ids = _owned(ids), _owned(local_ids)
        self._check_topology(edge_type)
        picked = self._parts.pick(edge_type, ids, local_ids, wish)
        self._check_topology(edge_type)
        return picked

    def edge_ends(self, edge_type: EdgeType, places: Ids) -> npt.NDArray[Any]:
        """Sources and targets of edges; see `LocalParts.edge_ends`."""
        return self._parts.edge_ends(edge_type, _owned(places))

    def _check_topology(self, edge_type: EdgeType) -> None:
        records = self._layout.manifest.edge_types[edge_type].layouts["csc"]
        size = np.dtype(records["indices"].dtype).itemsize
        self._parts.check_unchanged(records["indptr"].path, (8, 16))
        self._parts.check_unchanged(records["indices"].path, (size, size))


def _owned(sent: npt.NDArray[Any]) -> Ids:
    """Numbers that were sent, as int64 in memory of this process: what Ray hands over is not."""
    return np.array(sent, np.int64)
