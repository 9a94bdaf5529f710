from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.sample import mixed
from overspill.kernels.sample_ranked import (
    ALLOWED,
    HELD,
    LEAST_WEIGHT,
    TALLY,
    cut_group,
    draw_sorted,
    end_draws,
    find_draws,
    first_bad_weight,
    keep_allowed,
    list_candidates,
    rank_piece,
    redraw,
    row_state,
    settle_row,
    sum_piece,
)

NO_WEIGHTS, NO_TIMES = np.empty(0, np.float64), np.empty(0, np.int64)
KEY = np.uint64(9)


def state(local: int = 0) -> np.uint64:
    return np.uint64(row_state(KEY, local))


def extents(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def ranked(
    candidates: tuple[np.ndarray, np.ndarray],
    cuts: list[int],
    *,
    fan_out: int,
    last: bool = False,
    limit: int = 0,
    local: int = 0,
) -> tuple[list[int], np.ndarray]:
    """Feed a row in pieces that end at the cuts."""
    heap = np.empty(fan_out, np.int64), np.empty(fan_out, np.int64)
    tally = np.zeros(TALLY, np.int64)
    for first, end in zip([0, *cuts], cuts, strict=False):
        part = tuple(held[first:end] for held in candidates)
        rule = (fan_out, last, limit)
        rank_piece((0, end - first, first), state(local), rule, part, heap, tally)
    count = settle_row(heap, fan_out, candidates[0].size > 0, tally)
    return heap[1][:count].tolist(), tally


@pytest.mark.parametrize(
    ("most", "replace", "ends"),
    [
        (10, False, [3, 4, 6]),
        (4, False, [1, 2, 3, 4, 6]),
        (100, False, [6]),
        (10, True, [2, 3, 4, 6]),
    ],
)
def test_groups_hold_as_many_edges_as_fit_and_one_destination_at_least(
    most: int, replace: bool, ends: list[int]
) -> None:
    held = extents((0, 4), (4, 7), (7, 10), (10, 40), (40, 42), (42, 44))
    found = [0]
    while found[-1] < len(held):
        found.append(cut_group(held, found[-1], 5, replace, most))
    assert found[1:] == ends


def test_candidates_are_listed_row_by_row_but_for_those_taken_whole() -> None:
    held = extents((2, 4), (4, 4), (9, 12))
    out = np.full(9, -1)
    assert list_candidates(held, -1, out) == 5 and out[:5].tolist() == [2, 3, 9, 10, 11]
    assert list_candidates(held, 2, out) == 3 and out[:3].tolist() == [9, 10, 11]


@pytest.mark.parametrize("bad", [-1e-300, 1e-310, 5e-324, np.nan, np.inf, -np.inf])
def test_the_first_weight_that_is_none_is_found(bad: float) -> None:
    assert first_bad_weight(np.array([0.0, 1e308, bad, -5.0])) == 2
    assert first_bad_weight(np.array([0.0, -0.0, 1e308, LEAST_WEIGHT])) == -1


def test_what_is_not_too_late_is_kept_in_order() -> None:
    picks = np.full(6, -1), np.full(6, -1)
    times = np.array([3, 9, 4, 5])
    assert keep_allowed((1, 4, 70, 6), 5, (NO_WEIGHTS, times), picks, 2) == 4
    assert picks[0].tolist() == [-1, -1, 71, 72, -1, -1] and picks[1][2:4].tolist() == [6, 6]
    weights = np.zeros(2)
    assert keep_allowed((0, 2, 70, 6), -9, (weights, NO_TIMES), picks, 0) == 2
    assert picks[0].tolist() == [70, 71, 71, 72, -1, -1]


@pytest.mark.parametrize("kind", ["uniform", "weighted", "last"])
@pytest.mark.parametrize("fan_out", [1, 7, 199, 400])
def test_the_heap_keeps_the_best_however_the_row_is_cut(fan_out: int, kind: str) -> None:
    rng = np.random.default_rng(2)
    weights = rng.random(200) + 0.1 if kind == "weighted" else NO_WEIGHTS
    times = rng.integers(0, 30, 200)
    candidates = weights, times
    options = {"fan_out": fan_out, "last": kind == "last", "limit": 20}
    whole, tally = ranked(candidates, [200], **options)  # type: ignore[arg-type]
    pieces, _ = ranked(candidates, [1, 2, 50, 51, 199, 200], **options)  # type: ignore[arg-type]
    allowed = np.flatnonzero(times <= 20)
    assert whole == pieces == sorted(whole)
    assert set(whole) <= set(allowed.tolist())
    assert len(whole) == min(fan_out, len(allowed)) == tally[HELD]
    assert tally[ALLOWED] == len(allowed)
    if kind == "last":
        order = sorted(allowed.tolist(), key=lambda place: (times[place], place))
        assert whole == sorted(order[-fan_out:])


def test_weight_zero_loses_to_every_weight_and_fills_what_is_left() -> None:
    weights = np.array([0.0, 2e-300, 0.0, 1e300, LEAST_WEIGHT])
    assert ranked((weights, NO_TIMES), [5], fan_out=3)[0] == [1, 3, 4]
    assert ranked((weights, NO_TIMES), [5], fan_out=4)[0] == [1, 3, 4]
    assert ranked((weights, NO_TIMES), [5], fan_out=5)[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cuts", [[6], [1, 3, 6], [1, 2, 3, 4, 5, 6]])
def test_draws_fall_where_the_running_sum_passes_them(cuts: list[int]) -> None:
    weights, times = np.array([1.0, 0, 2, 8, 4, 0]), np.array([0, 0, 0, 9, 0, 0])
    sums, tally = np.zeros(2), np.zeros(TALLY, np.int64)
    spans = list(zip([0, *cuts], cuts, strict=False))
    for first, end in spans:
        sum_piece((0, end - first, first), 5, (weights[first:end], times[first:end]), sums)
    assert sums[0] == 7
    points = np.array([0.0, 0.5, 1.0, 2.9, 3.0, 6.9, 7.0])
    places = np.full(7, -1)
    for first, end in spans:
        part = weights[first:end], times[first:end]
        find_draws((0, end - first, first), 5, part, (sums, points), tally, places)
    assert places.tolist() == [0, 0, 2, 2, 4, 4, -1]
    end_draws(tally, places)
    assert places[6] == 4  # not the edge of weight 0 behind it


def test_draws_are_in_order_and_within_the_sum() -> None:
    points = np.empty(1000)
    draw_sorted(state(), np.array([3.0, 0]), points)
    assert (np.diff(points) >= 0).all() and points[0] >= 0 and points[-1] < 3
    assert 1.4 < points.mean() < 1.6
    other = np.empty(1000)
    draw_sorted(state(1), np.array([3.0, 0]), other)
    assert (points != other).any()


def test_redrawing_takes_among_the_given_places_alone() -> None:
    out = np.full(300, -1)
    redraw(state(), 3, 300, np.array([4, 7, 9, 11]), out)
    assert set(out.tolist()) == {4, 7, 9}


@pytest.mark.parametrize("fan_out", [1, 5, 60])
def test_those_who_stay_are_those_that_arrive_first(fan_out: int) -> None:
    weights = np.random.default_rng(4).lognormal(0, 3, 2000)
    with np.errstate(over="ignore"):
        places = np.arange(1, 2001, dtype=np.uint64)
        bits = getattr(mixed, "py_func", mixed)(state() + np.uint64(0x9E3779B97F4A7C15) * places)
    unit = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    expected = np.sort(np.argsort(-np.log(unit) / weights)[:fan_out])
    assert ranked((weights, NO_TIMES), [2000], fan_out=fan_out)[0] == expected.tolist()


def test_the_least_weights_race_fairly() -> None:
    weights = LEAST_WEIGHT * np.array([8.0, 1, 1, 1, 1])
    drawn = [ranked((weights, NO_TIMES), [5], fan_out=1, local=n)[0][0] for n in range(3000)]
    counts = np.bincount(drawn, minlength=5)
    wanted = 3000 * np.array([8, 1, 1, 1, 1]) / 12
    assert ((counts - wanted) ** 2 / wanted).sum() < 18.5  # chi-square of 4 degrees, 0.1%
