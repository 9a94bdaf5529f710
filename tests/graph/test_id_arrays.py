from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from confined import make_cold
from overspill.errors import StaleFileError
from overspill.graph.id_arrays import IdArray, SortedIds
from overspill.linux.cache import cached_bytes
from small_graphs import write_array

CASES = {
    "none": np.empty(0, np.int64),
    "one": np.array([7]),
    "a page": np.arange(512) * 3,
    "a page and one": np.arange(513) - 10**6,
    "hashes": np.unique(np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 20_000)),
    "clustered": np.concatenate([np.arange(-3000, 0), [2**62], [2**63 - 1]]),
    "the extremes": np.array([-(2**63), -(2**63) + 1, -1, 0, 2**63 - 2, 2**63 - 1]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cold", [True, False])
def test_places_equal_a_dictionary(tmp_path: Path, name: str, cold: bool) -> None:
    ids = CASES[name]
    record = write_array(tmp_path / "ids", ids)
    if cold:
        make_cold(tmp_path / "ids")
    known = {value: place for place, value in enumerate(ids.tolist())}
    rng = np.random.default_rng(7)
    others = rng.integers(-(2**63), 2**63 - 1, 500, endpoint=True)
    wanted = np.concatenate([others, ids, ids[:300], ids[:1] - 1, ids[-1:] + 1, [-(2**63)]])
    rng.shuffle(wanted)
    found = SortedIds(tmp_path / "ids", record).find(wanted)
    assert found.tolist() == [known.get(value, -1) for value in wanted.tolist()]


@pytest.mark.requires("mincore")
def test_a_few_ids_cost_a_few_pages(tmp_path: Path) -> None:
    """Of 2,000 pages."""
    record = write_array(tmp_path / "ids", np.arange(1_024_000) * 5)
    make_cold(tmp_path / "ids")
    found = SortedIds(tmp_path / "ids", record).find(np.array([5 * 777_777, 4, 5 * 1_023_999]))
    assert found.tolist() == [777_777, -1, 1_023_999]
    # Reading the header may read ahead a little.
    assert cached_bytes(tmp_path / "ids") <= 3 * 12 * 4096 + (256 << 10)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_by_place(tmp_path: Path, dtype: type) -> None:
    values = np.random.default_rng(0).integers(0, 2**31 - 1, 5000).astype(dtype)
    array = IdArray(tmp_path / "ids", write_array(tmp_path / "ids", values))
    places = np.array([4999, 0, 0, 17])
    found = array.at(places)
    assert found.dtype == np.int64 and found.tolist() == values[places].tolist()


def test_a_file_that_was_cut_is_stale(tmp_path: Path) -> None:
    record = write_array(tmp_path / "ids", np.arange(5000))
    held, array = SortedIds(tmp_path / "ids", record), IdArray(tmp_path / "ids", record)
    os.truncate(tmp_path / "ids", 4096)
    with pytest.raises(StaleFileError):
        held.find(np.array([1]))
    with pytest.raises(StaleFileError):
        array.at(np.array([1]))
