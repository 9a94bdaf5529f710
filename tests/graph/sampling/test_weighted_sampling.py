from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from confined import make_cold
from overspill.errors import InputError
from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import SamplingSpec, candidates
from overspill.graph.sampling.sampler import NeighborSampler
from overspill.graph.streams import stream_key
from statistics_of import single_p_value, subset_p_value, successive_draws
from typed_graphs import everything_of, places_of, shop, single

TO = ("node", "to", "node")
KEY = stream_key(11)
SURE = 1e-3


def sampler_of(path: Path, fan_out: int, **options: object) -> NeighborSampler:
    spec = SamplingSpec(
        num_neighbors={TO: (fan_out,)},
        edge_places=True,
        weight="w",
        **options,  # type: ignore[arg-type]
    )
    return open_dataset(path).sampler(spec)


def drawn(path: Path, fan_out: int, rows: int, **options: object) -> np.ndarray:
    """Picks of node 0, sampled so many times: every occurrence of a seed draws for itself."""
    sampled = sampler_of(path, fan_out, **options).sample(np.zeros(rows, np.int64), key=KEY)
    return np.array(places_of(sampled)).reshape(rows, -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64])
def test_subsets_are_as_likely_as_successive_draws_make_them(tmp_path: Path, dtype: type) -> None:
    weights = np.array([1, 7, 0, 2, 4, 1], dtype)
    single(tmp_path, [6], w=weights)
    for count in (1, 2, 3):
        picks = drawn(tmp_path, count, 20_000)
        assert subset_p_value(picks, successive_draws(weights.tolist(), count)) > SURE


def test_a_sampler_that_is_a_little_off_fails_the_test_of_subsets(tmp_path: Path) -> None:
    weights = np.array([1.0, 7, 0, 2, 4, 1])
    single(tmp_path, [6], w=weights * [1, 1.15, 1, 1, 1, 1])
    expected = successive_draws(weights.tolist(), 2)
    assert subset_p_value(drawn(tmp_path, 2, 20_000), expected) < SURE
    # Independent draws of which repeats are thrown away are not successive ones either.
    rng = np.random.default_rng(0)
    ranked = np.argsort(-rng.random((20_000, 6)) * weights, axis=1)[:, :2]
    assert subset_p_value(ranked, expected) < SURE


def test_with_replacement_edges_come_in_proportion_to_their_weights(tmp_path: Path) -> None:
    weights = np.array([0.5, 0, 3, 1.25, 1e-3, 2])
    single(tmp_path, [6], w=weights)
    picks = drawn(tmp_path, 9, 6000, replace=True)
    assert picks.shape == (6000, 9)
    assert single_p_value(picks, weights.tolist()) > SURE
    assert single_p_value(picks, [0.55, 0, 3, 1.25, 1e-3, 2]) < SURE
    # Draws are independent: the first of a row says nothing about the whole.
    pairs = drawn(tmp_path, 2, 20_000, replace=True)
    both = (pairs == 2).all(axis=1).mean()
    assert abs(both - (3 / weights.sum()) ** 2) < 4 * np.sqrt(0.2 / 20_000)


def test_a_fan_out_of_the_degree_or_more_gives_every_edge_once(tmp_path: Path) -> None:
    single(tmp_path, [0, 5, 3], w=np.array([0.0, 1, 0, 9, 2, 0, 0, 0]))
    for fan_out in (5, 6, 100, -1):
        sampled = sampler_of(tmp_path, fan_out).sample(np.arange(3), key=KEY)
        assert places_of(sampled) == list(range(8))


def test_a_hub_that_is_taken_whole_is_not_read_for_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "MOST_EDGES", 2)
    single(tmp_path, [5], w=np.full(5, -1.0))
    assert places_of(sampler_of(tmp_path, 5).sample(np.array([0]), key=KEY)) == list(range(5))


@pytest.mark.parametrize(("replace", "expected"), [(False, 1), (True, 4)])
def test_edges_of_weight_zero_are_never_drawn(tmp_path: Path, replace: bool, expected: int) -> None:
    single(tmp_path, [7, 6], w=np.array([0, 0, 3.0, 0, 0, 0, 0] + [0] * 6))
    sampled = sampler_of(tmp_path, 4, replace=replace).sample(np.array([0, 1]), key=KEY)
    assert places_of(sampled) == [2] * expected


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, -np.inf])
def test_a_weight_that_is_none_is_named_with_its_edge(tmp_path: Path, weight: float) -> None:
    single(tmp_path, [2, 4], w=np.array([1, 1, 1, 1, weight, 1]))
    for replace in (False, True):
        sampler = sampler_of(tmp_path, 2, replace=replace)
        with pytest.raises(
            InputError, match=rf"edge 4 of type .* has the weight {weight}"
        ) as error:
            sampler.sample(np.array([1]), key=KEY)
        assert error.value.row == 4 and str(error.value.path).endswith("a.w")
        assert len(places_of(sampler.sample(np.array([0]), key=KEY))) == 2


@pytest.mark.parametrize("most", [3, candidates.MOST_EDGES])
def test_weights_beyond_all_sums_are_refused(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "MOST_EDGES", most)
    single(tmp_path, [4], w=np.full(4, 1e308))
    with pytest.raises(InputError, match="add up to more"):
        sampler_of(tmp_path, 2, replace=True).sample(np.array([0]), key=KEY)


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"disjoint": True}])
def test_neither_groups_nor_pieces_of_rows_change_the_outcome(
    tmp_path: Path, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = shop(tmp_path)
    spec = SamplingSpec(
        num_neighbors={key: (3, 2) for key in graph.edges},
        weight="w",
        edge_places=True,
        **options,  # type: ignore[arg-type]
    )
    make_cold(*tmp_path.glob("*.w"))
    dataset = open_dataset(tmp_path)
    seeds = {"item": np.arange(40), "user": np.array([3, 3, 50])}
    taken = []
    for most in (candidates.MOST_EDGES, 1, 4, 37):
        monkeypatch.setattr(candidates, "MOST_EDGES", most)
        taken.append(everything_of(dataset.sampler(spec).sample(seeds, key=KEY)))
    assert all(other == taken[0] for other in taken)


@pytest.mark.parametrize("fan_out", [40, 300])
def test_large_fan_outs_keep_to_the_weights(tmp_path: Path, fan_out: int) -> None:
    weights = np.where(np.arange(600) % 3 == 0, 0.0, 1.0)
    single(tmp_path, [600], w=weights)
    picks = drawn(tmp_path, fan_out, 400)
    assert (np.diff(picks, axis=1) > 0).all()
    assert not (picks % 3 == 0).any()
    seen = np.bincount(picks.ravel(), minlength=600)[weights > 0]
    expected = 400 * fan_out / 400
    assert abs(seen - expected).max() < 6 * np.sqrt(expected)


def test_edge_types_without_weights_are_drawn_uniformly(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    key = ("tag", "marks", "item")
    del graph.edges[key].arrays["w"]
    fans = {key: (2,)}
    spec = SamplingSpec(num_neighbors=fans, edge_places=True)
    expected = open_dataset(tmp_path).sampler(spec).sample({"item": np.arange(80)}, key=KEY)
    plain = places_of(expected, key)
    weighted = SamplingSpec(num_neighbors=fans, edge_places=True, weight="w")
    found = open_dataset(tmp_path).sampler(weighted).sample({"item": np.arange(80)}, key=KEY)
    assert len(places_of(found, key)) <= len(plain) and places_of(found, key) != plain
