"""Who will buy what: links between users and items, learned from batches of links.

python examples/link_prediction.py [USERS]
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.nn import GraphSAGE, to_hetero

import overspill as ov
from overspill.pyg import LinkNeighborLoader

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")
TASTES = 8


def build(directory: str, users: int) -> ov.Dataset:
    random, each = np.random.default_rng(0), max(1, users // 4 // TASTES)
    buyers = np.repeat(np.arange(users), 6)  # each buys items of one taste
    bought = random.integers(0, each, buyers.size) * TASTES + buyers % TASTES
    tastes = np.eye(TASTES, dtype=np.float32)[np.arange(each * TASTES) % TASTES]
    return ov.build_dataset(
        directory,
        edges={BUYS: np.stack([buyers, bought]), BOUGHT: np.stack([bought, buyers])},
        node_features={"user": {"x": np.ones((users, TASTES), "f4")}, "item": {"x": tastes}},
        edge_ids=True,
    )


def main(directory: str, users: int) -> None:
    graph = build(directory, users)
    loader = LinkNeighborLoader(
        graph, [5, 5], BUYS, neg_sampling="binary", batch_size=256, shuffle=True, seed=0
    )
    torch.manual_seed(0)
    model = to_hetero(GraphSAGE(TASTES, 32, 2), (graph.node_types, graph.edge_types))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        right = seen = 0
        for batch in loader:
            rows, links = model(batch.x_dict, batch.edge_index_dict), batch[BUYS]
            (source, target), wanted = links.edge_label_index, links.edge_label
            scores = (rows["user"][source] * rows["item"][target]).sum(1)
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(scores, wanted).backward()
            optimizer.step()
            right, seen = right + int(((scores > 0) == wanted).sum()), seen + len(scores)
        print(f"told links from others: {right / seen:.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as directory:
        main(directory, int(sys.argv[1]) if len(sys.argv) > 1 else 400)
