from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import stats
from torch_geometric.utils import k_hop_subgraph

from confined import make_cold
from overspill.errors import FormatError, InputError, NoRoomError
from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import node_lists, sampler
from overspill.graph.sampling.sampled import SampledNeighborhood
from overspill.graph.sampling.sampler import SampleLimit
from overspill.graph.streams import stream_key
from small_graphs import (
    SmallGraph,
    compress,
    full_neighborhood,
    random_graph,
    write_graph,
)
from typed_graphs import edges_of, nodes_of

KEY = stream_key(0)


def assert_full(graph: SmallGraph, sampled: SampledNeighborhood, seeds: list[int]) -> None:
    (edges_per_hop,) = sampled.edges_per_hop.values()
    expected = full_neighborhood(graph, seeds, len(edges_per_hop))
    assert nodes_of(sampled) == expected.nodes
    assert edges_of(sampled) == expected.edges
    assert sampled.nodes_per_hop == {"node": expected.nodes_per_hop}
    assert edges_per_hop == expected.edges_per_hop


@pytest.mark.parametrize("hops", [1, 2, 4])
@pytest.mark.parametrize("cold", [False, True])
def test_all_neighbours_equal_the_reference(tmp_path: Path, hops: int, cold: bool) -> None:
    graph = random_graph(tmp_path)
    if cold:
        make_cold(tmp_path / "indptr", tmp_path / "indices")
    sampler = open_dataset(tmp_path).sampler([-1] * hops)
    for start in (0, 130, 395):
        seeds = list(range(start, min(start + 20, 400)))
        assert_full(graph, sampler.sample(np.array(seeds), key=KEY), seeds)


def test_all_neighbours_equal_the_subgraph_that_pyg_names(tmp_path: Path) -> None:
    graph = random_graph(tmp_path, num_edges=900)
    targets = np.repeat(np.arange(400), np.diff(graph.indptr))
    edge_index = torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))
    seeds = torch.tensor([5, 100, 17, 399])
    subset, kept, _, _ = k_hop_subgraph(seeds, 3, edge_index, num_nodes=400, directed=True)
    sampled = open_dataset(tmp_path).sampler([-1, -1, -1]).sample(seeds.numpy(), key=KEY)
    nodes = nodes_of(sampled)
    assert sorted(nodes) == subset.tolist()
    named = sorted((nodes[row], nodes[column]) for row, column in edges_of(sampled))
    assert named == sorted(zip(*kept.tolist(), strict=True))


@pytest.mark.parametrize("replace", [False, True])
def test_sampled_edges_are_edges_and_fan_outs_bound_them(tmp_path: Path, replace: bool) -> None:
    graph = random_graph(tmp_path)
    degrees = np.diff(graph.indptr)
    sampler = open_dataset(tmp_path).sampler([4, 3], replace=replace)
    seeds = np.arange(50, 90)
    sampled = sampler.sample(seeds, key=stream_key(9))
    nodes = nodes_of(sampled)
    assert nodes[:40] == seeds.tolist() and len(set(nodes)) == len(nodes)
    bounds = np.cumsum([0, *sampled.nodes_per_hop["node"]])
    (per_hop,) = sampled.edges_per_hop.values()
    cuts = np.cumsum([0, *per_hop])
    ends = np.array(edges_of(sampled)).T
    for hop, fan_out in enumerate((4, 3)):
        rows, columns = ends[:, cuts[hop] : cuts[hop + 1]]
        assert ((bounds[hop] <= columns) & (columns < bounds[hop + 1])).all()
        for local in range(bounds[hop], bounds[hop + 1]):
            mine = rows[columns == local]
            degree = degrees[nodes[local]]
            full = fan_out if replace and degree else min(fan_out, degree)
            assert len(mine) == full
            assert {nodes[row] for row in mine.tolist()} <= set(graph.in_neighbors(nodes[local]))


def test_neighbours_are_uniform_through_files_and_labels(tmp_path: Path) -> None:
    graph = write_graph(tmp_path, *compress(np.arange(1, 24), np.zeros(23, int), 24))
    sampler = open_dataset(tmp_path).sampler([6])
    seen = np.zeros(24)
    for turn in range(4000):
        sampled = sampler.sample(np.array([0]), key=stream_key(2, turn))
        seen[nodes_of(sampled)[1:]] += 1
    assert len(graph.indices) == 23 and seen[0] == 0
    scaled = ((seen[1:] - seen.sum() / 23) ** 2).sum() / (seen.sum() / 23 * (1 - 6 / 23)) * 22 / 23
    assert 0.001 < stats.chi2.sf(scaled, 22) < 0.999


def test_the_key_alone_decides_whatever_was_sampled_before(tmp_path: Path) -> None:
    random_graph(tmp_path)
    dataset = open_dataset(tmp_path)
    first, second = dataset.sampler([5, 5]), dataset.sampler([5, 5])
    seeds = np.arange(30)
    first.sample(np.arange(200, 300), key=stream_key(77))
    expected = second.sample(seeds, key=stream_key(1))
    again = first.sample(seeds, key=stream_key(1))
    assert nodes_of(again) == nodes_of(expected) and edges_of(again) == edges_of(expected)
    plain = first.sample(seeds, key=int(stream_key(1)))  # type: ignore[arg-type]
    assert edges_of(plain) == edges_of(expected)
    assert edges_of(second.sample(seeds, key=stream_key(2))) != edges_of(plain)


