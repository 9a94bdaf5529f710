from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overspill.errors import FormatError, NoRoomError
from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import SampleLimit, SamplingSpec, candidates
from overspill.graph.streams import stream_key
from small_graphs import random_graph
from typed_graphs import NaiveSampler, edges_of, nodes_of, places_of, shop, trees_of, write_typed

KEY = stream_key(5)


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"time": "t"}])
@pytest.mark.parametrize("node_times", [False, True])
def test_all_edges_between_the_nodes_come_once(
    tmp_path: Path, node_times: bool, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = shop(tmp_path, node_times=node_times)
    fans = {key: (-1, 0) if key[1] == "buys" else (-1, -1) for key in graph.edges}
    spec = SamplingSpec(num_neighbors=fans, induced=True, edge_places=True, **options)  # type: ignore[arg-type]
    seeds, times = {"item": [8, 40, 8], "user": [2]}, [30, -5, 0, 49]
    given = {"item": np.array(times[:3]), "user": np.array(times[3:])}
    follow = {key: [fan != 0 for fan in held] for key, held in fans.items()}
    time = "t" if "time" in options else None
    naive = NaiveSampler(graph, follow, trees=bool(options), time=time)
    expected = naive.sample(seeds, times)
    for most in (candidates.MOST_EDGES, 1, 5):
        monkeypatch.setattr(candidates, "MOST_EDGES", most)
        sampled = (
            open_dataset(tmp_path)
            .sampler(spec)
            .sample(
                {name: np.array(ids) for name, ids in seeds.items()},
                key=KEY,
                seed_times=given if time else None,
            )
        )
        assert sampled.nodes_per_hop == expected.nodes_per_hop
        for name in graph.counts:
            assert nodes_of(sampled, name) == expected.nodes[name]
            assert not options or trees_of(sampled, name) == expected.trees[name]
        for key, edges in naive.induced(expected).items():
            assert edges_of(sampled, key) == [edge[:2] for edge in edges]
            assert places_of(sampled, key) == [edge[2] for edge in edges]
            assert sampled.edges_per_hop[key] == [len(edges)]
    found = sum(map(len, naive.induced(expected).values()))
    assert found > sum(map(len, expected.edges.values())) or options


def test_nodes_are_sampled_as_without_and_places_are_not_needed(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    dataset = open_dataset(tmp_path)
    fans = {("node", "to", "node"): (4, 3)}
    plain = dataset.sampler(SamplingSpec(num_neighbors=fans)).sample(np.arange(9), key=KEY)
    nodes = nodes_of(plain)
    sampler = dataset.sampler(SamplingSpec(num_neighbors=fans, induced=True))
    sampled = sampler.sample(np.arange(9), key=KEY)
    assert nodes_of(sampled) == nodes
    held = set(nodes)
    expected = sorted((u, v) for v in nodes for u in graph.in_neighbors(v) if u in held)
    assert sorted((nodes[row], nodes[column]) for row, column in edges_of(sampled)) == expected


def test_the_limit_holds_for_the_edges_that_are_kept(tmp_path: Path) -> None:
    random_graph(tmp_path)
    dataset = open_dataset(tmp_path)
    spec = SamplingSpec(num_neighbors={("node", "to", "node"): (2, 2)}, induced=True)
    count = dataset.sampler(spec).sample(np.arange(60), key=KEY).num_edges()
    dataset.sampler(spec, limit=SampleLimit(400, count)).sample(np.arange(60), key=KEY)
    with pytest.raises(NoRoomError, match=f"where memory was planned for {count - 1}"):
        dataset.sampler(spec, limit=SampleLimit(400, count - 1)).sample(np.arange(60), key=KEY)


def test_a_source_that_is_no_node_is_an_error_though_it_was_not_sampled(tmp_path: Path) -> None:
    edges = {("n", "r", "n"): (np.array([1, 60]), np.array([0, 1]), {})}
    write_typed(tmp_path, {"n": (3, {})}, edges)
    spec = SamplingSpec(num_neighbors={("n", "r", "n"): (-1,)}, induced=True)
    sampler = open_dataset(tmp_path).sampler(spec)
    with pytest.raises(FormatError, match="id 60 lies outside"):
        sampler.sample(np.array([0]), key=KEY)
