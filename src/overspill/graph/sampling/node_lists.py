"""The nodes of a batch, type by type: in order of discovery, and found again by their ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.graph.sampling.buffers import Buffer
from overspill.kernels.relabel import (
    enter_seeds,
    first_places,
    move_entries,
    relabel,
    relabel_in_trees,
)

_Ids = npt.NDArray[np.int64]
_FEWEST_SLOTS = 1 << 10


class NodeList:
    """The nodes of one type; local ids are their places.

    Args:
        name: The node type.
        num_nodes: Nodes of that type in the graph.
        in_trees: Whether a node is one of its tree's, and another in each other tree.
    """

    def __init__(self, name: str, num_nodes: int, *, in_trees: bool) -> None:
        self.name, self.num_nodes, self.in_trees = name, num_nodes, in_trees
        self.held = 0
        self.bounds: list[int] = []  # how many there were before the first hop, and after each
        self._ids, self._trees = Buffer(np.int64), Buffer(np.int32)
        # Trees times nodes are too many for a table with a slot for each.
        self.table = NodeTable(2**62 if in_trees else num_nodes)

    def start(self, seeds: _Ids, *, first_tree: int) -> None:
        """Forget the last batch and enter the seeds, which are within the graph."""
        self.held = seeds.size
        self._ids.array(seeds.size)[:] = seeds
        self.bounds = [seeds.size]
        keys = seeds
        if self.in_trees:
            trees = np.arange(first_tree, first_tree + seeds.size)
            self._trees.array(seeds.size)[:] = trees
            keys = trees * self.num_nodes + seeds
        self.table.reset(keys)

    def end_hop(self) -> None:
        """What was found since the hop before is this hop's."""
        self.bounds.append(self.held)

    @property
    def frontier(self) -> tuple[int, int]:
        """Local ids of the nodes that the hop before found: first and end."""
        return (self.bounds[-2] if len(self.bounds) > 1 else 0), self.bounds[-1]

    def ids(self, first: int = 0, end: int | None = None) -> _Ids:
        """int64: global ids, by local id."""
        return self._ids.array(self.held)[first:end]

    def trees(self, first: int = 0, end: int | None = None) -> npt.NDArray[np.int32]:
        """int32: trees, by local id (InputError where there are none)."""
        if not self.in_trees:
            raise InputError(
                "the neighbourhoods of a batch share their nodes: there are no trees",
                remedy="make the sampler with SamplingSpec(..., disjoint=True)",
            )
        return self._trees.array(self.held)[first:end]

    def relabel(self, values: npt.NDArray[Any], local_ids: _Ids) -> int:
        """Translate global ids to local ones, entering those not met before.

        Returns:
            -1; or the position of a value that is no node of the graph.
        """
        table, shift = self.table.with_room(self.held, values.size)
        room = self._ids.array(self._capacity(values.size), keep=self.held)
        counts = (0, self.held, self.num_nodes)
        return self._enter(relabel(table, shift, values, local_ids, room, counts))

    def relabel_in_trees(
        self, values: npt.NDArray[Any], local_ids: _Ids, columns: _Ids, targets: NodeList
    ) -> int:
        """As `relabel`, each value as a node of the tree of its destination."""
        table, shift = self.table.with_room(self.held, values.size)
        size = self.held + values.size
        ids = self._ids.array(size, keep=self.held)
        trees = self._trees.array(size, keep=self.held)
        # Taken here: where targets are this very list, they may just have moved.
        edges = (values, columns, targets.trees())
        counts = (self.held, self.num_nodes)
        return self._enter(relabel_in_trees(table, shift, edges, local_ids, (ids, trees), counts))

    def is_first(self, first: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether each node stands at its first place, bool (end - first,); repeats are seeds."""
        is_first = np.ones(end - first, dtype=np.bool_)
        seeds = min(end, self.bounds[0])
        if not self.in_trees and first < seeds:
            table, shift = self.table.with_room(0, 0)
            first_places(table, shift, self.ids(first, seeds), first, is_first)
        return is_first

    def _capacity(self, more: int) -> int:
        # No more nodes than the graph has can be new, whatever the edges.
        return self.held + min(more, self.num_nodes)

    def _enter(self, found: int) -> int:
        if found < 0:
            return -1 - found
        self.held = found
        return -1


class NodeTable:
    """The hash table from global to local ids, grown to the batch.

    Args:
        num_keys: Keys are below it.
    """

    def __init__(self, num_keys: int) -> None:
        self._num_keys = num_keys
        self._dtype = np.int32 if num_keys <= 2**31 - 1 else np.int64
        self._table = self._empty(_FEWEST_SLOTS)

    def reset(self, keys: _Ids) -> None:
        """Empty it, and enter the first keys of a batch under their places."""
        self._table.fill(-1)
        if self._slots(keys.size) > len(self._table):
            self._table = self._empty(self._slots(keys.size))
        enter_seeds(self._table, self._shift, keys)

    def with_room(self, held: int, more: int) -> tuple[npt.NDArray[Any], int]:
        """The table, large enough for `more` keys beside those `held`, and its shift."""
        slots = self._slots(held + more)
        if slots > len(self._table):
            old, self._table = self._table, self._empty(slots)
            move_entries(old, self._table, self._shift)
        return self._table, self._shift

    @property
    def _shift(self) -> int:
        slots = len(self._table)
        return 64 if slots >= self._num_keys else 64 - (slots.bit_length() - 1)

    def _slots(self, nodes: int) -> int:
        # Half full at most; the whole graph fits without a collision, so never more than that.
        wanted = min(2 * nodes, max(self._num_keys, _FEWEST_SLOTS))
        return 1 << max(wanted - 1, 1).bit_length()

    def _empty(self, slots: int) -> npt.NDArray[Any]:
        return np.full((slots, 2), -1, dtype=self._dtype)
