"""Degrees are counted from row pointers in pieces, and the page cache stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overspill.errors import FormatError, StaleFileError
from overspill.linux.cache import cached_bytes, drop_cache
from overspill.storage import degrees
from overspill.storage.degrees import degree_distribution
from small_graphs import write_array

RANDOM = np.random.default_rng(5)


def pointers(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@pytest.mark.parametrize("piece", [4096, 2 << 20])
@pytest.mark.parametrize(
    "counts",
    [
        np.array([], np.int64),
        np.array([0]),
        np.array([0, 0, 0]),
        np.array([3, 0, 1, 2, 4, 7, 8, 1]),
        np.array([65535, 65536, 65537, 1 << 20, 5]),
        np.array([70_000, 70_000, 70_000, 1]),
        RANDOM.zipf(1.6, 3000).clip(max=10**7),
    ],
    ids=["none", "one", "isolated", "few", "at the limit", "large median", "power law"],
)
def test_as_the_plainest_way_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: np.ndarray, piece: int
) -> None:
    monkeypatch.setattr(degrees, "_PIECE_BYTES", piece)
    record = write_array(tmp_path / "indptr", pointers(counts))
    done: list[int] = []
    found = degree_distribution(
        tmp_path / "indptr", record, edges=int(counts.sum()), on_progress=done.append
    )
    assert done[-1] == 8 * (len(counts) + 1)
    assert (found.rows, found.edges) == (len(counts), counts.sum())
    assert found.largest == counts.max(initial=0)
    assert sum(one.rows for one in found.bins) == len(counts)
    for one in found.bins:
        assert one.rows == np.count_nonzero((counts >= one.least) & (counts <= one.most))
    assert [one.least for one in found.bins][1:] == [2**n for n in range(len(found.bins) - 1)]
    if len(counts):
        assert found.mean == pytest.approx(counts.mean())
        median = int(np.sort(counts)[(len(counts) - 1) // 2])
        assert found.median == (median if median < 65536 else 1 << (median.bit_length() - 1))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, 2, 3], "do not begin at 0"),
        ([0, 5, 4, 6], "decrease at place 2"),
        ([0, 2, 1 << 62], "reach 4611686018427387904 where 6 edges were recorded"),
        ([0, 2, (1 << 63) - 1], "reach 9223372036854775807 where 6"),
        ([0, 2, -(1 << 63)], "decrease at place 2"),
        ([0, 2, 5], "reach 5 where 6 edges"),
        ([0, 2, 7], "reach 7 where 6 edges"),
        ([0], "reach 0 where 6 edges"),
    ],
)
@pytest.mark.parametrize("piece", [8, 2 << 20])
def test_row_pointers_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[int], told: str, piece: int
) -> None:
    monkeypatch.setattr(degrees, "_PIECE_BYTES", piece)
    record = write_array(tmp_path / "indptr", np.array(values))
    with pytest.raises(FormatError, match=told) as caught:
        degree_distribution(tmp_path / "indptr", record, edges=6)
    assert caught.value.path == str(tmp_path / "indptr") and caught.value.remedy


def test_a_file_that_is_not_as_recorded(tmp_path: Path) -> None:
    path = tmp_path / "indptr"
    record = write_array(path, np.array([0, 1, 2]))
    with pytest.raises(StaleFileError, match="recorded"):
        degree_distribution(path, replace(record, shape=(4,)), edges=2)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StaleFileError):
        degree_distribution(path, record, edges=2)


@pytest.mark.parametrize("direct", [True, False])
def test_nothing_stays_in_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    record = write_array(tmp_path / "indptr", pointers(np.ones(2 << 20, np.int64)))
    if not direct:
        monkeypatch.delattr("os.O_DIRECT")
    assert drop_cache(tmp_path / "indptr")
    assert degree_distribution(tmp_path / "indptr", record, edges=2 << 20).largest == 1
    # What looking at the header read ahead may be there, and nothing of any later piece.
    assert cached_bytes(tmp_path / "indptr") <= 128 << 10
    (tmp_path / "indptr").read_bytes()
    before = cached_bytes(tmp_path / "indptr")
    assert before >= 16 << 20
    degree_distribution(tmp_path / "indptr", record, edges=2 << 20)
    assert cached_bytes(tmp_path / "indptr") == before
