"""The tutorial as one program: Cora, from its edge list to a trained model.

python examples/train_cora.py [EPOCHS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import overspill as ov
from overspill.pyg import NeighborLoader

FILES = Path(ov.__file__).parent / "cli" / "demo" / "cora"


def main(directory: str, epochs: int) -> None:
    graph = ov.build_dataset(
        directory,
        edges=FILES / "edges.csv",
        node_features={"x": FILES / "features.npy", "y": FILES / "labels.npy"},
        to_undirected=True,
        memory_limit="512MiB",
    )
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
    train_ids, test_ids = order[:1624], order[1624:]
    loader = NeighborLoader(graph, [15, 10], train_ids, batch_size=256, shuffle=True, seed=0)
    torch.manual_seed(0)
    model = GraphSAGE(1433, 64, num_layers=2, out_channels=7, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            scores = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
            cross_entropy(scores, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in NeighborLoader(graph, [-1, -1], test_ids, batch_size=512):
            scores = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
            right += int((scores.argmax(1) == batch.y[: batch.batch_size]).sum())
    print(f"accuracy {right / len(test_ids):.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as directory:
        main(directory, int(sys.argv[1]) if len(sys.argv) > 1 else 5)
