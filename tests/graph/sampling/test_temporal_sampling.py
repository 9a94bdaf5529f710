from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from overspill.errors import FormatError, InputError, NoRoomError
from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import SampleLimit, SamplingSpec, candidates
from overspill.graph.streams import stream_key
from statistics_of import inclusion_p_value, single_p_value, subset_p_value, successive_draws
from typed_graphs import (
    NaiveSampler,
    assert_equal,
    everything_of,
    places_of,
    shop,
    single,
    trees_of,
    write_typed,
)

TO = ("node", "to", "node")
KEY = stream_key(23)
SURE = 1e-3


def timed(fan_outs: tuple[int, ...], **options: object) -> SamplingSpec:
    return SamplingSpec(
        num_neighbors={TO: fan_outs},
        edge_places=True,
        time="t",
        **options,  # type: ignore[arg-type]
    )


def drawn(path: Path, spec: SamplingSpec, rows: int, time: int) -> np.ndarray:
    sampled = (
        open_dataset(path)
        .sampler(spec)
        .sample(np.zeros(rows, np.int64), key=KEY, seed_times=np.full(rows, time))
    )
    return np.array(places_of(sampled)).reshape(rows, -1)


@pytest.mark.parametrize("node_times", [False, True])
def test_all_that_came_before_equals_the_reference(tmp_path: Path, node_times: bool) -> None:
    graph = shop(tmp_path, node_times=node_times)
    follow = {key: [True] * 3 for key in graph.edges}
    seeds = {"item": [3, 3, 70], "user": [11]}
    times = [10, -30, 49, 0]
    expected = NaiveSampler(graph, follow, time="t").sample(seeds, times)
    for strategy, fan_out in itertools.product(("uniform", "last"), (-1, 10_000)):
        spec = SamplingSpec(
            num_neighbors={key: (fan_out,) * 3 for key in graph.edges},
            edge_places=True,
            time="t",
            temporal_strategy=strategy,  # type: ignore[arg-type]
        )
        sampled = (
            open_dataset(tmp_path)
            .sampler(spec)
            .sample(
                {name: np.array(ids) for name, ids in seeds.items()},
                key=KEY,
                seed_times={"item": np.array(times[:3]), "user": np.array(times[3:])},
            )
        )
        assert_equal(sampled, expected, trees=True)
        assert sum(map(sum, sampled.edges_per_hop.values())) > 50


def test_seeds_without_times_have_those_of_their_nodes(tmp_path: Path) -> None:
    graph = shop(tmp_path, node_times=True)
    key = ("user", "buys", "item")
    spec = SamplingSpec(num_neighbors={key: (-1, -1)}, edge_places=True, time="t")
    seeds = list(range(30))
    times = graph.node_arrays["item"]["t"][:30].tolist()
    sampled = open_dataset(tmp_path).sampler(spec).sample(np.arange(30), key=KEY)
    naive = NaiveSampler(graph, {key: [True, True]}, time="t")
    assert_equal(sampled, naive.sample({"item": seeds}, times), trees=True)


@pytest.mark.parametrize("replace", [False, True])
def test_the_most_recent_are_taken_and_of_equals_the_later_place(
    tmp_path: Path, replace: bool
) -> None:
    single(tmp_path, [8], t=np.array([1, 7, 3, 9, 7, 8, 6, 6]))
    for fan_out, expected in ((1, [4]), (2, [1, 4]), (3, [1, 4, 7])):
        spec = timed((fan_out,), temporal_strategy="last", replace=replace)
        picks = drawn(tmp_path, spec, 40, 7)
        if replace:
            assert picks.shape == (40, fan_out) and set(picks.ravel().tolist()) == set(expected)
        else:
            assert (picks == expected).all()


def test_times_at_the_ends_of_int64_are_in_order(tmp_path: Path) -> None:
    low, high = -(2**63), 2**63 - 1
    single(tmp_path, [4], t=np.array([high, low, 0, low + 1]))
    spec = timed((2,), temporal_strategy="last")
    assert drawn(tmp_path, spec, 1, high).tolist() == [[0, 2]]
    assert drawn(tmp_path, spec, 1, low + 1).tolist() == [[1, 3]]
    assert drawn(tmp_path, spec, 1, low).tolist() == [[1]]


def test_what_came_before_is_drawn_uniformly(tmp_path: Path) -> None:
    times = np.arange(90) % 3
    single(tmp_path, [90], t=times)
    allowed = np.flatnonzero(times <= 1)
    for fan_out in (3, 40):
        picks = drawn(tmp_path, timed((fan_out,)), 4000, 1)
        assert np.isin(picks, allowed).all() and (np.diff(picks, axis=1) > 0).all()
        assert inclusion_p_value(np.searchsorted(allowed, picks), 60) > SURE
        # The same test tells a sampler that prefers the last edges a little.
        skewed = np.random.default_rng(1).random((4000, 60)) * np.linspace(1, 1.4, 60)
        assert inclusion_p_value(np.argsort(skewed, axis=1)[:, -fan_out:], 60) < SURE


def test_what_came_before_is_drawn_uniformly_with_replacement(tmp_path: Path) -> None:
    times = np.array([5, 0, 9, 3, 0, 4])
    single(tmp_path, [6], t=times)
    picks = drawn(tmp_path, timed((7,), replace=True), 4000, 4)
    assert picks.shape == (4000, 7)
    assert single_p_value(picks, (times <= 4).tolist()) > SURE


