"""Ends of a dataset's own edges, from files that no page is touched of before it is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from confined import make_cold
from overspill.graph.dataset import open_dataset
from overspill.graph.paged import PagedArray
from small_graphs import random_graph


@pytest.mark.parametrize("cold", [True, False])
def test_ends_are_found_without_touching_the_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    graph = random_graph(tmp_path, num_edges=900)  # of 400 nodes, some without edges
    degrees = np.diff(graph.indptr)
    assert (degrees == 0).any()
    dataset = open_dataset(tmp_path)
    if cold:
        make_cold(tmp_path / "indptr", tmp_path / "indices")
    monkeypatch.delattr(PagedArray, "elements")
    ends = dataset.open_edge_ends(dataset.edge_types[0])
    places = np.random.default_rng(1).permutation(graph.indices.size)
    sources, targets = ends.at(places)
    np.testing.assert_array_equal(sources, graph.indices[places])
    np.testing.assert_array_equal(targets, np.repeat(np.arange(400), degrees)[places])
    assert ends.at(places[:0]).shape == (2, 0)
