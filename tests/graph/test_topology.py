"""What a topology says of itself."""

from __future__ import annotations

import torch

from overspill.graph.topology import Topology


def test_a_topology_shows_shapes_and_reads_nothing() -> None:
    held = Topology(torch.zeros(4, dtype=torch.int64), torch.zeros(7, dtype=torch.int32))
    assert repr(held) == "Topology(indptr=int64 (4,), indices=int32 (7,))"
