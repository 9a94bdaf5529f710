from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.csr import LONG_ROW, place_edges, sort_rows


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("edges", [0, 1, 500])
def test_placing_equals_a_stable_sort(dtype: type, edges: int) -> None:
    rng = np.random.default_rng(edges)
    pairs = np.stack([rng.integers(0, 99, edges), rng.integers(40, 60, edges)], 1).astype(dtype)
    ends, indices = np.full(20, -5), np.full(edges, -5, np.int32)
    place_edges(pairs, 40, ends, indices)
    order = np.argsort(pairs[:, 1], kind="stable")
    assert np.array_equal(indices, pairs[order, 0])
    assert np.array_equal(ends, np.cumsum(np.bincount(pairs[:, 1] - 40, minlength=20)))


@pytest.mark.parametrize("spread", [1, 5, 10**6])
def test_rows_of_every_length_are_sorted(spread: int) -> None:
    lengths = [0, 1, 2, 24, 25, 300, 0, LONG_ROW, LONG_ROW + 1, 3]
    ends = np.cumsum(lengths)
    values = np.random.default_rng(4).integers(0, spread, ends[-1]).astype(np.int32)
    indices = values.copy()
    listed = np.zeros(len(values) // LONG_ROW + 1, np.int64)
    assert sort_rows(ends, indices, listed) == 1 and listed[0] == 8
    for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        part = slice(end - length, end)
        wanted = values[part] if row == 8 else np.sort(values[part])
        assert np.array_equal(indices[part], wanted), row


def test_room_for_long_rows_suffices_at_the_most() -> None:
    lengths = [LONG_ROW + 1] * 5
    ends = np.cumsum(lengths)
    listed = np.zeros(int(ends[-1]) // LONG_ROW + 1, np.int64)
    assert sort_rows(ends, np.zeros(ends[-1], np.int32), listed) == 5
    assert listed[:5].tolist() == [0, 1, 2, 3, 4]
