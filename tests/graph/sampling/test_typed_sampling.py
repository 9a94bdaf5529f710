from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from confined import make_cold
from overspill.errors import FormatError, InputError, NoRoomError, StaleFileError
from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import SampleLimit, SamplingSpec, fan_outs_for
from overspill.graph.streams import stream_key
from typed_graphs import (
    Key,
    NaiveSampler,
    TypedGraph,
    assert_equal,
    edges_of,
    everything_of,
    nodes_of,
    places_of,
    shop,
    trees_of,
    write_typed,
)

KEY = stream_key(3)
BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")
BOUGHT, MARKS = ("item", "bought_by", "user"), ("tag", "marks", "item")


def all_of(graph: TypedGraph, hops: int, **options: object) -> SamplingSpec:
    fans = {key: (-1,) * hops for key in graph.edges}
    return SamplingSpec(num_neighbors=fans, edge_places=True, **options)  # type: ignore[arg-type]


def followed(spec: SamplingSpec) -> dict[Key, list[bool]]:
    return {key: [fan != 0 for fan in fans] for key, fans in spec.num_neighbors.items()}


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("cold", [False, True])
def test_all_neighbours_of_all_types_equal_the_reference(
    tmp_path: Path, disjoint: bool, cold: bool
) -> None:
    graph = shop(tmp_path)
    if cold:
        make_cold(*(path for path in tmp_path.iterdir() if path.suffix != ".json"))
    spec = all_of(graph, 3, disjoint=disjoint)
    sampler = open_dataset(tmp_path).sampler(spec)
    naive = NaiveSampler(graph, followed(spec), trees=disjoint)
    for seeds in (
        {"item": [5, 80, 5]},
        {"user": [1], "tag": [0, 3]},
        {"item": [7], "user": [7, 8]},
    ):
        sampled = sampler.sample({name: np.array(ids) for name, ids in seeds.items()}, key=KEY)
        assert_equal(sampled, naive.sample(seeds), trees=disjoint)


