from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.relabel import enter_seeds, move_entries, relabel


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
