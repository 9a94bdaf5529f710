"""A sampled neighbourhood: its nodes by type, its edges by type and hop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.graph.sampling.hops import HopEdges
from overspill.graph.sampling.node_lists import NodeList
from overspill.graph.sampling.spec import EdgeType

_Key = TypeVar("_Key")
_Held = TypeVar("_Held")


@dataclass(frozen=True, eq=False)
class SampledNeighborhood:
    """The sampled neighbourhood of a batch of seeds, in PyTorch Geometric's order.

    It stands in the sampler's buffers: valid until the sampler's next batch. A node type may be
    left out where the dataset has one, an edge type where one is followed.
    """

    _lists: Mapping[str, NodeList]
    _edges: Mapping[EdgeType, tuple[HopEdges, ...]]

    @property
    def nodes_per_hop(self) -> dict[str, list[int]]:
        """Node type -> its seeds, then how many nodes each hop found; one entry more than hops."""
        return {name: np.diff([0, *held.bounds]).tolist() for name, held in self._lists.items()}

    @property
    def edges_per_hop(self) -> dict[EdgeType, list[int]]:
        """Edge type -> how many edges each hop followed; of induced edges one number, for all."""
        return {key: [hop.count for hop in hops] for key, hops in self._edges.items()}

    def num_nodes(self, type: str | None = None) -> int:
        """How many nodes of a type there are."""
        return _chosen(self._lists, type, "node type").held

    def num_edges(self, edge_type: EdgeType | None = None) -> int:
        """How many edges of a type there are."""
        return sum(hop.count for hop in _chosen(self._edges, edge_type, "edge type"))

    def write_nodes(self, out: npt.NDArray[np.int64], type: str | None = None) -> None:
        """Write the global ids of all nodes of a type into int64 (num_nodes,)."""
        out[:] = _chosen(self._lists, type, "node type").ids()

    def write_trees(self, out: npt.NDArray[np.int64], type: str | None = None) -> None:
        """Write which seed's tree each node belongs to into int64 (num_nodes,).

        Trees are counted over all seeds, type after type as they were given.

        Raises:
            InputError: The sampling is not disjoint.
        """
        out[:] = _chosen(self._lists, type, "node type").trees()

    def write_edges(self, out: npt.NDArray[np.int64], edge_type: EdgeType | None = None) -> None:
        """Write local ids of sources and destinations into int64 (2, num_edges)."""
        hops = _chosen(self._edges, edge_type, "edge type")
        _write([hop.rows for hop in hops], out[0])
        _write([hop.columns for hop in hops], out[1])

    def write_edge_places(
        self, out: npt.NDArray[np.int64], edge_type: EdgeType | None = None
    ) -> None:
        """Write the place of each edge in the order of "csc" into int64 (num_edges,).

        Raises:
            InputError: They were not asked for by `edge_places`.
        """
        _write([hop.places for hop in _chosen(self._edges, edge_type, "edge type")], out)


def _write(parts: list[npt.NDArray[Any]], out: npt.NDArray[np.int64]) -> None:
    np.concatenate(parts, out=out)


def _chosen(held: Mapping[_Key, _Held], wanted: _Key | None, what: str) -> _Held:
    if wanted is None and len(held) == 1:
        return next(iter(held.values()))
    if wanted is None or wanted not in held:
        problem = f"no {what} was named" if wanted is None else f"there is no {what} {wanted!r}"
        raise InputError(problem, remedy=f"one of: {', '.join(map(str, held))}")
    return held[wanted]