def test_repeated_seeds_keep_their_places(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    seeds = [7, 3, 7, 7, 3]
    sampled = open_dataset(tmp_path).sampler([-1, -1]).sample(np.array(seeds), key=KEY)
    assert_full(graph, sampled, seeds)
    assert nodes_of(sampled)[:5] == seeds


@pytest.mark.parametrize("chunk", [3, 64])
def test_a_growing_table_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(sampler, "_CHUNK", chunk)
    monkeypatch.setattr(node_lists, "_FEWEST_SLOTS", 2)
    graph = random_graph(tmp_path, num_nodes=5000, num_edges=9000)
    growing = open_dataset(tmp_path).sampler([-1, -1, -1])
    for seeds in ([1], list(range(300)), [4999, 2]):
        assert_full(graph, growing.sample(np.array(seeds), key=KEY), seeds)


@given(data=st.data())
@hypothesis_settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_small_graph_equals_the_reference(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 12))
    node = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=40))
    seeds = data.draw(st.lists(node, min_size=1, max_size=6))
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    path = tmp_path_factory.mktemp("graph")
    graph = write_graph(path, *compress(ends[:, 0], ends[:, 1], count))
    sampled = open_dataset(path).sampler([-1, 40, -1]).sample(np.array(seeds), key=KEY)
    assert_full(graph, sampled, seeds)


def test_wide_ids_are_sampled_like_narrow_ones(tmp_path: Path) -> None:
    narrow = random_graph(tmp_path / "narrow")
    write_graph(tmp_path / "wide", narrow.indptr, narrow.indices.astype(np.int64))
    taken = [
        open_dataset(tmp_path / name).sampler([3, 2]).sample(np.arange(40), key=KEY)
        for name in ("narrow", "wide")
    ]
    assert nodes_of(taken[0]) == nodes_of(taken[1]) and edges_of(taken[0]) == edges_of(taken[1])


def test_a_graph_without_edges_gives_the_seeds_alone(tmp_path: Path) -> None:
    write_graph(tmp_path, *compress([], [], 5))
    sampled = open_dataset(tmp_path).sampler([3, -1]).sample(np.array([4, 0]), key=KEY)
    assert nodes_of(sampled) == [4, 0] and sampled.num_edges() == 0
    assert list(sampled.edges_per_hop.values()) == [[0, 0]]


def test_a_hub_gives_each_of_its_edges_once(tmp_path: Path) -> None:
    write_graph(tmp_path, *compress(np.arange(1, 200_001), np.zeros(200_000, int), 200_001))
    make_cold(tmp_path / "indptr", tmp_path / "indices")
    sampled = open_dataset(tmp_path).sampler([-1]).sample(np.array([0]), key=KEY)
    assert nodes_of(sampled) == list(range(200_001))


@pytest.mark.parametrize(
    ("limit", "what"), [(SampleLimit(60, 10**9), "nodes"), (SampleLimit(10**9, 60), "edges")]
)
def test_a_batch_beyond_its_plan_is_refused(tmp_path: Path, limit: SampleLimit, what: str) -> None:
    random_graph(tmp_path)
    sampler = open_dataset(tmp_path).sampler([-1, -1], limit=limit)
    with pytest.raises(NoRoomError, match=f"{what} where memory was planned for 60"):
        sampler.sample(np.arange(40), key=KEY)
    assert sampler.sample(np.array([399]), key=KEY).nodes_per_hop["node"][0] == 1


@pytest.mark.parametrize("damage", ["indptr", "indices"])
def test_a_damaged_topology_is_an_error_and_no_crash(tmp_path: Path, damage: str) -> None:
    graph = random_graph(tmp_path)
    sampler = open_dataset(tmp_path).sampler([-1, -1])
    (edges,) = sampler._edges
    held = edges.indptr if damage == "indptr" else edges.sources.array
    # Copy-on-write: the mapping is damaged for this process alone.
    held._payload.view(graph.indptr.dtype if damage == "indptr" else np.int32)[3:9] = 10**8
    with pytest.raises(FormatError, match=r"damaged.*400 nodes"):
        sampler.sample(np.arange(400), key=KEY)


@pytest.mark.parametrize("wrong", [-1, 400, 10**9])
def test_seeds_outside_the_graph_are_refused_by_the_sampler_itself(
    tmp_path: Path, wrong: int
) -> None:
    sampler = random_graph(tmp_path) and open_dataset(tmp_path).sampler([3])
    with pytest.raises(InputError, match=f"the first is {wrong} at position 1"):
        sampler.sample(np.array([5, wrong]), key=KEY)
    assert nodes_of(sampler.sample(np.array([5]), key=KEY))[0] == 5


def test_a_huge_fan_out_takes_what_there_is_and_no_more_memory(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    sampled = open_dataset(tmp_path).sampler([2**31 - 1]).sample(np.arange(20), key=KEY)
    assert_full(graph, sampled, list(range(20)))


def test_a_sampler_lets_go_of_its_files_at_once(tmp_path: Path) -> None:
    random_graph(tmp_path)
    sampler = open_dataset(tmp_path).sampler([3, 3])
    nodes_of(sampler.sample(np.arange(5), key=KEY))
    held = weakref.ref(sampler._edges[0].indptr)
    gc.disable()  # no cycle keeps its mappings until the next collection
    try:
        del sampler
        assert held() is None
    finally:
        gc.enable()


def test_a_large_fan_out_leaves_no_large_table_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_graph(tmp_path, num_edges=80_000)
    sizes, pick = [], sampler.pick_edges

    def recorded(*arguments: Any) -> None:
        sizes.append(arguments[4].size)
        pick(*arguments)

    monkeypatch.setattr(sampler, "pick_edges", recorded)
    held = open_dataset(tmp_path).sampler([100, 40, 3])
    held.sample(np.arange(3), key=KEY)
    held.sample(np.arange(3), key=KEY)
    # Every destination clears all of the table that it is given.
    assert sizes == [256, 128, 0] * 2
