"""Datasets of several types with weights and times, and a sampler in plain Python beside them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from overspill.graph.sampling.sampled import SampledNeighborhood
from overspill.storage.manifest import (
    EdgeTypeRecord,
    Manifest,
    NodeTypeRecord,
    publish_manifest,
)
from small_graphs import write_array

Key = tuple[str, str, str]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """In-edges by destination, in the order of the input within a row."""

    indptr: np.ndarray
    indices: np.ndarray
    arrays: dict[str, np.ndarray]

    def places(self, node: int) -> range:
        return range(int(self.indptr[node]), int(self.indptr[node + 1]))


@dataclass(frozen=True)
class TypedGraph:
    path: Path
    counts: dict[str, int]
    node_arrays: dict[str, dict[str, np.ndarray]]
    edges: dict[Key, Rows]


def write_typed(
    path: Path,
    nodes: Mapping[str, tuple[int, Arrays]],
    edges: Mapping[Key, tuple[Any, Any, Arrays]],
    *,
    index_dtype: type = np.int32,
) -> TypedGraph:
    """Write a dataset; edges are sources, targets, and arrays in the order of both."""
    path.mkdir(parents=True, exist_ok=True)
    counts = {name: count for name, (count, _) in nodes.items()}
    records = {
        name: NodeTypeRecord(name, count, _written(path, f"{name}.", arrays))
        for name, (count, arrays) in nodes.items()
    }
    held = {key: _rows(given, counts[key[2]], index_dtype) for key, given in edges.items()}
    edge_records = {}
    for key, rows in held.items():
        stem = "-".join(key) + "."
        csc = _written(path, stem, {"indptr": rows.indptr, "indices": rows.indices})
        arrays = {"csc": _written(path, stem + "a.", rows.arrays)}
        edge_records[key] = EdgeTypeRecord(*key, len(rows.indices), {"csc": csc}, arrays)
    publish_manifest(path, Manifest(uuid.uuid4().hex, records, edge_records))
    node_arrays = {name: dict(arrays) for name, (_, arrays) in nodes.items()}
    return TypedGraph(path, counts, node_arrays, held)


def _written(path: Path, stem: str, arrays: Arrays) -> dict[str, Any]:
    return {name: write_array(path / f"{stem}{name}", values) for name, values in arrays.items()}


def _rows(given: tuple[Any, Any, Arrays], num_targets: int, index_dtype: type) -> Rows:
    sources, targets = (np.asarray(ends, np.int64) for ends in given[:2])
    order = np.argsort(targets, kind="stable")
    indptr = np.zeros(num_targets + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=num_targets), out=indptr[1:])
    arrays = {name: values[order] for name, values in given[2].items()}
    return Rows(indptr, sources[order].astype(index_dtype), arrays)


def shop(path: Path, *, seed: int = 0, node_times: bool = False) -> TypedGraph:
    """Users, items and tags; edges with weights "w", and times "t" of edges or of nodes."""
    rng = np.random.default_rng(seed)
    counts = {"user": 60, "item": 90, "tag": 7}
    ends = {
        ("user", "buys", "item"): 400,
        ("item", "bought_by", "user"): 350,
        ("user", "knows", "user"): 200,
        ("tag", "marks", "item"): 120,
    }
    edges: dict[Key, tuple[Any, Any, Arrays]] = {}
    for key, count in ends.items():
        source, target = (rng.integers(0, counts[key[end]] - 2, count) for end in (0, 2))
        arrays = {"w": rng.integers(0, 4, count).astype(np.float32)}
        if not node_times and key[0] != "tag":
            arrays["t"] = rng.integers(-50, 50, count)
        edges[key] = source, target, arrays
    times = {
        name: {"t": rng.integers(-50, 50, count)} if node_times and name != "tag" else {}
        for name, count in counts.items()
    }
    return write_typed(path, {name: (counts[name], times[name]) for name in counts}, edges)


def single(path: Path, indegrees: list[int], **arrays: np.ndarray) -> TypedGraph:
    """One type: node i has so many in-edges, all from nodes of their own; arrays of edges."""
    targets = np.repeat(np.arange(len(indegrees)), indegrees)
    sources = len(indegrees) + np.arange(len(targets))
    nodes = {"node": (len(indegrees) + len(targets), {})}
    return write_typed(path, nodes, {("node", "to", "node"): (sources, targets, arrays)})


@dataclass
class Expected:
    """What PyTorch Geometric's semantics give where every edge that may be followed is."""

    nodes: dict[str, list[int]]
    trees: dict[str, list[int]]
    nodes_per_hop: dict[str, list[int]]
    edges: dict[Key, list[tuple[int, int]]]
    places: dict[Key, list[int]]
    edges_per_hop: dict[Key, list[int]] = field(default_factory=dict)


