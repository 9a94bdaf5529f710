"""Part 1 of the demo: the real Cora graph, from its CSV and .npy files to a trained model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from overspill.cli.demo.training import GraphSage, test, train
from overspill.graph import build_dataset
from overspill.pyg import NeighborLoader

FILES = Path(__file__).parent / "cora"
_CLASSES = 7
_EPOCHS = 15
_SEED = 0


@dataclass(frozen=True)
class CoraResult:
    """What part 1 came to."""

    nodes: int
    edges: int
    test_nodes: int
    accuracy: float


def run_cora(directory: Path, *, report: Callable[[str, int, int, str], None]) -> CoraResult:
    """Build Cora's dataset in ``directory``, train GraphSAGE through the loader, test it.

    Args:
        directory: Where the dataset goes; must not exist, or be empty.
        report: Called with (phase, done, total, unit).

    Returns:
        Counts and the accuracy on the 20% of the nodes held out for testing.
    """
    dataset = build_dataset(
        directory,
        edges=FILES / "edges.csv",
        node_features={"x": FILES / "features.npy", "y": FILES / "labels.npy"},
    )
    nodes = dataset.num_nodes
    # 60/20/20, as in the field; the middle fifth is for choosing a model, and we choose none.
    shuffled = torch.randperm(nodes, generator=torch.Generator().manual_seed(_SEED))
    train_ids, test_ids = shuffled[: nodes * 6 // 10], shuffled[nodes * 8 // 10 :]
    torch.manual_seed(_SEED)
    model = GraphSage(dataset.features("x").shape[1], 64, _CLASSES, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    loader = NeighborLoader(
        dataset, [15, 10], batch_size=256, input_nodes=train_ids, shuffle=True, seed=_SEED
    )
    for epoch in range(_EPOCHS):
        train(model, optimizer, loader)
        report("Cora: train", epoch + 1, _EPOCHS, "epochs")
    whole = NeighborLoader(dataset, [-1, -1], batch_size=512, input_nodes=test_ids)
    tally = test(model, whole)
    return CoraResult(nodes, dataset.num_edges, tally.seeds, tally.accuracy)
