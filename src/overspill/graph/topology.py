"""The edges of one type as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Topology:
    """The edges of one type, compressed by destination (CSC) or by source (CSR).

    Attributes:
        indptr: int64 (rows + 1,): where the edges of each row start, and the end. Rows are
            destinations in CSC, sources in CSR.
        indices: int32 or int64 (edges,): the other end of each edge.
        edge_ids: int32 or int64 (edges,): which edge of the input each is, counted over its files;
            None where the build was not asked to keep it.
        counts: int64 (edges,): how many parallel edges of the input each stands for; None where
            the build was not asked to count them.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    edge_ids: torch.Tensor | None = None
    counts: torch.Tensor | None = None

    def __repr__(self) -> str:
        # Shapes alone: that of a tensor reads its data.
        told = [
            f"{name}={part.dtype} {tuple(part.shape)}"
            for name, part in vars(self).items()
            if part is not None
        ]
        return f"Topology({', '.join(told)})".replace("torch.", "")
