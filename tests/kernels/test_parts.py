from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overspill.kernels.parts import (
    find_hashed,
    find_ranges,
    place_picks,
    scatter_rows,
    sort_by_group,
)
from overspill.kernels.route import hash_nodes
from overspill.kernels.words import WORDS

SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(sum)


@given(SIZES, st.integers(0, 2**32))
def test_ranges_are_found_whatever_the_order_and_past_empty_parts(
    sizes: list[int], seed: int
) -> None:
    expected = np.repeat(np.arange(len(sizes)), sizes)
    ids = np.random.default_rng(seed).integers(0, expected.size, 50)
    parts = np.full(50, 99, np.uint32)
    find_ranges(ids, np.cumsum(sizes), parts)
    np.testing.assert_array_equal(parts, expected[ids])


def test_hashes_are_those_that_nodes_were_scattered_by() -> None:
    expected, parts = np.empty(1000, np.uint32), np.empty(1000, np.uint32)
    hash_nodes(5, 7, expected)
    ids = np.random.default_rng(0).permutation(1000)
    find_hashed(ids + 5, 7, parts)
    np.testing.assert_array_equal(parts, expected[ids])
    assert set(expected.tolist()) == set(range(7))


@given(
    st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 3), min_size=5, max_size=5)
)
def test_positions_come_by_group_and_in_order_within(parts: list[int], groups: list[int]) -> None:
    held, group_of = np.array(parts, np.uint32), np.array(groups, np.int64)
    starts, order = np.zeros(5, np.int64), np.full(held.size, -1)
    sort_by_group(held, group_of, starts, order)
    for group in range(4):
        mine = order[starts[group] : starts[group + 1]].tolist()
        assert mine == [place for place, part in enumerate(parts) if groups[part] == group]
    assert (starts[0], starts[4]) == (0, held.size)


def test_rows_go_to_their_places_and_no_others_are_touched() -> None:
    for word in WORDS:
        rows = np.arange(12, dtype=word).reshape(4, 3)
        out = np.full((6, 3), 77, word)
        scatter_rows(rows, np.array([5, 0, 2, 4]), out)
        np.testing.assert_array_equal(out[[5, 0, 2, 4]], rows)
        assert (out[[1, 3]] == 77).all()


def test_picks_of_several_machines_are_put_together_in_the_order_of_the_frontier() -> None:
    counts = np.array([2, 0, 1, 3])
    begins = np.cumsum(counts) - counts
    for with_places in (True, False):
        places = np.full(6 * with_places, -1)
        columns, sources = np.full(6, -1), np.full(6, -1, np.int32)
        for positions, picked in (([1, 3], [40, 41, 42]), ([0, 2], [10, 11, 30])):
            mine = np.array(positions)
            sent = np.array(picked if with_places else [], np.int32)
            place_picks(
                (mine, 100),
                counts[mine].astype(np.uint32),
                begins,
                (sent, np.array(picked, np.int32) + 1),
                (places, columns, sources),
            )
        assert columns.tolist() == [100, 100, 102, 103, 103, 103]
        assert sources.tolist() == [11, 12, 31, 41, 42, 43]
        assert places.tolist() == ([10, 11, 30, 40, 41, 42] if with_places else [])
