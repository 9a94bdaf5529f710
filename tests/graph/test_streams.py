from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from overspill.graph.streams import shuffled_positions, stream_key


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000, 4097])
def test_the_positions_of_an_epoch_are_a_permutation(count: int) -> None:
    key = stream_key(3, 1)
    whole = shuffled_positions(0, count, count=count, key=key)
    assert sorted(whole.tolist()) == list(range(count))
    cut = [
        shuffled_positions(i, min(i + 7, count), count=count, key=key) for i in range(0, count, 7)
    ]
    assert np.concatenate(cut).tolist() == whole.tolist()


def test_a_permutation_of_a_huge_range_takes_memory_for_what_is_asked() -> None:
    places = shuffled_positions(10**12 - 5, 10**12, count=10**12, key=stream_key(0))
    assert len(set(places.tolist())) == 5
    assert places.min() >= 0 and places.max() < 10**12


def test_every_position_is_as_likely_at_every_place() -> None:
    drawn = [shuffled_positions(0, 3, count=10, key=stream_key(7, e)) for e in range(4000)]
    for place in np.array(drawn).T:
        assert stats.chisquare(np.bincount(place, minlength=10)).pvalue > 0.001
    first, second = np.array(drawn).T[:2]
    pairs = np.bincount(first * 10 + second, minlength=100).reshape(10, 10)
    assert stats.chisquare(pairs[~np.eye(10, dtype=bool)]).pvalue > 0.001


def test_keys_tell_their_parts_and_order_apart() -> None:
    keys = {int(stream_key(a, b, c)) for a in range(6) for b in range(6) for c in range(6)}
    assert len(keys) == 216
    assert stream_key(-1) == stream_key(2**64 - 1) != stream_key(1)
