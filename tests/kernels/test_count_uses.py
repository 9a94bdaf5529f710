"""Counting ids of a range."""

from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.count_uses import count_ids


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_of_the_range_are_counted(dtype: type) -> None:
    ids = np.random.default_rng(0).integers(0, 50, 1000).astype(dtype)
    counts = np.zeros(20, np.uint32)
    count_ids(ids, 10, counts)
    assert counts.tolist() == np.bincount(ids, minlength=50)[10:30].tolist()
    count_ids(ids, 10, counts)  # goes on from what is there
    assert counts.tolist() == (2 * np.bincount(ids, minlength=50)[10:30]).tolist()


def test_counters_do_not_turn_over() -> None:
    counts = np.array([2**32 - 2, 0], np.uint32)
    count_ids(np.array([0, 0, 0, 1]), 0, counts)
    assert counts.tolist() == [2**32 - 1, 1]
