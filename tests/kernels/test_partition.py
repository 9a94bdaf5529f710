from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.open_blocks import FREE, FULL
from overspill.kernels.partition import (
    LARGEST_SOURCE,
    LARGEST_TARGET,
    LOOPS,
    scatter_edges,
)


def scatter(
    sources: list[int],
    targets: list[int],
    *,
    dtype: type = np.int32,
    spare: int = 3,
    limit: int = 8,
) -> tuple[int, dict[int, list[tuple[int, int]]], np.ndarray]:
    """Four ranges of two targets from base 0, blocks of two edges."""
    pool = np.full((4 + spare, 2, 2), -7, dtype)
    opened, fill = np.arange(4), np.zeros(4, np.int64)
    free = np.concatenate([np.arange(4, 4 + spare), np.zeros(4, np.int64)])
    full, ranges = np.zeros(4 + spare, np.int64), np.zeros(4 + spare, np.int64)
    state = np.array([spare, 0, -1, -1, 0])
    edges = np.array(sources, np.int64), np.array(targets, np.int64), np.empty(0, np.int64)
    no_hubs = np.full(1, -1), np.zeros((1, 4), np.int64)
    tables = opened, fill, free, full, ranges
    at = scatter_edges((*edges, 0), (1, 0, limit, limit, 0), pool, tables, no_hubs, state)
    found: dict[int, list[tuple[int, int]]] = {index: [] for index in range(4)}
    for place in range(state[FULL]):
        found[int(ranges[place])] += [tuple(pair) for pair in pool[full[place]].tolist()]
    for index in range(4):
        found[index] += [tuple(pair) for pair in pool[opened[index], : fill[index]].tolist()]
    return at, found, state


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_each_edge_lands_in_its_range_in_order(dtype: type) -> None:
    rng = np.random.default_rng(3)
    sources, targets = rng.integers(0, 8, 9).tolist(), rng.integers(0, 8, 9).tolist()
    at, found, state = scatter(sources, targets, dtype=dtype, spare=9)
    assert at == 9
    for index in range(4):
        wanted = [(s, t) for s, t in zip(sources, targets, strict=True) if t // 2 == index]
        assert found[index] == wanted
    assert state[LARGEST_SOURCE] == max(sources) and state[LARGEST_TARGET] == max(targets)


def test_it_counts_edges_between_a_number_and_itself() -> None:
    at, _, state = scatter([1, 2, 3, 3], [1, 3, 3, 3], spare=9)
    assert (at, state[LOOPS]) == (4, 3)


def test_it_stops_when_the_last_free_block_is_taken() -> None:
    at, found, state = scatter([1] * 20, [0] * 20, spare=3)
    assert at == 6 and state[FREE] == 0 and state[FULL] == 3
    assert found[0] == [(1, 0)] * 6


@pytest.mark.parametrize(("source", "target"), [(-1, 0), (8, 0), (0, -1), (0, 8), (2**40, 0)])
def test_it_stops_before_an_edge_out_of_range(source: int, target: int) -> None:
    at, found, state = scatter([1, source, 2], [1, target, 2])
    assert at == 1 and found[0] == [(1, 1)] and found[1] == []
    assert state[LARGEST_SOURCE] == 1 and state[LARGEST_TARGET] == 1
