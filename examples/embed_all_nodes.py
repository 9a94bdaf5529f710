"""A vector for every node, written in order to a tensor over a file, however many nodes there are.

python examples/embed_all_nodes.py [NODES]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch_geometric.nn import GraphSAGE

import overspill as ov
from overspill.pyg import NeighborLoader

WIDTH = 32


def main(directory: Path, nodes: int) -> None:
    random = np.random.default_rng(0)
    graph = ov.build_dataset(
        directory / "dataset",
        edges=random.integers(0, nodes, (2, 5 * nodes)),
        node_features={"x": random.standard_normal((nodes, WIDTH), np.float32)},
    )
    model = GraphSAGE(WIDTH, WIDTH, num_layers=2, out_channels=8).eval()
    with ov.settings(spill_dir=directory / "spill", min_bytes=1), ov.spill_scope():
        vectors = ov.allocate_disk_backed((nodes, 8), torch.float32, required=True)
        loader = NeighborLoader(graph, [10, 10], batch_size=1024, prefetch_batches=2)
        done = 0
        with torch.no_grad():
            for batch in loader:  # without input_nodes: all nodes, in order
                made = model(batch.x, batch.edge_index)[: batch.batch_size]
                vectors[done : done + len(made)] = made
                done += len(made)
        whole = (vectors.abs().sum(1) > 0).all()
        print(f"{done} vectors of {vectors.shape[1]}, none left out: {bool(whole)}")
        np.save(directory / "vectors.npy", vectors.numpy())  # a copy that outlives the scope
    print(np.load(directory / "vectors.npy", mmap_mode="r").shape)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as directory:
        main(Path(directory), int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
