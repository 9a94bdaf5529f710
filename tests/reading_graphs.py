"""Small datasets with several types and edge arrays, for the reading layer; plain references."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from overspill.graph.dataset import Dataset, open_dataset
from overspill.storage.manifest import (
    EdgeTypeRecord,
    Manifest,
    NodeTypeRecord,
    publish_manifest,
)
from overspill.storage.records import FileRecord
from small_graphs import compress, write_array

BUYS = ("user", "buys", "item")
LIKES = ("item", "likes", "user")
# How numpy sees dtypes that it lacks.
BITS = {"bfloat16": np.uint16, "float8_e5m2": np.uint8}
DTYPES = ["float32", "bfloat16", "float16", "uint8", "bool", "int64", "complex64", "float8_e5m2"]


def random_rows(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Rows of any bits that the dtype allows."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    kind = np.dtype(BITS.get(dtype, dtype))
    raw = rng.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8)
    return raw.view(kind).reshape(shape)


def write_wide(path: Path, arrays: Mapping[str, tuple[str, np.ndarray]], count: int) -> Dataset:
    """One node type, no edges: arrays by name, each with its dtype's name."""
    path.mkdir(parents=True)
    records = {
        name: write_array(path / f"node.{name}", rows, dtype)
        for name, (dtype, rows) in arrays.items()
    }
    node = NodeTypeRecord("node", count, records)
    publish_manifest(path, Manifest(uuid.uuid4().hex, {"node": node}, {}))
    return open_dataset(path)


def write_market(path: Path, *, users: int = 300, items: int = 200, seed: int = 0) -> Dataset:
    """Users that buy items and items that like users; x of both, w of each purchase."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    nodes = {}
    for name, count, width in (("user", users, 8), ("item", items, 3)):
        x = rng.standard_normal((count, width), dtype=np.float32)
        nodes[name] = NodeTypeRecord(name, count, {"x": write_array(path / f"{name}.x", x)})
    edges = {}
    for key, (sources, targets) in {BUYS: (users, items), LIKES: (items, users)}.items():
        ends = [(rng.random(2000) ** 2 * most).astype(np.int64) for most in (sources, targets)]
        edges[key] = _edges(path, key, ends, targets, rng)
    publish_manifest(path, Manifest(uuid.uuid4().hex, nodes, edges))
    return open_dataset(path)


def _edges(
    path: Path,
    key: tuple[str, str, str],
    ends: list[np.ndarray],
    num_targets: int,
    rng: np.random.Generator,
) -> EdgeTypeRecord:
    indptr, indices = compress(ends[0], ends[1], num_targets)
    name = "-".join(key)
    parts: dict[str, FileRecord] = {
        "indptr": write_array(path / f"{name}.indptr", indptr),
        "indices": write_array(path / f"{name}.indices", indices),
    }
    weights = rng.standard_normal(len(indices), dtype=np.float32)
    arrays = {"csc": {"w": write_array(path / f"{name}.w", weights)}}
    return EdgeTypeRecord(*key, len(indices), {"csc": parts}, arrays)


def degrees(dataset: Dataset, node_type: str, side: str) -> np.ndarray:
    """Naive degrees: as the source, or the target, of edges of every type."""
    total = np.zeros(dataset.node_record(node_type).count, np.int64)
    for source, relation, target in dataset.edge_types:
        topology = dataset.topology((source, relation, target))
        if side == "target" and target == node_type:
            total += np.diff(topology.indptr.numpy())
        if side == "source" and source == node_type:
            total += np.bincount(topology.indices.numpy(), minlength=len(total))
    return total


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bit by bit: NaN too, and dtypes that torch does not compare."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return (
        one.contiguous()
        .view(-1)
        .view(torch.uint8)
        .equal(other.contiguous().view(-1).view(torch.uint8))
    )


def zipf_batches(
    count: int, batches: int, size: int, *, exponent: float = 1.1, seed: int = 0
) -> list[np.ndarray]:
    """Ids of power-law popularity, the popular ones anywhere among them."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(count)
    chances = 1.0 / np.arange(1, count + 1) ** exponent
    ends = np.cumsum(chances) / chances.sum()
    return [places[np.searchsorted(ends, rng.random(size))] for _ in range(batches)]


def gathered(rows: torch.Tensor, lists: Iterable[np.ndarray]) -> list[torch.Tensor]:
    """What plain indexing gives for each list."""
    return [rows[torch.from_numpy(ids)] for ids in lists]