def test_fan_outs_of_their_own_decide_what_each_type_follows(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    fans = {BUYS: (-1, 0, -1), KNOWS: (0, -1, 0), BOUGHT: (0, 0, -1), MARKS: (0, -1, 0)}
    spec = SamplingSpec(num_neighbors=fans, edge_places=True)
    sampled = open_dataset(tmp_path).sampler(spec).sample({"item": np.arange(9)}, key=KEY)
    assert_equal(sampled, NaiveSampler(graph, followed(spec)).sample({"item": list(range(9))}))


@given(data=st.data())
@hypothesis_settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_small_typed_graph_equals_the_reference(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    counts = {name: data.draw(st.integers(1, 6)) for name in "ab"}
    edges = {}
    for key in (("a", "r", "b"), ("b", "s", "a"), ("a", "t", "a")):
        ends = st.tuples(st.integers(0, counts[key[0]] - 1), st.integers(0, counts[key[2]] - 1))
        held = np.array(data.draw(st.lists(ends, max_size=14)), np.int64).reshape(-1, 2)
        edges[key] = held[:, 0], held[:, 1], {"t": np.arange(len(held)) % 5}
    graph = write_typed(
        tmp_path_factory.mktemp("graph"), {name: (counts[name], {}) for name in counts}, edges
    )
    seeds = {
        name: data.draw(st.lists(st.integers(0, counts[name] - 1), max_size=4)) for name in "ba"
    }
    total = sum(map(len, seeds.values()))
    times = data.draw(st.none() | st.lists(st.integers(-1, 5), min_size=total, max_size=total))
    trees = data.draw(st.booleans())
    spec = all_of(graph, 2, disjoint=trees, time=None if times is None else "t")
    given_times = None
    if times is not None:
        given_times = {
            "b": np.array(times[: len(seeds["b"])], np.int64),
            "a": np.array(times[len(seeds["b"]) :], np.int64),
        }
    sampled = (
        open_dataset(graph.path)
        .sampler(spec)
        .sample(
            {name: np.array(ids, np.int64) for name, ids in seeds.items()},
            key=KEY,
            seed_times=given_times,
        )
    )
    naive = NaiveSampler(graph, followed(spec), trees=trees, time=spec.time)
    assert_equal(sampled, naive.sample(seeds, times), trees=spec.in_trees)


def test_trees_share_nothing_and_are_counted_over_all_seeds(tmp_path: Path) -> None:
    shop(tmp_path)
    dataset = open_dataset(tmp_path)
    spec = SamplingSpec(
        num_neighbors=fan_outs_for(dataset, [3, 2]), disjoint=True, edge_places=True
    )
    seeds = {"user": np.array([4, 4, 9]), "item": np.array([2])}
    sampled = dataset.sampler(spec).sample(seeds, key=KEY)
    assert trees_of(sampled, "user")[:3] == [0, 1, 2] and trees_of(sampled, "item")[0] == 3
    for name in dataset.node_types:
        held = list(zip(trees_of(sampled, name), nodes_of(sampled, name), strict=True))
        assert len(set(held)) == len(held)
    for key in dataset.edge_types:
        sources, targets = trees_of(sampled, key[0]), trees_of(sampled, key[2])
        assert all(sources[row] == targets[column] for row, column in edges_of(sampled, key))


@pytest.mark.parametrize("replace", [False, True])
def test_places_name_the_edges_that_were_taken(tmp_path: Path, replace: bool) -> None:
    graph = shop(tmp_path)
    dataset = open_dataset(tmp_path)
    spec = SamplingSpec(
        num_neighbors=fan_outs_for(dataset, [3, 2]), replace=replace, edge_places=True
    )
    sampled = dataset.sampler(spec).sample({"item": np.arange(20)}, key=KEY)
    taken = 0
    for key, rows in graph.edges.items():
        sources, targets = nodes_of(sampled, key[0]), nodes_of(sampled, key[2])
        for (row, column), place in zip(
            edges_of(sampled, key), places_of(sampled, key), strict=True
        ):
            assert rows.indices[place] == sources[row] and place in rows.places(targets[column])
            taken += 1
    assert taken > 100


def test_each_edge_type_draws_for_itself(tmp_path: Path) -> None:
    star = np.arange(1, 41), np.zeros(40, np.int64), {}
    edges = {("n", name, "n"): star for name in "ab"}
    write_typed(tmp_path, {"n": (41, {})}, edges)
    dataset = open_dataset(tmp_path)
    spec = SamplingSpec(num_neighbors=fan_outs_for(dataset, [6]), edge_places=True)
    alone = SamplingSpec(num_neighbors={("n", "b", "n"): (6,)}, edge_places=True)
    sampled = dataset.sampler(spec).sample(np.array([0]), key=KEY)
    second = places_of(sampled, ("n", "b", "n"))
    assert places_of(sampled, ("n", "a", "n")) != second
    # What one type draws does not depend on which others are followed.
    assert places_of(dataset.sampler(alone).sample(np.array([0]), key=KEY)) == second


def test_buffers_hold_nothing_of_the_batch_before(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    dataset = open_dataset(tmp_path)
    fresh, used = (dataset.sampler(all_of(graph, 2, disjoint=True)) for _ in range(2))
    used.sample({"tag": np.arange(5), "user": np.arange(50)}, key=KEY)
    seeds = {"item": np.array([3])}
    expected = everything_of(fresh.sample(seeds, key=KEY))
    assert everything_of(used.sample(seeds, key=KEY)) == expected


def test_a_single_edge_type_between_two_node_types_takes_seeds_of_its_target(
    tmp_path: Path,
) -> None:
    graph = shop(tmp_path)
    sampler = open_dataset(tmp_path).sampler([-1], BUYS)
    sampled = sampler.sample(torch.tensor([5, 6]), key=KEY)  # type: ignore[arg-type]
    assert nodes_of(sampled, "item") == [5, 6]
    assert sampled.num_edges() == sum(len(graph.edges[BUYS].places(node)) for node in (5, 6))


def test_seeds_that_are_none_are_refused(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    sampler = open_dataset(tmp_path).sampler(all_of(graph, 1))
    for seeds, message in (
        (np.arange(3), "which node type"),
        ({"shop": np.arange(3)}, "no node type 'shop'"),
        ({"tag": np.array([0, 7])}, "1 of 2 seeds of node type 'tag' are out of range"),
        ({"tag": np.array([-1])}, "the first is -1"),
        ({"tag": np.array([0.5])}, "whole numbers"),
    ):
        with pytest.raises(InputError, match=message):
            sampler.sample(seeds, key=KEY)  # type: ignore[arg-type]
        assert nodes_of(sampler.sample({"tag": np.array([6])}, key=KEY), "tag") == [6]


def test_what_was_not_asked_for_is_refused_with_what_to_do(tmp_path: Path) -> None:
    shop(tmp_path)
    sampled = open_dataset(tmp_path).sampler([1], BUYS).sample(np.arange(3), key=KEY)
    out = np.empty(sampled.num_edges(), np.int64)
    with pytest.raises(InputError, match="edge_places=True"):
        sampled.write_edge_places(out)
    with pytest.raises(InputError, match="disjoint=True"):
        sampled.write_trees(out, "item")
    with pytest.raises(InputError, match=r"no node type was named.*user, item, tag"):
        sampled.num_nodes()
    with pytest.raises(InputError, match="no edge type"):
        sampled.num_edges(KNOWS)


def test_the_limit_counts_all_types_together(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    dataset = open_dataset(tmp_path)
    seeds = {"user": np.arange(10), "item": np.arange(10)}
    spec = all_of(graph, 2)
    whole = dataset.sampler(spec).sample(seeds, key=KEY)
    nodes = sum(map(sum, whole.nodes_per_hop.values()))
    edges = sum(map(sum, whole.edges_per_hop.values()))
    fitting = dataset.sampler(spec, limit=SampleLimit(nodes, edges))
    assert everything_of(fitting.sample(seeds, key=KEY)) == everything_of(whole)
    for limit, what in ((SampleLimit(nodes - 1, edges), "nodes"), (SampleLimit(99, 40), "edges")):
        with pytest.raises(NoRoomError, match=f"{what} where memory was planned for"):
            dataset.sampler(spec, limit=limit).sample(seeds, key=KEY)


@pytest.mark.parametrize("disjoint", [False, True])
def test_a_source_that_is_no_node_is_an_error_and_no_crash(tmp_path: Path, disjoint: bool) -> None:
    sources = np.array([1, 90, 2])
    edges = {("a", "r", "b"): (sources, np.zeros(3, np.int64), {})}
    write_typed(tmp_path, {"a": (5, {}), "b": (3, {})}, edges)
    spec = SamplingSpec(num_neighbors={("a", "r", "b"): (-1,)}, disjoint=disjoint)
    sampler = open_dataset(tmp_path).sampler(spec)
    with pytest.raises(FormatError, match=r"id 90 lies outside the graph's 5 and 3 nodes"):
        sampler.sample(np.array([0]), key=KEY)


def test_a_file_that_changed_is_found_whichever_it_is(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    spec = all_of(graph, 1, weight="w", time="t")
    sampler = open_dataset(tmp_path).sampler(spec)
    sampler.check_unchanged()
    for name in ("user-buys-item.a.w", "user-knows-user.a.t", "tag-marks-item.indices"):
        path, aside = tmp_path / name, tmp_path / "aside"
        path.rename(aside)
        with pytest.raises(StaleFileError):
            sampler.check_unchanged()
        aside.rename(path)
    sampler.check_unchanged()


def test_a_specification_survives_pickling(tmp_path: Path) -> None:
    spec = all_of(shop(tmp_path), 2, weight="w", time="t")
    assert pickle.loads(pickle.dumps(spec)) == spec
