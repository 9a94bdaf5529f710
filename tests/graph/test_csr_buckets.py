from __future__ import annotations

import numpy as np
import pytest

from overspill.graph import csr_buckets
from overspill.graph.csr_buckets import Buckets, cut_buckets
from overspill.kernels.radix import Levels, count_leaves

RNG = np.random.default_rng(5)


def cut(rows: np.ndarray, num_rows: int, *, edges: int, most_rows: int = 2**63 - 1) -> Buckets:
    passes = []

    def count(levels: Levels, counts: np.ndarray) -> None:
        passes.append(levels)
        count_leaves(rows, levels, counts)

    made = cut_buckets(count, num_rows, most_edges=edges, most_rows=most_rows)
    assert len(passes) <= 9  # 3 bits, then 8 a level
    return made


@pytest.mark.parametrize("num_rows", [1, 3, 300, 70_001, 2**33, 2**62])
@pytest.mark.parametrize("hub_share", [0.0, 0.6])
def test_each_row_has_one_bucket_and_none_is_too_heavy(
    num_rows: int, hub_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csr_buckets, "_CELL_BITS", 3)
    rows = RNG.integers(0, num_rows, 4000)
    rows[RNG.random(4000) < hub_share] = num_rows // 2
    buckets = cut(rows, num_rows, edges=100)
    assert buckets.firsts[0] == 0 and buckets.firsts[-1] == num_rows
    assert buckets.starts[0] == 0 and buckets.starts[-1] == 4000
    widths, sizes = np.diff(buckets.firsts), np.diff(buckets.starts)
    assert widths.min() > 0 and buckets.most_rows == widths.max()
    assert np.all((sizes <= 100) | (widths == 1))
    assert np.all(sizes[1:] + sizes[:-1] > 100)  # no two neighbours would have made one
    found = np.zeros(len(buckets), np.int64)
    count_leaves(rows, buckets.levels, found)
    assert np.array_equal(found, sizes)
    wanted = np.searchsorted(buckets.firsts, rows, side="right") - 1
    assert np.array_equal(np.bincount(wanted, minlength=len(buckets)), sizes)


def test_even_rows_are_counted_once_and_buckets_are_nearly_full() -> None:
    rows = RNG.integers(0, 1 << 20, 200_000)
    seen = []

    def count(levels: Levels, counts: np.ndarray) -> None:
        seen.append(levels)
        count_leaves(rows, levels, counts)

    buckets = cut_buckets(count, 1 << 20, most_edges=5000, most_rows=1 << 20)
    assert len(seen) == 1
    assert np.diff(buckets.starts)[:-1].min() > 4500


def test_wide_ranges_without_edges_are_cut_by_rows() -> None:
    buckets = cut(np.array([5]), 1 << 20, edges=10, most_rows=1 << 16)
    assert len(buckets) == 16 and buckets.most_rows == 1 << 16
