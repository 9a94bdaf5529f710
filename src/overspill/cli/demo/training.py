"""A two-layer GraphSAGE, trained and tested through any loader of PyG batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv


class GraphSage(nn.Module):
    """Two mean-aggregating SAGE layers (Hamilton et al., 2017), ReLU and dropout between."""

    def __init__(self, inputs: int, hidden: int, classes: int, *, dropout: float) -> None:
        super().__init__()
        self.first = SAGEConv(inputs, hidden)
        self.second = SAGEConv(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Scores (nodes, classes) from features (nodes, inputs) and edges (2, E)."""
        x = functional.dropout(x, self.dropout, self.training)
        x = self.first(x, edge_index).relu()
        x = functional.dropout(x, self.dropout, self.training)
        return cast(Tensor, self.second(x, edge_index))


@dataclass
class Tally:
    """What one pass over a loader came to."""

    batches: int = 0
    seeds: int = 0
    rows: int = 0
    correct: int = 0

    @property
    def accuracy(self) -> float:
        """Part of the seeds whose class was found."""
        return self.correct / max(self.seeds, 1)


def train(
    model: GraphSage,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[Data],
    *,
    report: Callable[[Tally], None] | None = None,
) -> Tally:
    """One epoch: cross-entropy on the seeds of each batch."""
    model.train()
    tally = Tally()
    for batch in loader:
        optimizer.zero_grad()
        scores, wanted = _on_seeds(model, batch)
        loss = functional.cross_entropy(scores, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        _count(tally, scores.detach(), wanted, batch)
        if report is not None:
            report(tally)
    return tally


@torch.no_grad()
def test(
    model: GraphSage, loader: Iterable[Data], *, report: Callable[[Tally], None] | None = None
) -> Tally:
    """Accuracy on the seeds of each batch."""
    model.eval()
    tally = Tally()
    for batch in loader:
        scores, wanted = _on_seeds(model, batch)
        _count(tally, scores, wanted, batch)
        if report is not None:
            report(tally)
    return tally


def _on_seeds(model: GraphSage, batch: Data) -> tuple[Tensor, Tensor]:
    scores = model(batch.x.float(), batch.edge_index)
    return scores[: batch.batch_size], batch.y[: batch.batch_size]


def _count(tally: Tally, scores: Tensor, wanted: Tensor, batch: Data) -> None:
    tally.batches += 1
    tally.seeds += int(batch.batch_size)
    tally.rows += batch.x.shape[0]
    tally.correct += int((scores.argmax(1) == wanted).sum())
