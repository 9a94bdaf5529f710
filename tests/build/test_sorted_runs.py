from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overspill.build.passes import runs as runs_module
from overspill.build.passes.runs import RunCollector, SortedRuns


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
@pytest.mark.parametrize("spread", [1, 50, 2**31 - 1])
def test_merging_equals_sorting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unique: bool,
    dtype: type,
    count: int,
    spread: int,
) -> None:
    monkeypatch.setattr(runs_module, "_SMALLEST_WINDOW", 2)  # several windows a run
    numbers = np.random.default_rng(count).integers(-spread, spread, count).astype(dtype)
    with SortedRuns(tmp_path / "runs", dtype=dtype, unique=unique) as runs:
        collector = RunCollector(runs, 8, dtype=dtype, unique=unique)
        for piece in np.array_split(numbers, 5):
            collector.add(piece)
        collector.finish()
        pieces = list(runs.merged(12))  # at most six runs at a time: groups are merged first
        merged = np.concatenate([np.empty(0, dtype), *pieces])
        assert np.array_equal(merged, np.unique(numbers) if unique else np.sort(numbers))
        assert merged.dtype == dtype
        if count == 1000 and spread > 50:
            assert max(len(piece) for piece in pieces) <= 12
    assert list(tmp_path.iterdir()) == []


def test_extreme_values_survive(tmp_path: Path) -> None:
    numbers = np.array([0, -1, 2**63 - 1, -(2**63), 4873214862074861312] * 3)
    with SortedRuns(tmp_path / "runs", dtype=np.int64, unique=True) as runs:
        collector = RunCollector(runs, 4, dtype=np.int64, unique=True)
        collector.add(numbers)
        collector.finish()
        merged = np.concatenate(list(runs.merged(8)))
    assert np.array_equal(merged, np.unique(numbers))


def test_runs_come_back_in_order(tmp_path: Path) -> None:
    with SortedRuns(tmp_path / "runs", dtype=np.int64, unique=True) as runs:
        for run in ([1, 5], [], [6, 7, 8]):
            runs.append(np.array(run, np.int64))
        assert np.concatenate(list(runs.in_order(2))).tolist() == [1, 5, 6, 7, 8]
