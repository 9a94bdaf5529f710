"""Typed graphs for tests of partitions, and the plainest check of what the parts must hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import overspill as ov
from overspill.storage.checksums import verify_checksums
from overspill.storage.index_bounds import bounds_of
from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord, publish_manifest
from overspill.storage.texts import joined, text_hashes
from small_graphs import write_array

EdgeType = tuple[str, str, str]
_MASK = (1 << 64) - 1


@dataclass
class TypedGraph:
    """A dataset with several types on disk, and the arrays that it was written from."""

    path: Path
    counts: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    raw: dict[str, list[Any]] = field(default_factory=dict)
    layouts: dict[EdgeType, dict[str, dict[str, np.ndarray]]] = field(default_factory=dict)


def write_typed(
    path: Path,
    counts: dict[str, int],
    edges: dict[EdgeType, int],
    *,
    layouts: tuple[str, ...] = ("csc", "csr"),
    raw: dict[str, str] | None = None,
    index_dtype: type = np.int32,
    seed: int = 0,
) -> TypedGraph:
    """Random edges, a hub among the targets, and all that nodes and edges can have beside them.

    Args:
        path: The dataset.
        counts: Nodes of each type.
        edges: Edges of each type.
        layouts: Which of them.
        raw: Node type -> "dense", "remap", "text" or "renumbered".
        index_dtype: Of the indices.
        seed: Of everything.
    """
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    graph = TypedGraph(path, counts)
    nodes = {
        name: _write_nodes(graph, name, (raw or {}).get(name, "dense"), rng) for name in counts
    }
    records = {}
    for key, count in edges.items():
        ends = rng.integers(0, max(1, counts[key[0]]), count), _skewed(rng, counts[key[2]], count)
        graph.layouts[key], records[key] = {}, EdgeTypeRecord(*key, count)
        for layout in layouts:
            _write_layout(graph, records[key], layout, ends, index_dtype)
    publish_manifest(path, Manifest(f"{seed:032x}", nodes, records, created="then"))
    return graph


def require_parts(graph: TypedGraph, found: ov.Partitioned, method: str, num_parts: int) -> None:
    """Compare every part with the rows of the whole that belong to its nodes."""
    assert len(found.parts) == num_parts
    seen = {name: [] for name in graph.counts}
    for index, part in enumerate(found.parts):
        bounds = bounds_of(part.manifest)
        assert verify_checksums(part.path, part.manifest, bounds=bounds) == []
        listed = {record.path for record in part.manifest.files()} | {"manifest.json"}
        assert listed == {
            str(path.relative_to(part.path)) for path in part.path.rglob("*") if path.is_file()
        }
        assert (part.part.index, part.part.num_parts) == (index, num_parts)
        for name in graph.counts:
            ids = _require_nodes(graph, part, found.books[name], name)
            seen[name] += ids.tolist()
        for key in graph.layouts:
            _require_edges(graph, part, key)
    assert verify_checksums(found.path, found.manifest) == []
    for name, count in graph.counts.items():
        assert sorted(seen[name]) == list(range(count))
        assert (seen[name] == sorted(seen[name])) or method == "hash"
        expected = naive_parts(method, count, num_parts)
        if expected is not None:
            assert found.books[name][torch.arange(count)].tolist() == expected


def naive_parts(method: str, count: int, num_parts: int) -> list[int] | None:
    """The part of each node, where that follows from its id alone."""
    if method == "hash":
        return [splitmix64(node) % num_parts for node in range(count)]
    if method == "range":
        bounds = [part * count // num_parts for part in range(1, num_parts + 1)]
        return [sum(bound <= node for bound in bounds) for node in range(count)]
    return None


def splitmix64(value: int) -> int:
    """As published: Steele, Lea and Flood, 2014."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _skewed(rng: np.random.Generator, nodes: int, count: int) -> np.ndarray:
    ids = rng.integers(0, max(1, nodes), count)
    ids[rng.random(count) < 0.4] = nodes // 3
    return ids


