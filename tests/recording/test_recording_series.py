"""Rows in bounded memory: against a naive merge of the same samples."""

from __future__ import annotations

import numpy as np
import pytest

from overspill.recording.fields import LEVELS, column, held
from overspill.recording.series import Series
from recorded import row


def samples(count: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        anon, clean = random.integers(0, 1000, 2).tolist()
        found.append(
            row(
                anon_bytes=anon,
                clean_file_bytes=clean,
                elapsed_ns=10 * number,
                read_bytes=3 * number,
            )
        )
    return found


def naive(given: list[np.ndarray], stride: int) -> np.ndarray:
    """Groups of a stride: the levels of the one that held the most, the counters of the last."""
    rows = []
    for start in range(0, len(given), stride):
        group = given[start : start + stride]
        # Of several that held the same, merging in pairs keeps the latest.
        fullest = max(reversed(group), key=lambda one: int(held(one)))
        merged = group[-1].copy()
        merged[: len(LEVELS)] = fullest[: len(LEVELS)]
        rows.append(merged)
    return np.array(rows)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 1000])
def test_rows_merge_in_pairs_as_they_fill_the_room(count: int) -> None:
    series, given = Series(capacity=8), samples(count)
    for one in given:
        series.append(one)
    stride = 1
    while -(-count // stride) > 8:
        stride *= 2
    assert series.samples_a_row == stride
    expected = naive(given, stride)
    found = series.rows()
    assert (found[0] == given[0]).all()
    assert (found[1:] == (expected[1:] if stride == 1 else expected)).all()
    assert len(found) <= 9


def test_the_fullest_moment_and_the_last_counts_survive_days() -> None:
    series, given = Series(capacity=16), samples(5000, seed=1)
    for one in given:
        series.append(one)
    found = series.rows()
    assert held(found).max() == max(int(held(one)) for one in given)
    assert column(found, "read_bytes")[-1] == column(given[-1], "read_bytes")
    assert (np.diff(column(found, "elapsed_ns")) > 0).all()
    found[:] = 0
    assert series.rows().any()  # a copy