@pytest.mark.parametrize("replace", [False, True])
def test_weights_count_among_what_came_before(tmp_path: Path, replace: bool) -> None:
    times, weights = np.array([5, 0, 9, 3, 0, 4]), np.array([9.0, 1, 9, 4, 0, 2])
    single(tmp_path, [6], t=times, w=weights)
    picks = drawn(tmp_path, timed((2,), weight="w", replace=replace), 20_000, 4)
    usable = np.where(times <= 4, weights, 0).tolist()
    if replace:
        assert single_p_value(picks, usable) > SURE
    else:
        assert subset_p_value(picks, successive_draws(usable, 2)) > SURE


def test_as_many_as_are_wanted_come_whole_though_one_weighs_nothing(tmp_path: Path) -> None:
    single(tmp_path, [5], t=np.array([1, 9, 1, 1, 9]), w=np.array([0.0, 1, 2, 3, 4]))
    assert drawn(tmp_path, timed((3,), weight="w"), 5, 1).tolist() == [[0, 2, 3]] * 5
    assert drawn(tmp_path, timed((2,), weight="w"), 5, 1).tolist() == [[2, 3]] * 5


WAYS: list[dict[str, object]] = [
    {},
    {"replace": True},
    {"temporal_strategy": "last"},
    {"temporal_strategy": "last", "replace": True},
    {"weight": "w"},
    {"weight": "w", "replace": True},
]


@pytest.mark.parametrize("node_times", [False, True])
def test_neither_groups_nor_pieces_of_rows_change_the_outcome(
    tmp_path: Path, node_times: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = shop(tmp_path, node_times=node_times)
    fans = {key: (2, -1 if key[0] == "tag" else 3) for key in graph.edges}
    dataset = open_dataset(tmp_path)
    seeds = {"item": np.arange(20), "user": np.array([3, 3, 50])}
    times = {"item": np.arange(20) * 2, "user": np.array([40, -40, 0])}
    whole = candidates.MOST_EDGES
    for options in WAYS:
        spec = SamplingSpec(num_neighbors=fans, edge_places=True, time="t", **options)  # type: ignore[arg-type]
        taken = []
        for most in (whole, 1, 4, 37):
            monkeypatch.setattr(candidates, "MOST_EDGES", most)
            sampled = dataset.sampler(spec).sample(seeds, key=KEY, seed_times=times)
            taken.append([*everything_of(sampled), trees_of(sampled, "user")])
        assert all(other == taken[0] for other in taken), options


def test_a_place_draws_the_same_whatever_stands_beside_it(tmp_path: Path) -> None:
    single(tmp_path, [50, 50], t=np.zeros(100, np.int64))
    sampler = open_dataset(tmp_path).sampler(timed((5,)))
    first = places_of(sampler.sample(np.array([0, 1]), key=KEY, seed_times=np.zeros(2, np.int64)))
    other = places_of(sampler.sample(np.array([1, 1]), key=KEY, seed_times=np.zeros(2, np.int64)))
    assert first[5:] == other[5:] and [place + 50 for place in first[:5]] == other[:5]


def test_times_that_are_none_are_refused(tmp_path: Path) -> None:
    single(tmp_path, [3], t=np.arange(3))
    sampler = open_dataset(tmp_path).sampler(timed((2,)))
    whole = np.zeros(2, np.int64)
    for times, message in (
        (None, "no times were given for the seeds"),
        (np.zeros(2), "are float64"),
        (np.zeros(2, np.bool_), "are bool"),
        (np.zeros((2, 1), np.int64), r"are int64 \(2, 1\)"),
        (np.zeros(3, np.int64), "3 times for 2 seeds"),
        ({"elsewhere": whole}, "no times were given"),
        ({"node": whole, "b": whole}, "times of seeds of types"),
    ):
        with pytest.raises(InputError, match=message):
            sampler.sample(np.array([0, 0]), key=KEY, seed_times=times)  # type: ignore[arg-type]


def test_times_for_a_sampler_without_are_refused(tmp_path: Path) -> None:
    single(tmp_path, [3], t=np.arange(3))
    sampler = open_dataset(tmp_path).sampler([2])
    with pytest.raises(InputError, match="knows no times"):
        sampler.sample(np.array([0]), key=KEY, seed_times=np.array([1]))


def test_a_source_that_is_no_node_is_an_error_where_its_time_is_wanted(tmp_path: Path) -> None:
    edges = {TO: (np.array([1, 77]), np.zeros(2, np.int64), {})}
    write_typed(tmp_path, {"node": (3, {"t": np.arange(3)})}, edges)
    sampler = open_dataset(tmp_path).sampler(timed((1,)))
    with pytest.raises(FormatError, match="id 77 lies outside"):
        sampler.sample(np.array([0]), key=KEY)


@pytest.mark.parametrize("most", [2, candidates.MOST_EDGES])
def test_only_edges_that_are_taken_count_against_the_limit(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "MOST_EDGES", most)
    single(tmp_path, [9], t=np.arange(9))
    dataset = open_dataset(tmp_path)
    for limit, fits in ((4, True), (3, False)):
        sampler = dataset.sampler(timed((-1,)), limit=SampleLimit(100, limit))
        if fits:
            times = np.array([3])
            assert sampler.sample(np.array([0]), key=KEY, seed_times=times).num_edges() == 4
            continue
        with pytest.raises(NoRoomError, match="4 edges where memory was planned for 3"):
            sampler.sample(np.array([0]), key=KEY, seed_times=np.array([3]))
