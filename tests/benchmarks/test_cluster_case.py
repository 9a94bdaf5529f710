"""What the benchmarks of clusters write and count; the cases themselves want a cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import cluster, cluster_model
from benchmarks.local_cluster import address_of, on_node
from overspill.cluster.local_parts import Picked
from overspill.cluster.planning.spans import Span


@pytest.mark.parametrize("edges", [1, 1000, 3 << 20])
def test_edges_are_as_many_as_were_asked_for(edges: int, tmp_path: Path) -> None:
    held = np.load(cluster.write_edges(tmp_path / "edges.npy", edges, 50))
    assert held.shape == (2, edges) and held.dtype == np.int64
    assert held.min() >= 0 and held.max() < 50


def test_bytes_of_messages_are_those_of_their_arrays() -> None:
    ids = np.zeros(10, np.int32)
    answer = Picked(np.zeros(3, np.uint32), ids, np.zeros(2, np.int64))
    assert cluster_model._array_bytes(("sample", (8, 16), ids)) == 40
    assert cluster_model._array_bytes(answer) == 12 + 40 + 16


def test_predicted_and_measured_stand_side_by_side() -> None:
    span = Span(stage="build", disk=2.0, processor=3.0)
    told = cluster_model.Told(4.0, span, 99.0, 100.0, {"init: measured": 1.0}).figures()
    assert told["seconds measured"] == 4.0 and told["init: measured"] == 1.0
    assert (told["predicted at best"], told["at worst"]) == (3.0, 5.0)
    assert told["measured / at best"] == pytest.approx(4 / 3)
    assert told["measured / at worst"] == pytest.approx(0.8)
    assert told[cluster_model._APART] == pytest.approx(0.01)


def test_nodes_have_addresses_of_their_own() -> None:
    assert [address_of(number) for number in range(3)] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    assert list(on_node(1)) == ["node:127.0.0.3"]