class NaiveSampler:
    """Follows every edge that may be followed, node by node, with dictionaries.

    Args:
        graph: The graph.
        follow: Edge type -> for each hop, whether it is followed.
        trees: Whether each seed has a tree of its own.
        time: Name of the times; None where they do not count.
    """

    def __init__(
        self,
        graph: TypedGraph,
        follow: Mapping[Key, list[bool]],
        *,
        trees: bool = False,
        time: str | None = None,
    ) -> None:
        self.graph, self.follow, self.time = graph, follow, time
        self.in_trees = trees or time is not None

    def sample(self, seeds: Mapping[str, list[int]], times: list[int] | None = None) -> Expected:
        self.times = times or []
        self.nodes: dict[str, list[tuple[int, int]]] = {name: [] for name in self.graph.counts}
        self.local: dict[str, dict[tuple[int, int], int]] = {name: {} for name in self.nodes}
        tree = 0
        for name, ids in seeds.items():
            for node in ids:
                self.find(name, (tree if self.in_trees else 0, node), again=True)
                tree += 1
        self.edges: dict[Key, list[tuple[int, int, int]]] = {key: [] for key in self.follow}
        bounds = {name: [0, len(held)] for name, held in self.nodes.items()}
        per_hop: dict[Key, list[int]] = {key: [] for key in self.follow}
        for hop in range(len(next(iter(self.follow.values())))):
            for key, followed in self.follow.items():
                before = len(self.edges[key])
                if followed[hop]:
                    self.expand(key, range(*bounds[key[2]][-2:]))
                per_hop[key].append(len(self.edges[key]) - before)
            for name, held in self.nodes.items():
                bounds[name].append(len(held))
        return Expected(
            nodes={name: [node for _, node in held] for name, held in self.nodes.items()},
            trees={name: [tree for tree, _ in held] for name, held in self.nodes.items()},
            nodes_per_hop={name: np.diff(held).tolist() for name, held in bounds.items()},
            edges={key: [edge[:2] for edge in held] for key, held in self.edges.items()},
            places={key: [edge[2] for edge in held] for key, held in self.edges.items()},
            edges_per_hop=per_hop,
        )

    def find(self, name: str, node: tuple[int, int], *, again: bool = False) -> int:
        if again or node not in self.local[name]:
            self.local[name].setdefault(node, len(self.nodes[name]))
            self.nodes[name].append(node)
        return self.local[name][node]

    def expand(self, key: Key, columns: range) -> None:
        rows = self.graph.edges[key]
        for column in columns:
            tree, node = self.nodes[key[2]][column]
            for place in rows.places(node):
                if self.allowed(key, place, tree):
                    row = self.find(key[0], (tree, int(rows.indices[place])))
                    self.edges[key].append((row, column, place))

    def allowed(self, key: Key, place: int, tree: int) -> bool:
        rows = self.graph.edges[key]
        of_edge = rows.arrays.get(self.time or "")
        of_node = self.graph.node_arrays[key[0]].get(self.time or "")
        if self.time is None or (of_edge is None and of_node is None):
            return True
        time = of_edge[place] if of_edge is not None else of_node[rows.indices[place]]
        return bool(time <= self.times[tree])

    def induced(self, expected: Expected) -> dict[Key, list[tuple[int, int, int]]]:
        """All edges between the nodes of the last sample, each once."""
        found: dict[Key, list[tuple[int, int, int]]] = {}
        for key in self.follow:
            rows = self.graph.edges[key]
            found[key] = [
                (self.local[key[0]][tree, int(rows.indices[place])], column, place)
                for column, (tree, node) in enumerate(self.nodes[key[2]])
                if self.local[key[2]][tree, node] == column
                for place in rows.places(node)
                if (tree, int(rows.indices[place])) in self.local[key[0]]
                and self.allowed(key, place, tree)
            ]
        return found


def nodes_of(sampled: SampledNeighborhood, type: str | None = None) -> list[int]:
    out = np.empty(sampled.num_nodes(type), np.int64)
    sampled.write_nodes(out, type)
    return out.tolist()


def trees_of(sampled: SampledNeighborhood, type: str | None = None) -> list[int]:
    out = np.empty(sampled.num_nodes(type), np.int64)
    sampled.write_trees(out, type)
    return out.tolist()


def edges_of(sampled: SampledNeighborhood, key: Key | None = None) -> list[tuple[int, int]]:
    out = np.empty((2, sampled.num_edges(key)), np.int64)
    sampled.write_edges(out, key)
    return list(zip(*out.tolist(), strict=True))


def places_of(sampled: SampledNeighborhood, key: Key | None = None) -> list[int]:
    out = np.empty(sampled.num_edges(key), np.int64)
    sampled.write_edge_places(out, key)
    return out.tolist()


def everything_of(sampled: SampledNeighborhood) -> list[object]:
    """All of a result, to be compared with that of another batch."""
    keys = list(sampled.edges_per_hop)
    types = list(sampled.nodes_per_hop)
    return [
        [nodes_of(sampled, name) for name in types],
        [(edges_of(sampled, key), places_of(sampled, key)) for key in keys],
        sampled.nodes_per_hop,
        sampled.edges_per_hop,
    ]


def assert_equal(sampled: SampledNeighborhood, expected: Expected, *, trees: bool = False) -> None:
    for name, nodes in expected.nodes.items():
        assert nodes_of(sampled, name) == nodes
        assert not trees or trees_of(sampled, name) == expected.trees[name]
    for key, edges in expected.edges.items():
        assert edges_of(sampled, key) == edges
        assert places_of(sampled, key) == expected.places[key]
    assert sampled.nodes_per_hop == expected.nodes_per_hop
    assert sampled.edges_per_hop == expected.edges_per_hop
