from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.translate import rank_ids


def rank(raw: np.ndarray, ids: np.ndarray, shift: int) -> tuple[int, np.ndarray]:
    lowest, reach = int(ids[0]), int(ids[-1]) - int(ids[0])
    starts = [lowest + (k << shift) for k in range((reach >> shift) + 1)]
    spans = np.append(np.searchsorted(ids, np.array(starts)), len(ids))
    ranks = np.full(len(raw), -1)
    return rank_ids(raw, ids, spans, shift, ranks), ranks


CASES = {
    "dense": np.arange(100),
    "sparse": np.unique(np.random.default_rng(5).integers(-(10**6), 10**6, 300)),
    "clustered": np.concatenate([np.arange(200), [10**9]]),
    "one": np.array([-4]),
    "whole range": np.array([-(2**63), -1, 0, 2**63 - 1]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bits", [0, 3, 8])
def test_ranks_equal_searchsorted(name: str, bits: int) -> None:
    ids = CASES[name]
    reach = int(ids[-1]) - int(ids[0])
    shift = max(0, reach.bit_length() - bits)
    if shift == 64:  # one span: the kernel shifts by 63 at most
        shift = 63
    raw = np.random.default_rng(6).choice(ids, 500)
    taken, ranks = rank(raw, ids, shift)
    assert taken == 500 and np.array_equal(ranks, np.searchsorted(ids, raw))


@pytest.mark.parametrize("stranger", [-1, 5, 11, 2**63 - 1, -(2**63)])
def test_it_stops_at_an_unknown_id(stranger: int) -> None:
    ids = np.array([0, 2, 4, 6, 10])
    taken, ranks = rank(np.array([4, stranger, 0]), ids, 1)
    assert taken == 1 and ranks[0] == 2
