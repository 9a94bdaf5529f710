"""What is built: a few small inputs, and the options with which each is built and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from overspill.graph import Dataset
from overspill.pyg import LinkNeighborLoader, NeighborLoader

NODES, EDGES, TEXT_EDGES = 20_000, 600_000, 80_000
BUYS, LIKED = ("user", "buys", "item"), ("item", "liked_by", "user")
BATCHES = 12


def write_inputs(place: Path) -> None:
    """Write every input; the same each time."""
    rng = np.random.default_rng(8)
    np.save(place / "edges.npy", rng.integers(0, NODES, (2, EDGES)))
    np.save(place / "x.npy", rng.standard_normal((NODES, 64), dtype=np.float32))
    np.save(place / "w.npy", rng.random(EDGES, dtype=np.float32))
    for name in ("buys", "liked"):
        np.save(place / f"{name}.npy", rng.integers(0, NODES // 2, (2, EDGES // 2)))
    ends = rng.integers(0, NODES, (2, TEXT_EDGES))
    names = [[f"person-{id:06d}" for id in end] for end in ends]
    pq.write_table(pa.table(dict(zip(("src", "dst"), names, strict=True))), place / "names.parquet")
    rows = zip(*names, strict=True)
    (place / "names.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in rows))
    ids = zip(*(ends * 37 + 5).tolist(), strict=True)
    (place / "snap.txt").write_text("# ids with gaps\n" + "".join(f"{a}\t{b}\n" for a, b in ids))


def recipes(place: Path) -> dict[str, dict[str, Any]]:
    """Name -> the arguments of `build_dataset`, but for where and in how much memory."""
    dense = {"edges": str(place / "edges.npy"), "num_nodes": NODES, "edge_axis": 1}
    rows = {"node_features": {"x": str(place / "x.npy")}}
    weights = {"edge_features": {"w": str(place / "w.npy")}}
    typed = {BUYS: str(place / "buys.npy"), LIKED: str(place / "liked.npy")}
    users = {"node_features": {"user": {"x": str(place / "x.npy")}}}
    return {
        "dense": {**dense, **rows},
        "both": {**dense, **rows, **weights, "layout": ("csc", "csr")},
        "undirected": {**dense, **rows, "to_undirected": True, "duplicates": "drop"},
        "degree": {**dense, **rows, "order": "degree"},
        "text": {"edges": str(place / "names.csv"), "ids": "text"},
        "strings": {"edges": str(place / "names.parquet")},
        "snap": {"edges": str(place / "snap.txt"), "self_loops": "drop"},
        "typed": {
            "edges": typed,
            "edge_axis": 1,
            "num_nodes": {"user": NODES, "item": NODES},
            **users,
        },
        "memory": {**dense, "edges": np.load(place / "edges.npy"), **rows},
    }


RECIPES = (
    *("dense", "both", "undirected", "degree", "typed"),
    *("text", "strings", "snap", "memory"),
)
# Of which recipe, by which method, into how many parts.
PARTITIONS = {
    "dense-hash-3": ("dense", "hash", 3),
    "both-degree-2": ("both", "degree-balanced", 2),
    "typed-range-4": ("typed", "range", 4),
}
# What the recipes are loaded with, each from a dataset that no action changes.
LOADED = ("dense", "both", "undirected", "typed")


def loader_of(name: str, dataset: Dataset, **options: Any) -> Any:
    """The loader whose batches have a reference: whatever the options, the same."""
    shared = {"batch_size": 128, "shuffle": True, "seed": 5, **options}
    seeds = torch.arange(BATCHES * 128)
    match name:
        case "dense":
            return NeighborLoader(dataset, [5, 3], seeds, **shared)
        case "both":
            return NeighborLoader(dataset, [4, 4], seeds, weight_attr="w", **shared)
        case "typed":
            return NeighborLoader(dataset, [4, 3], ("user", seeds), **shared)
        case _:
            pairs = torch.stack([seeds, seeds.flip(0)])
            return LinkNeighborLoader(dataset, [3, 2], pairs, neg_sampling="binary", **shared)


def tensors_of(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a batch, by the names on the way to it, in order."""
    yield from sorted(_tensors(batch.to_dict(), ""), key=lambda pair: pair[0])


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _tensors(held, f"{name}/{key}")
