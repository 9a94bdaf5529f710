"""A graph cut into parts, one for each machine, and the book that says where a node went.

python examples/partition.py [NODES]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import overspill as ov


def main(directory: Path, nodes: int) -> None:
    random = np.random.default_rng(0)
    popular = (nodes * random.random(8 * nodes) ** 2).astype(np.int64)  # a few have most edges
    graph = ov.build_dataset(
        directory / "whole",
        edges=np.stack([random.integers(0, nodes, 8 * nodes), popular]),
        node_features={"x": np.arange(nodes, dtype=np.float32)[:, None]},
    )
    parts = ov.partition_dataset(graph, 4, out=directory / "parts", method="degree-balanced")
    for part in parts.parts:
        print(part)
    wanted = torch.tensor([0, nodes // 2, nodes - 1])
    homes = parts.books["node"][wanted]
    print("homes", homes.tolist())
    for node, home in zip(wanted, homes, strict=True):
        part = parts.parts[int(home)]
        print(int(node), part.gather("x", part.part.local_ids(node[None])).item())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as directory:
        main(Path(directory), int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
