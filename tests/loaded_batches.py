"""What a loader's batches must hold, beside a sampler in plain Python."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from typed_graphs import Expected, Key, NaiveSampler, TypedGraph, write_typed

BUYS, LIKED = ("user", "buys", "item"), ("item", "liked_by", "user")
KNOWS = ("user", "knows", "user")


def market(path: Path, *, node_times: bool = False, seed: int = 0) -> TypedGraph:
    """Users and items with rows x, edges with rows w (float) and a (two a row), and times t."""
    rng = np.random.default_rng(seed)
    counts = {"user": 70, "item": 50}
    nodes = {}
    for width, (name, count) in enumerate(counts.items(), 3):
        arrays = {"x": rng.standard_normal((count, width), dtype=np.float32)}
        if node_times:
            arrays["t"] = rng.integers(0, 40, count)
        nodes[name] = (count, arrays)
    edges = {}
    for key, count in {BUYS: 300, LIKED: 240, KNOWS: 150}.items():
        ends = [rng.integers(0, counts[key[end]] - 3, count) for end in (0, 2)]
        arrays = {"w": rng.random(count, dtype=np.float32)}
        if key != KNOWS:
            arrays["a"] = rng.integers(0, 9, (count, 2))
        if not node_times:
            arrays["t"] = rng.integers(0, 40, count)
        edges[key] = (*ends, arrays)
    return write_typed(path, nodes, edges)


def club(path: Path, *, seed: int = 0, num_nodes: int = 120, num_edges: int = 700) -> TypedGraph:
    """One node type and one edge type: x of nodes, w and t of edges; the last nodes are alone."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, num_nodes - 4, (2, num_edges))
    x = rng.standard_normal((num_nodes, 5), dtype=np.float32)
    arrays = {"w": rng.random(num_edges, dtype=np.float32), "t": rng.integers(0, 40, num_edges)}
    key = ("person", "knows", "person")
    return write_typed(path, {"person": (num_nodes, {"x": x})}, {key: (*ends, arrays)})


def naive(graph: TypedGraph, hops: int, **options: Any) -> NaiveSampler:
    return NaiveSampler(graph, {key: [True] * hops for key in graph.edges}, **options)


def store_of(batch: Data | HeteroData, type: Any) -> Any:
    return batch[type] if isinstance(batch, HeteroData) else batch


def assert_batch(
    graph: TypedGraph,
    batch: Data | HeteroData,
    expected: Expected,
    *,
    trees: bool = False,
    counted: bool = True,
) -> None:
    """Hold nodes, edges, places, trees, counts and all rows of a batch against the reference."""
    for name, nodes in expected.nodes.items():
        store = store_of(batch, name)
        assert store.n_id.tolist() == nodes
        assert store.num_nodes == len(nodes)
        assert ("batch" in store) == trees
        assert not trees or store.batch.tolist() == expected.trees[name]
        if counted:
            assert store.num_sampled_nodes == expected.nodes_per_hop[name]
        for array, values in graph.node_arrays[name].items():
            np.testing.assert_array_equal(store[array], values[nodes])
    for key, edges in expected.edges.items():
        store = store_of(batch, key)
        assert list(zip(*store.edge_index.tolist(), strict=True)) == edges
        assert store.e_id.tolist() == expected.places[key]
        if counted:
            assert store.num_sampled_edges == expected.edges_per_hop[key]
        assert ("num_sampled_edges" in store) == counted
        for array, values in graph.edges[key].arrays.items():
            np.testing.assert_array_equal(store[array], values[expected.places[key]])


def listed(batch: Any) -> Any:
    """A batch as lists, to be compared with that of another loader."""
    if isinstance(batch, Data | HeteroData):
        return listed(batch.to_dict())
    if isinstance(batch, Mapping):
        return {key: listed(value) for key, value in batch.items()}
    return (batch.dtype, batch.tolist()) if isinstance(batch, torch.Tensor) else batch


def all_listed(batches: Iterable[Any]) -> list[Any]:
    return [listed(batch) for batch in batches]


def real_edges(graph: TypedGraph, batch: Data | HeteroData, key: Key) -> None:
    """Every edge of a batch is the one of the graph that its place says."""
    store = store_of(batch, key)
    rows = graph.edges[key]
    sources = store_of(batch, key[0]).n_id[store.edge_index[0]].numpy()
    targets = store_of(batch, key[2]).n_id[store.edge_index[1]].numpy()
    np.testing.assert_array_equal(rows.indices[store.e_id], sources)
    found = np.searchsorted(rows.indptr, store.e_id.numpy(), side="right") - 1
    np.testing.assert_array_equal(found, targets)


def stop_workers(loader: Any, batches: Any = None) -> None:
    """End the workers now: an error's traceback is a cycle that keeps torch's iterator alive."""
    while hasattr(batches, "inner"):
        batches = batches.inner
    for iterator in (batches, loader._iterator):
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    loader._iterator = None
    gc.collect()
