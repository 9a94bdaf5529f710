from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from overspill.kernels.sample import (
    SCANNED_PICKS,
    count_each,
    count_picks,
    pick_edges,
    pick_edges_apart,
)
from statistics_of import inclusion_p_value, single_p_value


def picked(
    extents: list[tuple[int, int]], fan_out: int, *, replace: bool = False, key: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    held = np.array(extents, dtype=np.int64).reshape(-1, 2)
    count = count_picks(held, fan_out, replace, 1 << 40)
    assert count >= 0
    positions, columns = np.full(count, -7), np.full(count, -7)
    scratch = np.zeros(1 << (2 * max(fan_out, SCANNED_PICKS) - 1).bit_length(), dtype=np.int64)
    pick_edges(held, fan_out, replace, (np.uint64(key), 0), scratch, (positions, columns))
    return positions, columns


@pytest.mark.parametrize("fan_out", [-1, 5, 6, 2**31 - 1])
def test_a_fan_out_of_the_degree_or_more_gives_every_edge_once_in_order(fan_out: int) -> None:
    held = np.array([(3, 8), (8, 8), (8, 9)], dtype=np.int64)
    assert count_picks(held, fan_out, False, 9) == 6
    positions, columns = np.empty((2, 6), dtype=np.int64)
    scratch = np.empty(64, dtype=np.int64)
    pick_edges(held, fan_out, False, (np.uint64(0), 10), scratch, (positions, columns))
    assert positions.tolist() == [3, 4, 5, 6, 7, 8]
    assert columns.tolist() == [10] * 5 + [12]


@pytest.mark.parametrize("fan_out", [1, 4, SCANNED_PICKS, SCANNED_PICKS + 1, 90, 199])
def test_without_replacement_no_edge_comes_twice(fan_out: int) -> None:
    extents = [(100 * i, 100 * i + 200) for i in range(50)]
    positions, columns = picked(extents, fan_out)
    for i, (start, end) in enumerate(extents):
        mine = positions[columns == i]
        assert len(mine) == fan_out == len(set(mine.tolist()))
        assert mine.min() >= start and mine.max() < end


def test_with_replacement_the_fan_out_is_drawn_whatever_the_degree() -> None:
    positions, columns = picked([(0, 2), (2, 2), (2, 50)], 9, replace=True)
    assert columns.tolist() == [0] * 9 + [2] * 9
    assert set(positions[:9].tolist()) == {0, 1}
    assert all(2 <= p < 50 for p in positions[9:].tolist())


@pytest.mark.parametrize(("fan_out", "replace"), [(5, False), (40, False), (5, True)])
def test_every_edge_is_as_likely_as_any_other(fan_out: int, replace: bool) -> None:
    degree, destinations = 61, 20_000
    positions, _ = picked([(0, degree)] * destinations, fan_out, replace=replace, key=11)
    picks = positions.reshape(destinations, fan_out)
    if replace:
        assert 0.001 < single_p_value(picks, [1] * degree) < 0.999
    else:
        assert 0.001 < inclusion_p_value(picks, degree) < 0.999


def test_the_tests_tell_a_sampler_that_is_a_little_off() -> None:
    # Floyd's method, had it left out that a repeated pick becomes the top of the range.
    rng = np.random.default_rng(3)
    tops = np.arange(56, 61)
    off = np.stack([rng.integers(0, top, 20_000) for top in tops], axis=1)
    assert inclusion_p_value(off, 61) < 0.001
    # Ranges drawn by modulo from eight bits.
    assert single_p_value(rng.integers(0, 256, 100_000) % 61, [1] * 61) < 0.001


def test_every_subset_is_as_likely_as_any_other() -> None:
    positions, _ = picked([(0, 5)] * 30_000, 2, key=5)
    pairs = np.sort(positions.reshape(-1, 2), axis=1) @ np.array([5, 1])
    _, seen = np.unique(pairs, return_counts=True)
    assert len(seen) == 10
    assert stats.chisquare(seen).pvalue > 0.001


def test_a_destinations_draws_depend_on_key_and_place_alone() -> None:
    extents = [(0, 1000)] * 6
    whole, _ = picked(extents, 7, key=3)
    held = np.array(extents[4:], dtype=np.int64)
    part, columns = np.empty((2, 14), dtype=np.int64)
    pick_edges(held, 7, False, (np.uint64(3), 4), np.empty(64, np.int64), (part, columns))
    assert part.tolist() == whole[28:].tolist()
    assert picked(extents, 7, key=4)[0].tolist() != whole.tolist()
    assert whole[:7].tolist() != whole[7:14].tolist()


@pytest.mark.parametrize("extent", [(-1, 3), (5, 4), (0, 101), (0, 2**32)])
def test_an_extent_outside_the_edges_is_told_apart(extent: tuple[int, int]) -> None:
    held = np.array([(0, 100), extent], dtype=np.int64)
    assert count_picks(held, 3, False, 100 if extent[1] < 2**32 else 2**33) == -2


@pytest.mark.parametrize("fan_out", [-1, 0, 3, SCANNED_PICKS + 8])
@pytest.mark.parametrize("replace", [False, True])
def test_destinations_draw_the_same_wherever_they_are_sampled(fan_out: int, replace: bool) -> None:
    ends = np.cumsum(np.random.default_rng(0).integers(0, 90, 41))
    extents = np.stack([ends[:-1], ends[1:]], axis=1)
    together, columns = picked(extents.tolist(), fan_out, replace=replace, key=9)
    counts = np.full(40, 99, np.uint32)
    count_each(extents, fan_out, replace, counts)
    np.testing.assert_array_equal(counts, np.bincount(columns, minlength=40))
    scratch = np.zeros(1 << 10, np.int64)
    for mine in (np.arange(0, 40, 3), np.array([7]), np.arange(39, -1, -1)):
        apart = np.full(int(counts[mine].sum()), -7)
        stream = (np.uint64(9), mine)
        pick_edges_apart(extents[mine], fan_out, replace, stream, scratch, apart)
        expected = [together[columns == place] for place in mine]
        np.testing.assert_array_equal(apart, np.concatenate(expected))
