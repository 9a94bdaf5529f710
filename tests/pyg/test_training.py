"""Short training runs: what the loaders give is what PyTorch Geometric's models take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch_geometric.nn import SAGEConv, to_hetero

from loaded_batches import BUYS, LIKED
from overspill.graph.dataset import open_dataset
from overspill.pyg import LinkNeighborLoader, NeighborLoader
from typed_graphs import write_typed

USERS, ITEMS, KINDS = 300, 120, 4


def write_tastes(path: Path) -> np.ndarray:
    """Users buy items of their own kind; x of items shows the kind, x of users does not."""
    rng = np.random.default_rng(0)
    kinds, of_items = rng.integers(0, KINDS, USERS), np.arange(ITEMS) % KINDS
    users = np.repeat(np.arange(USERS), 6)
    items = rng.integers(0, ITEMS // KINDS, users.size) * KINDS + kinds[users]
    rows = {
        "user": (USERS, {"x": np.ones((USERS, 2), np.float32), "y": kinds}),
        "item": (ITEMS, {"x": np.eye(KINDS, dtype=np.float32)[of_items]}),
    }
    write_typed(path, rows, {BUYS: (users, items, {}), LIKED: (items, users, {})})
    return kinds


class Sage(torch.nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), width), SAGEConv((-1, -1), out)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_a_model_of_types_learns_from_node_batches(tmp_path: Path) -> None:
    write_tastes(tmp_path)
    ds = open_dataset(tmp_path)
    torch.manual_seed(0)
    model = to_hetero(Sage(16, KINDS), (ds.node_types, ds.edge_types))
    loader = NeighborLoader(
        ds, [6, 6], "user", batch_size=50, shuffle=True, seed=0, prefetch_batches=2
    )
    first = next(iter(loader))
    model(first.x_dict, first.edge_index_dict)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(6):
        right = 0
        for batch in loader:
            out = model(batch.x_dict, batch.edge_index_dict)["user"][: batch["user"].batch_size]
            wanted = batch["user"].y[: batch["user"].batch_size]
            loss = functional.cross_entropy(out, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((out.argmax(1) == wanted).sum())
    assert right > 0.9 * USERS


def test_a_model_learns_to_predict_links(tmp_path: Path) -> None:
    write_tastes(tmp_path)
    ds = open_dataset(tmp_path)
    torch.manual_seed(0)
    model = to_hetero(Sage(16, 8), (ds.node_types, ds.edge_types))
    loader = LinkNeighborLoader(
        ds, [6, 6], BUYS, batch_size=300, shuffle=True, seed=0, neg_sampling="binary"
    )
    first = next(iter(loader))
    model(first.x_dict, first.edge_index_dict)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(8):
        for batch in loader:
            out = model(batch.x_dict, batch.edge_index_dict)
            users, items = batch[BUYS].edge_label_index
            scores = (out["user"][users] * out["item"][items]).sum(1)
            loss = functional.binary_cross_entropy_with_logits(scores, batch[BUYS].edge_label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert sum(losses[-6:]) < 0.75 * sum(losses[:6])
