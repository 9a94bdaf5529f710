from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.translate import rank_ids

CASES = {
    "dense": np.arange(100),
    "sparse": np.unique(np.random.default_rng(5).integers(-(10**6), 10**6, 300)),
    "clustered": np.concatenate([np.arange(200), [10**9]]),
    "one": np.array([-4]),
    "whole range": np.array([-(2**63), -1, 0, 2**63 - 1]),
}


def rank(raw: np.ndarray, ids: np.ndarray, block_ids: int) -> tuple[int, np.ndarray]:
    order = np.argsort(raw)
    blocks = np.searchsorted(ids[::block_ids], raw[order], "right") - 1
    ranks = np.full(len(raw), -7)
    return rank_ids(raw, order, blocks, ids, block_ids, ranks), ranks


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("block_ids", [1, 7, 512])
def test_ranks_equal_searchsorted(name: str, block_ids: int) -> None:
    ids = CASES[name]
    raw = np.random.default_rng(6).choice(ids, 500)
    taken, ranks = rank(raw, ids, block_ids)
    assert taken == 500 and np.array_equal(ranks, np.searchsorted(ids, raw))


@pytest.mark.parametrize("stranger", [-1, 5, 11, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("block_ids", [1, 2, 512])
def test_an_unknown_id_has_no_rank(stranger: int, block_ids: int) -> None:
    ids = np.array([0, 2, 4, 6, 10])
    found, ranks = rank(np.array([4, stranger, 0, stranger]), ids, block_ids)
    assert found == 2 and ranks.tolist() == [2, -1, 0, -1]


def test_only_the_places_asked_for_are_filled() -> None:
    ids = np.arange(0, 2000, 2)
    raw, order = np.array([8, 1600, 10, 4]), np.array([3, 1])
    ranks = np.full(4, -1)
    assert rank_ids(raw, order, raw[order] // 1024, ids, 512, ranks) == 2
    assert ranks.tolist() == [-1, 800, -1, 2]
