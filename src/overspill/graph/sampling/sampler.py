"""Neighbour sampling over a mapped topology, hop by hop, edge type by edge type.

Bottleneck: random reads of indptr and indices, on disk or in the caches. Algorithm, for each hop
and edge type: read the extents of the frontier, choose edges, read their other ends (or have all
that done where the edges lie, by `Picks`), give those their local ids. Reads go through
`PagedArray`, which asks for absent pages before touching them.

Memory, in buffers that are kept from batch to batch and sized to the batch, never to the graph, a
quarter of each in reserve. An edge: 20 bytes, 10 more with places; one of the largest hop 10 more
(5 for 4-byte ids), and 8 more by weight or time; an induced edge 28, 10 more with places. A node:
86 bytes, 134 of a type with 2**31 nodes or more; in trees 143, with times 153. On top 6 MiB, and 22
MiB where whole rows are read, for weights, times or induced edges (`candidates`). Reads of absent
pages take what `PagedArray` says. 6 to 15 million edges a second and core in memory.

Semantics are PyTorch Geometric's: by node type the seeds come first, then nodes in order of
discovery; a node is expanded once, at the hop after the one that found it, by the edge types in the
order of the dataset. Every occurrence of a repeated seed keeps its place and samples for itself;
edges out of such a node start at its first occurrence, unless each is a tree of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.graph.item_reader import Opened
from overspill.graph.sampling.admission import Admission
from overspill.graph.sampling.buffers import Buffer
from overspill.graph.sampling.candidates import Candidates
from overspill.graph.sampling.hops import HopEdges
from overspill.graph.sampling.in_edges import (
    Column,
    InEdges,
    Picked,
    open_in_edges,
    open_node_times,
)
from overspill.graph.sampling.induced import induce
from overspill.graph.sampling.node_lists import NodeList
from overspill.graph.sampling.picks import Wish
from overspill.graph.sampling.ranked import Frontier, RankedPicker, Rule
from overspill.graph.sampling.sampled import SampledNeighborhood
from overspill.graph.sampling.seeds import Given, seeds_by_type, times_of_trees
from overspill.graph.sampling.spec import Described, EdgeType, SamplingSpec
from overspill.graph.sampling.spec import SampleLimit as SampleLimit
from overspill.graph.streams import stream_key
from overspill.kernels.sample import SCANNED_PICKS, count_picks, pick_edges

_Ids = npt.NDArray[np.int64]
# Values relabelled at a time: the table grows to what they find, not to what they might.
_CHUNK = 1 << 16
_NO_SEEDS = _NO_TIMES = _NO_TABLE = np.empty(0, np.int64)


class NeighborSampler:
    """Samples in-neighbours of batches of seeds.

    Holds reused buffers: one thread and one process at a time. It does not pickle; each worker
    makes its own by `ds.sampler`.

    Args:
        spec: How to sample.
        edges: The edge types to follow, in the order of the dataset.
        node_counts: Nodes of each type of the dataset.
        node_times: Times of nodes, by type; None where there are none.
        limit: Refuse neighbourhoods larger than this; None for no limit.
    """

    def __init__(
        self,
        spec: SamplingSpec,
        edges: list[InEdges],
        node_counts: Mapping[str, int],
        *,
        node_times: Mapping[str, Column] | None = None,
        limit: SampleLimit | None = None,
    ) -> None:
        self.spec = spec
        self._edges = edges
        self._node_times = node_times or {}
        self._counts = dict(node_counts)
        self._lists = {
            name: NodeList(name, count, in_trees=spec.in_trees)
            for name, count in node_counts.items()
        }
        kept = 1 if spec.induced else spec.num_hops
        self._found = {key: _hop_edges(spec, kept) for key in spec.num_neighbors}
        self._induced = {key: _hop_edges(spec, int(spec.induced)) for key in spec.num_neighbors}
        self._extents, self._limits = Buffer(np.int64), Buffer(np.int64)
        self._values = Buffer(np.uint8)
        self._scratch = Buffer(np.int64)
        self._held = Candidates()
        self._admission = Admission(limit)
        self._ranked = RankedPicker(self._held, self._admission.admit_edges)
        self._tree_times = _NO_TIMES

    def check_unchanged(self) -> None:
        """Refuse to go on over files that changed (StaleFileError)."""
        columns = [column.array for column in self._node_times.values()]
        # Arrays are shared between edge types and node types.
        held = {id(array): array for edges in self._edges for array in edges.arrays}
        for array in (held | {id(array): array for array in columns}).values():
            array.check_unchanged()

    def sample(
        self, seeds: Given, *, key: np.uint64, seed_times: Given | None = None
    ) -> SampledNeighborhood:
        """Sample the neighbourhood of a batch.

        Args:
            seeds: int64 (seeds,), or such by node type; repeats keep their places. Without a type
                they are of the only node type, or of the target of the only edge type.
            key: The batch's random stream; the same key and seeds give the same result.
            seed_times: Times in the shape of the seeds; None takes the times of the nodes.

        Returns:
            The neighbourhood, in buffers that the next call overwrites.

        Raises:
            InputError: A seed lies outside the graph; times of another kind, or for a sampler
                without; a weight that is none.
            FormatError: The topology is damaged: an entry lies outside the graph.
            NoRoomError: It grew larger than `limit`.
        """
        key = np.uint64(key)  # a plain number would be signed to the kernels
        # Here and not only where a loader is made: a list of seeds may be written to meanwhile.
        given = seeds_by_type(seeds, self._counts, self._alone)
        self._start(given, seed_times)
        for hop in range(self.spec.num_hops):
            for edges in self._edges:
                self._follow(edges, hop, key)
            for nodes in self._lists.values():
                nodes.end_hop()
        return SampledNeighborhood(
            self._lists, self._induce() if self.spec.induced else self._found
        )

    def __repr__(self) -> str:
        return f"NeighborSampler({self.spec})"

    @property
    def _alone(self) -> str | None:
        if len(self._counts) == 1:
            return next(iter(self._counts))
        return self._edges[0].key[2] if len(self._edges) == 1 else None

    def _start(self, seeds: Mapping[str, _Ids], times: Given | None) -> None:
        self._admission.edges = 0
        first_tree = 0
        for name in self._lists.keys() - seeds.keys():
            self._lists[name].start(_NO_SEEDS, first_tree=0)
        for name, ids in seeds.items():
            self._lists[name].start(ids, first_tree=first_tree)
            first_tree += ids.size
        self._require_nodes()
        if self.spec.time is not None:
            self._tree_times = times_of_trees(seeds, times, self._times_of_nodes)
        elif times is not None:
            raise InputError(
                "times of seeds were given, and the sampler knows no times",
                remedy="name the array of times: SamplingSpec(..., time='time')",
            )

    def _times_of_nodes(self, name: str, ids: _Ids) -> _Ids | None:
        column = self._node_times.get(name)
        return None if column is None else self._held.numbers(column, ids).copy()

    def _follow(self, edges: InEdges, hop: int, key: np.uint64) -> None:
        found = self._found[edges.key][0 if self.spec.induced else hop]
        fan_out = edges.fan_outs[hop]
        found.count = 0
        first, end = self._lists[edges.key[2]].frontier
        if first == end or fan_out == 0:
            return
        # Each edge type draws for itself; the first by the batch's own key.
        stream = stream_key(int(key), edges.index) if edges.index else key
        rule = Rule(
            fan_out=fan_out, replace=self.spec.replace, last=self.spec.temporal_strategy == "last"
        )
        ranked = edges.timed or (edges.weights is not None and fan_out > 0)
        if edges.picks is not None and not ranked:
            values = self._pick_there(edges, (first, end), rule, stream, found)
        else:
            frontier = self._frontier(edges, first, end, stream)
            (partial(self._ranked.pick, edges) if ranked else self._pick)(frontier, rule, found)
            values = self._values.typed(found.count, edges.sources.dtype)
            edges.sources.array.take(found.taken, values)
        self._admission.edges += found.count
        self._enter_sources(edges, values, found)

    def _frontier(self, edges: InEdges, first: int, end: int, key: np.uint64) -> Frontier:
        targets = self._lists[edges.key[2]]
        ids = targets.ids(first, end)
        extents = self._extents.array(2 * ids.size).reshape(-1, 2)
        edges.indptr.take(ids, extents)
        damaged = count_picks(extents, 0, False, edges.counts[2])
        if damaged < 0:
            raise edges.damaged_extent(int(ids[-1 - damaged]))
        limits = _NO_TIMES
        if edges.timed:
            limits = self._limits.array(ids.size)
            np.take(self._tree_times, targets.trees(first, end), out=limits, mode="clip")
        return Frontier(extents=extents, first_local=first, limits=limits, key=key)

    def _pick(self, frontier: Frontier, rule: Rule, found: HopEdges) -> None:
        extents = frontier.extents
        count = count_picks(extents, rule.fan_out, rule.replace, 2**63 - 1)
        self._admission.admit_edges(count)
        stream = (frontier.key, frontier.first_local)
        scratch = self._pick_table(rule, extents)
        pick_edges(extents, rule.fan_out, rule.replace, stream, scratch, found.room(count))
        found.count = count

    def _pick_table(self, rule: Rule, extents: _Ids) -> _Ids:
        """Scratch for subsets of many picks; none where no destination has so many edges."""
        if rule.fan_out > SCANNED_PICKS and not rule.replace:
            drawn = bool((extents[:, 1] - extents[:, 0] > rule.fan_out).any())
            if drawn:
                # Each destination clears all that it is given.
                return self._scratch.array(1 << (2 * rule.fan_out - 1).bit_length())
        return _NO_TABLE

    def _pick_there(
        self,
        edges: InEdges,
        frontier: tuple[int, int],
        rule: Rule,
        key: np.uint64,
        found: HopEdges,
    ) -> npt.NDArray[Any]:
        """Have edges chosen where they lie; their sources."""
        assert edges.picks is not None
        kept, held = self.spec.edge_places, self._values.typed(0, edges.sources.dtype)

        def room(count: int) -> tuple[_Ids, _Ids, npt.NDArray[Any]]:
            nonlocal held
            self._admission.admit_edges(count)
            places, columns = found.room(count)
            held = self._values.typed(count, edges.sources.dtype)
            return places if kept else places[:0], columns, held

        wish = Wish(
            fan_out=rule.fan_out,
            replace=rule.replace,
            key=key,
            first_local=frontier[0],
            with_places=kept,
            most=self._admission.left,
        )
        ids = self._lists[edges.key[2]].ids(*frontier)
        found.count = edges.picks.pick(ids, wish, room)
        return held

    def _enter_sources(self, edges: InEdges, values: npt.NDArray[Any], found: HopEdges) -> None:
        sources, targets = self._lists[edges.key[0]], self._lists[edges.key[2]]
        rows, columns = found.rows, found.columns
        for start in range(0, values.size, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            if self.spec.in_trees:
                bad = sources.relabel_in_trees(values[chunk], rows[chunk], columns[chunk], targets)
            else:
                bad = sources.relabel(values[chunk], rows[chunk])
            if bad >= 0:
                raise edges.damaged_source(int(values[start + bad]))
            self._require_nodes()

    def _induce(self) -> dict[EdgeType, tuple[HopEdges, ...]]:
        self._admission.edges = 0
        for edges in self._edges:
            targets = self._lists[edges.key[2]]
            (found,) = self._induced[edges.key]
            frontier = self._frontier(edges, 0, targets.held, np.uint64(0))
            # A repeated seed has its edges once, at its first place.
            frontier.extents[~targets.is_first(0, targets.held)] = 0
            lists = self._lists[edges.key[0]], targets
            induce(
                edges, frontier, lists, found, held=self._held, admit=self._admission.admit_edges
            )
            self._admission.edges += found.count
        return self._induced

    def _require_nodes(self) -> None:
        self._admission.admit_nodes(sum(nodes.held for nodes in self._lists.values()))


def open_sampler(
    dataset: Described,
    spec: SamplingSpec,
    opened: Opened,
    picked: Picked,
    limit: SampleLimit | None,
) -> NeighborSampler:
    """A sampler over the files of a dataset.

    Args:
        dataset: The dataset, which has the edge types of the specification.
        spec: How to sample.
        opened: Gives an array as a random reader, by record, stride and span.
        picked: Gives who chooses edges of a type where they lie, or None.
        limit: Refuse neighbourhoods larger than this; None for no limit.

    Raises:
        InputError: Arrays of weights or times are missing, or of another kind.
    """
    counts = {name: node.count for name, node in dataset.manifest.node_types.items()}
    edges = open_in_edges(dataset, spec, opened, picked)
    times = open_node_times(dataset, spec, opened)
    return NeighborSampler(spec, edges, counts, node_times=times, limit=limit)


def _hop_edges(spec: SamplingSpec, count: int) -> tuple[HopEdges, ...]:
    return tuple(HopEdges(with_places=spec.edge_places) for _ in range(count))
