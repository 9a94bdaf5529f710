"""Batches of several types, of all kinds of subgraphs, beside a sampler in plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from loaded_batches import BUYS, KNOWS, LIKED, assert_batch, club, market, naive, real_edges
from overspill.errors import InputError
from overspill.graph.construct import build_dataset
from overspill.graph.dataset import open_dataset
from overspill.pyg import NeighborLoader
from typed_graphs import NaiveSampler

FRIENDS = ("person", "knows", "person")


@pytest.mark.parametrize("disjoint", [False, True])
def test_all_neighbours_of_all_types_are_pygs(tmp_path: Path, disjoint: bool) -> None:
    graph = market(tmp_path)
    loader = NeighborLoader(
        open_dataset(tmp_path), [-1, -1], "item", batch_size=16, disjoint=disjoint
    )
    reference = naive(graph, 2, trees=disjoint)
    starts = range(0, 50, 16)
    for start, batch in zip(starts, loader, strict=True):
        assert isinstance(batch, HeteroData)
        seeds = list(range(start, min(start + 16, 50)))
        assert_batch(graph, batch, reference.sample({"item": seeds}), trees=disjoint)
        assert batch["item"].input_id.tolist() == seeds
        assert batch["item"].batch_size == len(seeds)
        assert "batch_size" not in batch["user"] and "seed_time" not in batch["item"]


def test_edge_arrays_of_one_type_are_gathered_by_place(tmp_path: Path) -> None:
    graph = club(tmp_path)
    seeds = [119, 3, 3, 50]
    (batch,) = NeighborLoader(open_dataset(tmp_path), [-1, -1], torch.tensor(seeds), batch_size=4)
    assert isinstance(batch, Data)
    assert_batch(graph, batch, naive(graph, 2).sample({"person": seeds}))
    assert batch.e_id.dtype == torch.int64 and batch.w.dtype == torch.float32


def test_each_edge_type_has_its_fan_outs(tmp_path: Path) -> None:
    graph = market(tmp_path)
    ds = open_dataset(tmp_path)
    follow = {BUYS: [True, True], LIKED: [False, True], KNOWS: [True, False]}
    fans = {key: [-1 if hop else 0 for hop in hops] for key, hops in follow.items()}
    expected = NaiveSampler(graph, follow).sample({"user": [4, 9]})
    for given in (
        fans,
        {"__".join(key): hops for key, hops in fans.items()},
        NumNeighbors({key: fans[key] for key in (LIKED, KNOWS)}, default=[-1, -1]),
    ):
        (batch,) = NeighborLoader(ds, given, ("user", [4, 9]), batch_size=2)
        assert_batch(graph, batch, expected)


@pytest.mark.parametrize("node_times", [False, True])
def test_later_neighbours_are_left_out(tmp_path: Path, node_times: bool) -> None:
    graph = market(tmp_path, node_times=node_times)
    ds = open_dataset(tmp_path)
    seeds, times = [3, 3, 40, 12], [30, 5, 20, 39]
    loader = NeighborLoader(
        ds,
        [-1, -1],
        ("user", torch.tensor(seeds)),
        torch.tensor(times),
        time_attr="t",
        batch_size=4,
    )
    (batch,) = loader
    expected = naive(graph, 2, time="t").sample({"user": seeds}, times)
    assert_batch(graph, batch, expected, trees=True)
    assert batch["user"].seed_time.tolist() == times


def test_seeds_have_the_times_of_their_nodes(tmp_path: Path) -> None:
    graph = market(tmp_path, node_times=True)
    (batch,) = NeighborLoader(
        open_dataset(tmp_path), [-1], ("item", [3, 8]), time_attr="t", batch_size=2
    )
    times = graph.node_arrays["item"]["t"][[3, 8]].tolist()
    expected = naive(graph, 1, time="t").sample({"item": [3, 8]}, times)
    assert_batch(graph, batch, expected, trees=True)
    assert "seed_time" not in batch["item"]


def test_the_last_neighbours_are_the_most_recent(tmp_path: Path) -> None:
    graph = club(tmp_path)
    (batch,) = NeighborLoader(
        open_dataset(tmp_path),
        [3],
        torch.arange(100),
        torch.full((100,), 25),
        temporal_strategy="last",
        time_attr="t",
        batch_size=100,
    )
    rows = graph.edges[FRIENDS]
    for node in range(100):
        times = sorted(t for t in rows.arrays["t"][rows.places(node)] if t <= 25)
        found = batch.t[batch.edge_index[1] == node].tolist()
        assert sorted(found) == times[-3:]


@pytest.mark.parametrize("disjoint", [False, True])
def test_induced_subgraphs_hold_all_edges_between_their_nodes(
    tmp_path: Path, disjoint: bool
) -> None:
    graph = market(tmp_path)
    seeds = [2, 30, 44]
    (batch,) = NeighborLoader(
        open_dataset(tmp_path),
        [-1, -1],
        ("item", seeds),
        batch_size=3,
        subgraph_type=SubgraphType.induced,
        disjoint=disjoint,
    )
    reference = naive(graph, 2, trees=disjoint)
    expected = reference.sample({"item": seeds})
    every = reference.induced(expected)
    expected.edges = {key: [edge[:2] for edge in held] for key, held in every.items()}
    expected.places = {key: [edge[2] for edge in held] for key, held in every.items()}
    assert_batch(graph, batch, expected, trees=disjoint, counted=False)
    assert "num_sampled_nodes" not in batch["item"]


def test_bidirectional_edges_go_both_ways_once(tmp_path: Path) -> None:
    graph = club(tmp_path)
    ds = open_dataset(tmp_path)
    options: dict[str, Any] = {"batch_size": 30, "seed": 4}
    for one, both in zip(
        NeighborLoader(ds, [3, 2], **options),
        NeighborLoader(ds, [3, 2], subgraph_type="bidirectional", **options),
        strict=True,
    ):
        assert both.n_id.tolist() == one.n_id.tolist()
        pairs = set(zip(*one.edge_index.tolist(), strict=True))
        pairs |= {(column, row) for row, column in pairs}
        found = list(zip(*both.edge_index.tolist(), strict=True))
        assert found == sorted(pairs, key=lambda pair: (pair[1], pair[0]))
        known = set(one.e_id.tolist())
        assert set(both.e_id.tolist()) <= known
        np.testing.assert_array_equal(both.w, graph.edges[FRIENDS].arrays["w"][both.e_id])
        assert "num_sampled_edges" not in both and "num_sampled_nodes" not in both


def test_bidirectional_edges_of_types_stand_for_two(tmp_path: Path) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    options: dict[str, Any] = {"input_nodes": "user", "batch_size": 20, "seed": 4}
    one = next(iter(NeighborLoader(ds, [3, 2], **options)))
    both = next(iter(NeighborLoader(ds, [3, 2], subgraph_type="bidirectional", **options)))

    def pairs(batch: HeteroData, key: Any) -> set[tuple[int, int]]:
        return set(zip(*batch[key].edge_index.tolist(), strict=True))

    reverse = {(column, row) for row, column in pairs(one, LIKED)}
    assert pairs(both, BUYS) == pairs(one, BUYS) | reverse
    assert pairs(both, KNOWS) == pairs(one, KNOWS) | {(c, r) for r, c in pairs(one, KNOWS)}
    assert "e_id" not in both[BUYS] and "w" not in both[BUYS] and "x" in both["user"]


def test_the_numbers_of_edges_in_the_input_are_told_where_they_are_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges, values = rng.integers(0, 40, (2, 300)), rng.random(300, dtype=np.float32)
    ds = build_dataset(
        tmp_path / "d",
        edges=edges,
        num_nodes=40,
        edge_features={"w": values},
        edge_ids=True,
    )
    for batch in NeighborLoader(ds, [4, 4], batch_size=10):
        sources, targets = batch.n_id[batch.edge_index].numpy()
        np.testing.assert_array_equal(edges[:, batch.e_id], [sources, targets])
        np.testing.assert_array_equal(values[batch.e_id], batch.w)
        assert batch.e_id.dtype == torch.int64


def test_finite_fan_outs_choose_real_edges(tmp_path: Path) -> None:
    graph = market(tmp_path)
    for options in ({}, {"replace": True}, {"disjoint": True}, {"weight_attr": "w"}):
        loader = NeighborLoader(
            open_dataset(tmp_path), [3, 2], "user", batch_size=25, shuffle=True, **options
        )
        for batch in loader:
            for key in graph.edges:
                real_edges(graph, batch, key)
                first = batch[key].edge_index[1][: batch[key].num_sampled_edges[0]]
                assert not len(first) or int(np.bincount(first).max()) <= 3


def test_arrays_are_chosen_by_type_and_name(tmp_path: Path) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)

    def held(**options: Any) -> tuple[list[Any], list[Any]]:
        batch = next(iter(NeighborLoader(ds, [2], "user", **options)))
        nodes = [type for type in batch.node_types if "x" in batch[type]]
        edges = [
            (key[1], n) for key in batch.edge_types for n in ("w", "a", "t") if n in batch[key]
        ]
        return nodes, edges

    assert held(features={"item": ["x"]}, edge_features=[]) == (["item"], [])
    assert held(features=[], edge_features=["a"]) == ([], [("buys", "a"), ("liked_by", "a")])
    assert held(features="x", edge_features={KNOWS: "w"}) == (["user", "item"], [("knows", "w")])


def test_what_was_sampled_can_be_changed_before_rows_are_read(tmp_path: Path) -> None:
    graph = market(tmp_path)

    def first_users(out: HeteroSamplerOutput) -> HeteroSamplerOutput:
        assert isinstance(out, HeteroSamplerOutput)
        assert out.metadata[0].tolist() == out.node["user"][:5].tolist()
        out.node["user"] = out.node["user"][:5]
        return out

    loader = NeighborLoader(
        open_dataset(tmp_path), [2], "user", batch_size=5, transform_sampler_output=first_users
    )
    for batch in loader:
        np.testing.assert_array_equal(
            batch["user"].x, graph.node_arrays["user"]["x"][batch["user"].input_id]
        )
    club(tmp_path / "club")
    kinds = []
    loader = NeighborLoader(
        open_dataset(tmp_path / "club"),
        [2],
        batch_size=120,
        transform_sampler_output=lambda out: kinds.append(type(out)) or out,
    )
    assert len(list(loader)) == 1 and kinds == [SamplerOutput]


def test_a_loader_called_with_places_makes_their_batch(tmp_path: Path) -> None:
    graph = market(tmp_path)
    loader = NeighborLoader(open_dataset(tmp_path), [-1], ("item", torch.arange(10, 40)))
    batch = loader(torch.tensor([3, 0, 29]))
    assert_batch(graph, batch, naive(graph, 1).sample({"item": [13, 10, 39]}))
    assert batch["item"].input_id.tolist() == [3, 0, 29]
    with pytest.raises(InputError, match="inputs are out of range: the first is 30"):
        loader([30])


def test_seeds_keep_the_names_they_are_given(tmp_path: Path) -> None:
    club(tmp_path)
    loader = NeighborLoader(
        open_dataset(tmp_path), [1], [5, 6, 7], input_id=torch.tensor([50, 60, 70]), batch_size=2
    )
    assert [batch.input_id.tolist() for batch in loader] == [[50, 60], [70]]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"input_nodes": None}, "input_nodes names no node type.*user, item"),
        ({"input_nodes": "shop"}, "node type 'shop', which there is not.*one of: user, item"),
        ({"input_nodes": ("user", [70])}, "70 at position 0, and there are 70 nodes"),
        ({"input_nodes": ("user", [1], 2)}, "no pair of a node type and ids"),
        ({"num_neighbors": {BUYS: [1]}}, "no fan-outs for edge type"),
        ({"num_neighbors": {BUYS: [1], LIKED: [1], KNOWS: [1, 1]}}, "different lengths"),
        ({"num_neighbors": {("a", "b", "c"): [1]}}, "no edge type"),
        ({"time_attr": "t"}, "nodes of type 'user' have no 't'.*input_time"),
        ({"time_attr": "when", "input_time": torch.arange(70)}, "'when'"),
        ({"input_time": torch.arange(70)}, "input_time is given, and no time_attr"),
        ({"time_attr": "t", "input_time": torch.arange(3)}, "3 entries for 70 input nodes"),
        ({"weight_attr": "x"}, "'x'"),
        ({"subgraph_type": "upwards"}, "no subgraph_type 'upwards'.*directional, bidirectional"),
        ({"temporal_strategy": "first"}, "temporal_strategy='first'"),
        ({"features": {"shop": ["x"]}}, "no node type 'shop'"),
        ({"features": {"user": ["y"]}}, "no node array is called 'y'"),
        ({"edge_features": ["q"]}, "no edge array is called 'q'"),
        ({"input_id": torch.arange(3)}, "input_id has 3 entries"),
    ],
)
def test_what_does_not_fit_the_types_is_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    market(tmp_path)
    chosen = {"num_neighbors": [2], "input_nodes": "user", **options}
    with pytest.raises(InputError, match=told):
        NeighborLoader(open_dataset(tmp_path), **chosen)
