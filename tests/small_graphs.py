"""Datasets for tests, written straight through the storage layer, and a plain reference sampler."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from overspill.storage.arrays import ArrayWriter
from overspill.storage.manifest import (
    EdgeTypeRecord,
    Manifest,
    NodeTypeRecord,
    publish_manifest,
)
from overspill.storage.records import FileRecord
from overspill.storage.texts import joined, text_hashes


@dataclass(frozen=True)
class SmallGraph:
    """A dataset on disk and the arrays it was written from."""

    path: Path
    indptr: np.ndarray
    indices: np.ndarray
    arrays: dict[str, np.ndarray]

    def in_neighbors(self, node: int) -> list[int]:
        return self.indices[self.indptr[node] : self.indptr[node + 1]].tolist()


def write_array(path: Path, values: np.ndarray, dtype: str | None = None) -> FileRecord:
    with ArrayWriter(path, dtype=dtype or str(values.dtype), shape=values.shape) as writer:
        if values.size:
            writer.append(values)
    return writer.result


def compress(sources: Any, targets: Any, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """CSC of an edge list: int64 indptr, and int32 sources sorted within a destination."""
    sources, targets = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
    order = np.lexsort((sources, targets))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=num_nodes), out=indptr[1:])
    return indptr, sources[order].astype(np.int32)


def write_graph(
    path: Path,
    indptr: np.ndarray,
    indices: np.ndarray,
    arrays: Mapping[str, np.ndarray] | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
    raw_ids: np.ndarray | None = None,
) -> SmallGraph:
    path.mkdir(parents=True, exist_ok=True)
    held, num_nodes = dict(arrays or {}), len(indptr) - 1
    records = {
        name: write_array(path / f"node.{name}", values, (dtypes or {}).get(name))
        for name, values in held.items()
    }
    ids = None if raw_ids is None else write_array(path / "node_ids", raw_ids)
    csc = {
        "indptr": write_array(path / "indptr", indptr),
        "indices": write_array(path / "indices", indices),
    }
    node = NodeTypeRecord("node", num_nodes, records, ids)
    edge = EdgeTypeRecord("node", "to", "node", len(indices), {"csc": csc})
    publish_manifest(path, Manifest(uuid.uuid4().hex, {"node": node}, {edge.key: edge}))
    return SmallGraph(path, indptr, indices, held)


def write_nodes(
    path: Path, raw: list[Any], *, salt: int = 0, order: np.ndarray | None = None
) -> list[Any]:
    """A dataset of nodes alone, with raw ids; `order` is the old number of each new node.

    Returns:
        The raw id of each node.
    """
    path.mkdir(parents=True, exist_ok=True)
    if raw and isinstance(raw[0], str):
        offsets, data = joined(raw)
        hashes = text_hashes(offsets, data, salt=salt)
        known = dict(sorted(zip(hashes.tolist(), raw, strict=True)))
        offsets, data = joined(list(known.values()))
        texts = {
            "offsets": write_array(path / "offsets", offsets),
            "data": write_array(path / "text", data),
        }
    else:
        known, texts = {value: value for value in sorted(raw)}, None
    node = NodeTypeRecord(
        "node",
        len(known),
        ids=write_array(path / "ids", np.array(list(known), np.int64)),
        texts=texts,
        salt=salt,
    )
    listed = list(known.values())
    if order is not None:
        renumbered = np.argsort(order).astype(order.dtype)
        node = replace(
            node,
            original=write_array(path / "original", order),
            renumbered=write_array(path / "renumbered", renumbered),
        )
        listed = [listed[old] for old in order]
    publish_manifest(path, Manifest(uuid.uuid4().hex, {"node": node}, {}))
    return listed


def random_graph(
    path: Path, *, num_nodes: int = 400, num_edges: int = 3000, width: int = 12, seed: int = 0
) -> SmallGraph:
    """A random graph with some isolated nodes, self loops, double edges, x (float32) and y."""
    rng = np.random.default_rng(seed)
    ends = (rng.random((2, num_edges)) ** 1.5 * (num_nodes - 5)).astype(np.int64)
    arrays = {
        "x": rng.standard_normal((num_nodes, width), dtype=np.float32),
        "y": rng.integers(0, 7, num_nodes),
    }
    return write_graph(path, *compress(ends[0], ends[1], num_nodes), arrays)


@dataclass(frozen=True)
class Reference:
    """What PyG's documented semantics give for all neighbours."""

    nodes: list[int]
    edges: list[tuple[int, int]]
    nodes_per_hop: list[int]
    edges_per_hop: list[int]


def full_neighborhood(graph: SmallGraph, seeds: list[int], hops: int) -> Reference:
    """All in-neighbours, hop by hop: seeds first, then nodes in order of discovery."""
    nodes, local = list(seeds), {}
    for place, seed in enumerate(seeds):
        local.setdefault(seed, place)
    edges: list[tuple[int, int]] = []
    nodes_per_hop, edges_per_hop = [len(seeds)], []
    first = 0
    for _ in range(hops):
        last, before = len(nodes), len(edges)
        for column in range(first, last):
            for neighbor in graph.in_neighbors(nodes[column]):
                if neighbor not in local:
                    local[neighbor] = len(nodes)
                    nodes.append(neighbor)
                edges.append((local[neighbor], column))
        first = last
        nodes_per_hop.append(len(nodes) - last)
        edges_per_hop.append(len(edges) - before)
    return Reference(nodes, edges, nodes_per_hop, edges_per_hop)
