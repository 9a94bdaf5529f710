from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.relabel import (
    enter_seeds,
    first_places,
    keep_known,
    move_entries,
    relabel,
    relabel_in_trees,
)


def table(slots: int, *, graph_sized: bool = False) -> tuple[np.ndarray, int]:
    shift = 64 if graph_sized else 64 - (slots.bit_length() - 1)
    return np.full((slots, 2), -1, dtype=np.int64), shift


def naive(seeds: list[int], values: list[int]) -> tuple[list[int], list[int]]:
    local: dict[int, int] = {}
    for place, seed in enumerate(seeds):
        local.setdefault(seed, place)
    fresh: list[int] = []
    for value in values:
        if value not in local:
            local[value] = len(seeds) + len(fresh)
            fresh.append(value)
    return [local[value] for value in values], fresh


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("graph_sized", [False, True])
def test_ids_follow_the_order_of_discovery(dtype: type, graph_sized: bool) -> None:
    rng = np.random.default_rng(4)
    seeds = rng.integers(0, 1000, 60)
    values = rng.integers(0, 1000, 700).astype(dtype)
    held, shift = table(1024 if graph_sized else 2048, graph_sized=graph_sized)
    enter_seeds(held, shift, seeds)
    local_ids, fresh = np.full(700, -1), np.full(700, -1)
    found = relabel(held, shift, values, local_ids, fresh, (60, 0, 1000))
    expected_ids, expected_fresh = naive(seeds.tolist(), values.tolist())
    assert local_ids.tolist() == expected_ids
    assert fresh[:found].tolist() == expected_fresh


def test_colliding_ids_in_a_full_table_stay_apart() -> None:
    held, shift = table(8)
    ids = np.arange(0, 8 * 2**40, 2**40)
    enter_seeds(held, shift, ids)
    local_ids = np.empty(8, dtype=np.int64)
    assert relabel(held, shift, ids[::-1].copy(), local_ids, ids.copy(), (8, 0, 2**60)) == 0
    assert local_ids.tolist() == list(range(7, -1, -1))


def test_a_grown_table_knows_what_the_old_one_knew() -> None:
    old, shift = table(4)
    enter_seeds(old, shift, np.array([900, 7]))
    held, shift = table(64)
    move_entries(old, held, shift)
    local_ids, fresh = np.empty(3, np.int64), np.empty(3, np.int64)
    found = relabel(held, shift, np.array([7, 8, 900]), local_ids, fresh, (2, 0, 1000))
    assert (found, local_ids.tolist(), fresh[0]) == (1, [1, 2, 0], 8)


@pytest.mark.parametrize("bad", [-1, 10])
def test_a_value_that_is_no_node_is_told_apart(bad: int) -> None:
    held, shift = table(16)
    out = np.empty((2, 3), dtype=np.int64)
    assert relabel(held, shift, np.array([0, bad, 1]), out[0], out[1], (0, 0, 10)) == -2


def test_nodes_of_different_trees_stay_apart() -> None:
    held, shift = table(64)
    ids, trees = np.full(8, -1), np.full(8, -1, np.int32)
    ids[:2], trees[:2] = [5, 5], [0, 3]
    enter_seeds(held, shift, np.array([0 * 10 + 5, 3 * 10 + 5]))
    values, columns = np.array([5, 5, 7, 7, 7], np.int32), np.array([0, 1, 1, 0, 1])
    local_ids = np.full(5, -1)
    found = relabel_in_trees(
        held, shift, (values, columns, trees), local_ids, (ids, trees), (2, 10)
    )
    assert found == 4 and local_ids.tolist() == [0, 1, 2, 3, 2]
    assert ids[:4].tolist() == [5, 5, 7, 7] and trees[:4].tolist() == [0, 3, 3, 0]


@pytest.mark.parametrize("bad", [-1, 10])
def test_a_value_that_is_no_node_of_any_tree_is_told_apart(bad: int) -> None:
    held, shift = table(16)
    values, columns = np.array([0, bad, 1]), np.zeros(3, np.int64)
    trees = np.zeros(4, np.int32)
    edges, nodes = (values, columns, trees), (np.zeros(4, np.int64), trees)
    assert relabel_in_trees(held, shift, edges, np.empty(3, np.int64), nodes, (1, 10)) == -2


def test_repeats_are_told_from_first_places() -> None:
    held, shift = table(16)
    seeds = np.array([4, 9, 4, 1, 9])
    enter_seeds(held, shift, seeds)
    is_first = np.zeros(4, np.bool_)
    first_places(held, shift, seeds[1:], 1, is_first)
    assert is_first.tolist() == [True, False, True, False]


@pytest.mark.parametrize("with_places", [False, True])
def test_edges_between_known_nodes_are_kept(with_places: bool) -> None:
    held, shift = table(16)
    enter_seeds(held, shift, np.array([20, 21, 35]))  # nodes 0 and 1 of tree 2, 5 of tree 3
    extents, trees = np.array([[4, 7], [9, 9], [9, 11]]), np.array([2, 2, 3], np.int32)
    sources = np.array([1, 5, 0, 1, 5], np.int32)
    times, limits = np.array([0, 0, 8, 0, 0]), np.array([8, 0, 9])
    rows, columns = np.full(6, -1), np.full(6, -1)
    places = np.full(6 if with_places else 0, -1)
    targets, edges = (extents, 30, trees, 10), (sources, times, limits)
    assert keep_known(held, shift, targets, edges, (rows, columns, places), 1) == 4
    assert rows[1:4].tolist() == [1, 0, 2] and columns[1:4].tolist() == [30, 30, 32]
    assert places[1:4].tolist() == ([4, 6, 10] if with_places else [])
    limits[0] = 7
    assert keep_known(held, shift, targets, edges, (rows, columns, places), 1) == 3
    sources[3] = 10
    assert keep_known(held, shift, targets, edges, (rows, columns, places), 1) == -4