def _write_nodes(
    graph: TypedGraph, name: str, kind: str, rng: np.random.Generator
) -> NodeTypeRecord:
    count, path = graph.counts[name], graph.path
    graph.arrays[name] = {
        "x": rng.standard_normal((count, 3)).astype(np.float32),
        "half": rng.standard_normal((count, 5)).astype(np.float16),
        "wide": rng.integers(0, 99, (count, 9)),
        "flag": rng.random(count) < 0.5,
        "none": np.zeros((count, 0), np.float32),
    }
    files = {
        key: write_array(path / f"{name}.{key}", held) for key, held in graph.arrays[name].items()
    }
    ids = np.sort(rng.choice(10 * count + 1, count, replace=False)) - 5
    if kind == "remap":
        graph.raw[name] = ids.tolist()
        return NodeTypeRecord(name, count, files, write_array(path / f"{name}.ids", ids))
    if kind == "text":
        texts = [f"{value}-ü" * (value % 4) + str(value) for value in ids.tolist()]
        offsets, data = joined(texts)
        hashes = text_hashes(offsets, data, salt=7)
        known = dict(sorted(zip(hashes.tolist(), texts, strict=True)))
        graph.raw[name] = list(known.values())
        offsets, data = joined(graph.raw[name])
        stored = {
            "offsets": write_array(path / f"{name}.offsets", offsets),
            "data": write_array(path / f"{name}.data", data),
        }
        hashed = write_array(path / f"{name}.ids", np.array(list(known), np.int64))
        return NodeTypeRecord(name, count, files, hashed, stored, 7)
    if kind == "renumbered":
        order = rng.permutation(count).astype(np.int32)
        first = write_array(path / f"{name}.original", order)
        back = write_array(path / f"{name}.back", np.argsort(order).astype(np.int32))
        return NodeTypeRecord(name, count, files, original=first, renumbered=back)
    graph.raw[name] = list(range(count))
    return NodeTypeRecord(name, count, files)


def _write_layout(
    graph: TypedGraph,
    record: EdgeTypeRecord,
    layout: str,
    ends: tuple[np.ndarray, np.ndarray],
    index_dtype: type,
) -> None:
    other, row = ends if layout == "csc" else ends[::-1]
    rows = graph.counts[record.target if layout == "csc" else record.source]
    order = np.lexsort((other, row))
    indptr = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows)[:rows], out=indptr[1:])
    held = {
        "indptr": indptr,
        "indices": other[order].astype(index_dtype),
        "edge_ids": order.astype(np.int32),
        "counts": order % 5 + 1,
    }
    extra = {"w": (order[:, None] * [1.0, 0.5]).astype(np.float32), "t": order * 3}
    place = f"{'-'.join(record.key)}.{layout}"
    graph.layouts[record.key][layout] = held | extra
    record.layouts[layout] = {
        name: write_array(graph.path / f"{place}.{name}", values) for name, values in held.items()
    }
    record.arrays[layout] = {
        name: write_array(graph.path / f"{place}.{name}", values) for name, values in extra.items()
    }


def _require_nodes(
    graph: TypedGraph, part: ov.Dataset, book: ov.PartitionBook, name: str
) -> np.ndarray:
    ids = part.part.global_ids(type=name).long()
    count = part.manifest.node_types[name].count
    assert ids.shape == (count,) and part.part.num_global_nodes(name) == graph.counts[name]
    assert torch.equal(book[ids], torch.full((count,), part.part.index))
    local = torch.arange(count).flip(0)
    assert torch.equal(part.part.local_ids(ids.flip(0), name), local)
    assert torch.equal(part.part.global_ids(local, name), ids.flip(0))
    for key, held in graph.arrays[name].items():
        np.testing.assert_array_equal(part.features(key, name), held[ids.numpy()])
        np.testing.assert_array_equal(part.gather(key, local, name), held[ids.flip(0).numpy()])
    if name in graph.raw:
        wanted = [graph.raw[name][node] for node in ids.tolist()]
        listed = part.node_ids(name)
        assert (listed.tolist() if isinstance(listed, torch.Tensor) else list(listed)) == wanted
        assert part.lookup(wanted, name).tolist() == list(range(count))
    return ids.numpy()


def _require_edges(graph: TypedGraph, part: ov.Dataset, key: EdgeType) -> None:
    for layout, held in graph.layouts[key].items():
        ids = part.part.global_ids(type=key[2] if layout == "csc" else key[0]).numpy()
        spans = [np.arange(*held["indptr"][[node, node + 1]]) for node in ids.tolist()]
        places = np.concatenate([np.empty(0, np.int64), *spans])
        topology = part.topology(key, layout=layout)
        assert topology.indptr.tolist() == [0, *np.cumsum([len(span) for span in spans])]
        for name in ("indices", "edge_ids", "counts"):
            np.testing.assert_array_equal(getattr(topology, name), held[name][places])
            assert getattr(topology, name).numpy().dtype == held[name].dtype
        for name in ("w", "t"):
            found = part.edge_features(name, key, layout=layout)
            np.testing.assert_array_equal(found, held[name][places])
