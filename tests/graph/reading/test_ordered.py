"""Sorted rows read in file order, scanned or page by page."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from overspill.errors import StaleFileError
from overspill.graph.paged import PagedArray
from overspill.graph.reading import ordered
from overspill.graph.reading.ordered import _runs, read_in_order
from overspill.linux.cache import cached_bytes, drop_cache
from overspill.linux.device_reads import device_bytes_read
from small_graphs import write_array

MIB = 1 << 20


def paged(path: Path, nbytes: int, row: int) -> tuple[PagedArray, np.ndarray]:
    rows = np.random.default_rng(0).integers(0, 256, (nbytes // row, row), dtype=np.uint8)
    record = write_array(path, rows)
    drop_cache(path)
    return PagedArray(path, record, stride_bytes=row, span_bytes=row), rows


@pytest.mark.parametrize("row", [1, 7, 512, 4096, 5000, 200_000])
def test_rows_equal_indexing(tmp_path: Path, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "_STRETCH_BYTES", 1 << 16)
    monkeypatch.setattr(ordered, "_PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(ordered, "_CHUNK_ROWS", 1000)
    array, rows = paged(tmp_path / "x", MIB, row)
    rng = np.random.default_rng(row)
    count = len(rows)
    lists = [
        np.arange(count),
        np.array([count - 1]),
        np.array([0, count - 1]),
        np.zeros(0, np.int64),
        np.unique(rng.integers(0, count, max(count // 10, 1))),
        # Dense at both ends, sparse between them.
        np.unique(
            np.concatenate([
                np.arange(count // 4),
                rng.integers(0, count, 5),
                np.arange(count - count // 4, count),
            ])
        ),
    ]  # fmt: skip
    for ids in lists:
        out = np.zeros((ids.size, row), np.uint8)
        read_in_order(array, ids, out)
        assert np.array_equal(out, rows[ids])


def runs(array: PagedArray, ids: np.ndarray) -> list[tuple[int, int, bool]]:
    return list(_runs(array, ids))


def test_a_stretch_is_scanned_where_more_than_a_quarter_is_wanted(tmp_path: Path) -> None:
    array, _ = paged(tmp_path / "x", 32 * MIB, 512)
    stretch = 8 * MIB // 512  # rows
    quarter = np.arange(0, stretch, 8)[:512]  # as many pages as are not yet scanned
    more = np.append(quarter, stretch - 1)
    assert runs(array, quarter) == [(0, 512, False)]
    assert runs(array, more) == [(0, 513, True)]
    # Eight rows of each page: as many rows as would do, but an eighth of the pages.
    assert runs(array, np.arange(stretch // 8)) == [(0, stretch // 8, False)]
    assert runs(array, np.concatenate([more, quarter + stretch, more + 3 * stretch])) == [
        (0, 513, True),
        (513, 1025, False),
        (1025, 1538, True),
    ]
    assert runs(array, np.concatenate([more, more + stretch])) == [(0, 1026, True)]


def test_scans_leave_the_page_cache_alone_and_others_read_wanted_pages(tmp_path: Path) -> None:
    array, rows = paged(tmp_path / "x", 16 * MIB, 512)
    before = device_bytes_read()
    apart = np.arange(0, len(rows), 80)  # every tenth page
    out = np.empty((apart.size, 512), np.uint8)
    read_in_order(array, apart, out)
    assert np.array_equal(out, rows[apart])
    read = (device_bytes_read() or 0) - (before or 0)
    if before is not None and read:  # a file system without a device counts nothing
        assert read <= 1.1 * 4096 * apart.size + MIB
    drop_cache(tmp_path / "x")
    half = np.arange(0, len(rows), 16)
    out = np.empty((half.size, 512), np.uint8)
    read_in_order(array, half, out)
    assert np.array_equal(out, rows[half])
    assert cached_bytes(tmp_path / "x") < 2 * MIB


@pytest.mark.parametrize("change", ["cut", "replaced", "removed"])
def test_a_scan_notices_a_file_that_changed(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered, "_STRETCH_BYTES", 1 << 18)
    path = tmp_path / "x"
    array, rows = paged(path, MIB, 512)
    out = np.empty_like(rows)
    ids = np.arange(len(rows))
    if change == "cut":
        with pytest.MonkeyPatch.context() as patch:
            # Between the look at the file and the reading of it.
            patch.setattr(
                ordered,
                "identify_file",
                lambda _fd: (os.truncate(path, MIB // 2), array.mapping.identity)[1],
            )
            with pytest.raises(StaleFileError, match="cut"):
                read_in_order(array, ids, out)
        return
    path.rename(tmp_path / "kept")
    if change == "replaced":
        path.write_bytes((tmp_path / "kept").read_bytes())
    with pytest.raises(StaleFileError, match=r"replaced|cannot be opened"):
        read_in_order(array, ids, out)
