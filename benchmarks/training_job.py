"""An epoch that `training` times.

``python -m benchmarks.training_job WAY DATASET SEEDS BATCHES HOT_BYTES``
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

import overspill as ov
from overspill.cli.demo.generate import CLASSES, DIMENSIONS
from overspill.cli.demo.training import GraphSage, train
from overspill.graph import Dataset
from overspill.linux.cache import drop_cache
from overspill.pyg import NeighborLoader

FAN_OUTS = [10, 5]
BATCH_SIZE = 512
# One that reads for several batches together, or two that read for one each: measured fastest.
_WAYS: dict[str, dict[str, Any]] = {
    "hot": {"num_workers": 1, "lookahead": 10},
    "disk": {"num_workers": 2},
    "memory": {"num_workers": 1},
}
_PAGE_BYTES = 4096
_CHUNK_ROWS = 1 << 16


class FromMemory:
    """Takes the features of a batch from a tensor in memory, by plain indexing."""

    def __init__(self, features: torch.Tensor) -> None:
        self._features = features

    def __call__(self, batch: Data) -> Data:
        """Add the features of the batch's nodes."""
        batch.x = torch.index_select(self._features, 0, batch.n_id)
        return batch


def main(way: str, path: str, seeds: str, batches: int, hot_bytes: int) -> dict[str, Any]:
    """Train an epoch; returns its seconds, its rows, and the distinct pages that these lie on.

    Args:
        way: "disk", all in this process's memory limit; "hot", the same with the most-used rows
            kept; or "memory", the same sampler and loader over features in memory, topology cached.
        path: The dataset.
        seeds: A .npy file of seeds.
        batches: How many batches.
        hot_bytes: What the most-used rows may take.
    """
    dataset = ov.open_dataset(path)
    wanted = torch.from_numpy(np.load(seeds)[: batches * BATCH_SIZE])
    loader, made = _loader(way, dataset, wanted, hot_bytes)
    # Of two processors the worker needs one: a second thread of the model waits for it, and makes
    # the epoch longer whichever way the rows come.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GraphSage(DIMENSIONS, 64, CLASSES, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    if way != "memory":
        for file in Path(path).rglob("*.safetensors"):
            drop_cache(file)
    started = time.monotonic()
    tally = train(model, optimizer, loader)
    seconds = time.monotonic() - started
    return {"seconds": seconds, "rows": tally.rows, "made_seconds": made} | _read(loader)


def distinct_pages(path: str, seeds: str, batches: int) -> int:
    """The distinct pages that an epoch reads from: of features, labels and topology."""
    dataset = ov.open_dataset(path)
    wanted = torch.from_numpy(np.load(seeds)[: batches * BATCH_SIZE])
    loader = NeighborLoader(
        dataset, FAN_OUTS, batch_size=BATCH_SIZE, input_nodes=wanted, seed=0, features=[]
    )
    indptr = dataset.topology().indptr.numpy()
    ids, ends = dataset.num_nodes, int(indptr[-1])
    sizes = {"x": ids * DIMENSIONS * 2, "y": ids * 8, "indptr": ids * 8 + 8, "indices": ends * 4}
    touched = {name: np.zeros(size // _PAGE_BYTES + 2, np.bool_) for name, size in sizes.items()}
    for batch in loader:
        held = batch.n_id.numpy()
        touched["x"][held * DIMENSIONS * 2 // _PAGE_BYTES] = True
        touched["y"][held * 8 // _PAGE_BYTES] = True
        expanded = held[: sum(batch.num_sampled_nodes[: len(FAN_OUTS)])]
        for at in (expanded, expanded + 1):
            touched["indptr"][at * 8 // _PAGE_BYTES] = True
        # Of a row, whichever of its edges are drawn: its ends stand for it.
        for edge in (indptr[expanded], np.maximum(indptr[expanded + 1] - 1, indptr[expanded])):
            touched["indices"][edge * 4 // _PAGE_BYTES] = True
    return sum(int(np.count_nonzero(pages)) for pages in touched.values())


def _loader(
    way: str, dataset: Dataset, seeds: torch.Tensor, hot_bytes: int
) -> tuple[NeighborLoader, float]:
    started = time.monotonic()
    options: dict[str, Any] = {"seed": 0, "batch_size": BATCH_SIZE, **_WAYS[way]}
    if way == "memory":
        features = _in_memory(dataset.features("x"))
        for part in vars(dataset.topology()).values():
            if part is not None:
                part.sum()
        dataset.features("y").sum()
        options |= {"features": ["y"], "transform": FromMemory(features)}
    elif way == "hot":
        options["hot_rows"] = hot_bytes
    loader = NeighborLoader(dataset, FAN_OUTS, input_nodes=seeds, **options)
    return loader, time.monotonic() - started


def _in_memory(features: torch.Tensor) -> torch.Tensor:
    held = torch.empty_like(features, device="cpu")
    held.share_memory_()  # type: ignore[no-untyped-call]
    for start in range(0, len(features), _CHUNK_ROWS):
        held[start : start + _CHUNK_ROWS] = features[start : start + _CHUNK_ROWS]
    return held


def _read(loader: NeighborLoader) -> dict[str, Any]:
    stats = loader.stats()
    return {"stats": repr(stats)}


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[0] == "pages":
        print(json.dumps({"pages": distinct_pages(given[1], given[2], int(given[3]))}))
    else:
        print(json.dumps(main(given[0], given[1], given[2], *map(int, given[3:5]))))
