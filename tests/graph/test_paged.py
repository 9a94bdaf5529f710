from __future__ import annotations

import itertools
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confined import make_cold
from overspill.errors import StaleFileError
from overspill.graph import paged
from overspill.graph.paged import BLOCK_ITEMS, PagedArray
from overspill.graph.warm import warm_reading
from overspill.linux.cache import release_mapped
from overspill.linux.device_reads import device_bytes_read
from overspill.linux.fetch import PageFetcher
from overspill.linux.pages import resident_bytes, resident_pages
from overspill.linux.safe_read import SafeReader
from paged_arrays import opened, random_rows
from small_graphs import write_array

FETCHES = ["process_madvise", "fadvise", "pread"]
READS = ["process_vm_readv", "preadv"]


def make_warm(array: PagedArray) -> None:
    """Writing leaves a file out of the cache."""
    assert len(Path(array.mapping.path).read_bytes()) == array.mapping.nbytes
    assert resident_pages(array.mapping.address, array.mapping.nbytes).all()


@pytest.mark.parametrize(
    ("count", "width", "dtype"),
    [
        (50_000, 4, np.uint8),  # a few bytes
        (50_000, 3, np.uint8),
        (9_000, 128, np.float32),
        (9_000, 3, np.float16),
        (3_000, 1500, np.uint8),  # straddles pages
        (300, 2500, np.float64),  # larger than a page
        (70, 1, np.int64),
    ],
)
@pytest.mark.parametrize("cold", [True, False])
def test_rows_arrive_in_the_order_asked_for(
    tmp_path: Path, count: int, width: int, dtype: type, cold: bool
) -> None:
    rows = random_rows(count, width, dtype)
    array = opened(tmp_path / "rows", rows)
    if cold:
        make_cold(tmp_path / "rows")
        assert resident_bytes(array.mapping.address, array.mapping.nbytes) == 0
    else:
        make_warm(array)
    ids = np.random.default_rng(1).integers(0, count, 6_000)
    out = np.zeros((6_000, width), dtype=dtype)
    array.take(ids, out)
    np.testing.assert_array_equal(out, rows[ids])
    assert (array.pages_asked > 0) == cold


@pytest.mark.parametrize("state", ["cold", "warm", "half"])
@pytest.mark.parametrize("size", [7, 500])
@pytest.mark.parametrize("width", [512, 5000])
def test_rows_go_to_the_places_given(tmp_path: Path, state: str, size: int, width: int) -> None:
    rows = random_rows(2_000, width)
    array = opened(tmp_path / "rows", rows)
    make_warm(array) if state == "warm" else make_cold(tmp_path / "rows")
    if state == "half":
        array.take(np.arange(0, 1_500, 2), np.empty((750, width), np.uint8))
    rng = np.random.default_rng(3)
    ids, places = rng.integers(0, 2_000, size), rng.permutation(2 * size)[:size]
    out = np.full((2 * size, width), 255, dtype=np.uint8)
    array.take(ids, out, places=places, threads=2)
    np.testing.assert_array_equal(out[places], rows[ids])
    assert (np.delete(out, places, axis=0) == 255).all()


@pytest.mark.parametrize(("fetch", "read"), list(itertools.product(FETCHES, READS)))
def test_every_way_of_asking_and_reading(tmp_path: Path, fetch: Any, read: Any) -> None:
    rows = random_rows(20_000, 300)
    array = opened(tmp_path / "rows", rows)
    array._fetcher = PageFetcher(array.mapping, method=fetch)
    array._reader = SafeReader(array.mapping, method=read)
    make_cold(tmp_path / "rows")
    ids = np.random.default_rng(1).integers(0, 20_000, 900)
    ids[:2] = 0, 19_999
    out = np.zeros((900, 300), np.uint8)
    array.take(ids, out)
    np.testing.assert_array_equal(out, rows[ids])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("placed", [True, False])
def test_threads_share_the_copy_and_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, placed: bool
) -> None:
    monkeypatch.setattr(paged, "SHARE_BYTES", 1000)
    rows = random_rows(3_000, 64)
    array = opened(tmp_path / "rows", rows)
    make_warm(array)
    ids = np.random.default_rng(1).integers(0, 3_000, 1_001)
    places = np.random.default_rng(2).permutation(1_001) if placed else None
    used, copy, before = set(), paged.copy_present, threading.active_count()

    def recorded(*arguments: Any) -> int:
        used.add(threading.get_ident())
        return copy(*arguments)

    monkeypatch.setattr(paged, "copy_present", recorded)
    out = np.zeros((1_001, 64), np.uint8)
    array.take(ids, out, places=places, threads=threads)
    np.testing.assert_array_equal(out if places is None else out[places], rows[ids])
    assert threading.active_count() == before
    assert (threading.get_ident() in used) and (len(used) > 1) == (threads > 1)
    assert array.pages_asked == 0


def test_a_cold_read_brings_the_distinct_pages_and_hardly_more(tmp_path: Path) -> None:
    array = opened(tmp_path / "rows", random_rows(200_000, 512))
    make_cold(tmp_path / "rows")
    ids = np.random.default_rng(1).integers(0, 200_000, 3_000)
    before = device_bytes_read()
    array.take(ids, np.empty((3_000, 512), np.uint8))
    after = device_bytes_read()
    distinct = len(np.unique((array.payload_offset + ids * 512) // 4096))
    held = resident_bytes(array.mapping.address, array.mapping.nbytes) // 4096
    assert distinct <= held <= 1.1 * distinct
    assert array.pages_asked == distinct
    if before is not None and after is not None:
        assert 0.99 * distinct * 4096 <= after - before <= 1.1 * distinct * 4096


def test_of_a_file_that_is_partly_cached_only_the_rest_is_asked_for(tmp_path: Path) -> None:
    rows = random_rows(80_000, 512)
    array = opened(tmp_path / "rows", rows)
    make_cold(tmp_path / "rows")
    first = 60_000 * 512 // 4096 + 1
    array._fetcher.request(np.array([0]), np.array([first]))
    np.asarray(array.mapping)[: first * 4096 : 4096].sum()
    ids = np.random.default_rng(1).integers(0, 80_000, 3_000)
    absent = len(np.unique(((array.payload_offset + ids * 512) // 4096)[ids >= 60_000]))
    out = np.zeros((3_000, 512), np.uint8)
    array.take(ids, out)
    np.testing.assert_array_equal(out, rows[ids])
    assert absent - 1 <= array.pages_asked <= absent


def test_of_a_few_items_each_is_looked_at(tmp_path: Path) -> None:
    rows = random_rows(40_000, 512)
    array = opened(tmp_path / "rows", rows)
    make_cold(tmp_path / "rows")
    out = np.zeros((3, 512), np.uint8)
    array.take(np.array([9_000, 17, 9_001]), out)
    assert array.pages_asked == 2
    array.take(np.array([9_000, 30_000, 17]), out)
    assert array.pages_asked == 3
    np.testing.assert_array_equal(out, rows[[9_000, 30_000, 17]])


def test_pages_that_went_after_the_look_are_read_all_the_same(tmp_path: Path) -> None:
    rows = random_rows(40_000, 512)
    array = opened(tmp_path / "rows", rows)
    make_warm(array)
    ids = np.random.default_rng(1).integers(0, 40_000, 2_000)
    out = np.zeros((2_000, 512), np.uint8)
    array.take(ids, out)
    assert array._presence.known() is not None
    before = array.pages_asked
    release_mapped(array.mapping.address, array.mapping.nbytes, array.mapping.path)
    out[:] = 0
    array.take(ids, out)
    np.testing.assert_array_equal(out, rows[ids])
    assert array.pages_asked == before


def test_pages_are_asked_for_in_windows_and_only_when_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = opened(tmp_path / "rows", random_rows(40_000, 512))
    asked: list[int] = []
    ask = array._fetcher.request

    def recorded(firsts: np.ndarray, counts: np.ndarray) -> None:
        asked.append(int(counts.sum()))
        ask(firsts, counts)

    monkeypatch.setattr(array._fetcher, "request", recorded)
    monkeypatch.setattr(paged, "WINDOW_BYTES", 1 << 20)
    make_cold(tmp_path / "rows")
    ids = np.random.default_rng(1).integers(0, 40_000, 2_000)
    out = np.empty((2_000, 512), np.uint8)
    array.take(ids, out)
    assert len(asked) > 5 and max(asked) <= (1 << 20) // 4096
    asked.clear()
    array.take(ids, out)
    assert asked == []


def test_rows_larger_than_a_window_come_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "WINDOW_BYTES", 8192)
    rows = random_rows(12, 50_001)
    array = opened(tmp_path / "rows", rows)
    make_cold(tmp_path / "rows")
    out = np.empty((3, 50_001), np.uint8)
    array.take(np.array([11, 0, 11]), out)
    np.testing.assert_array_equal(out, rows[[11, 0, 11]])


def test_requests_beyond_a_block_go_by_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "BLOCK_ITEMS", 100)
    rows = random_rows(500, 8)
    array = opened(tmp_path / "rows", rows)
    make_cold(tmp_path / "rows")
    ids = np.random.default_rng(2).integers(0, 500, 1_050)
    out = np.empty((1_050, 8), np.uint8)
    array.take(ids, out)
    np.testing.assert_array_equal(out, rows[ids])


@pytest.mark.parametrize("shape", [(5, 0), (0, 4), (0,)])
def test_nothing_is_read_of_nothing(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = opened(tmp_path / "rows", np.zeros(shape, np.float32))
    array.take(np.empty(0, np.int64), np.empty((0, *shape[1:]), np.float32))
    if shape[0]:
        array.take(np.array([4, 4]), np.empty((2, 0), np.float32))


def test_items_may_reach_into_the_next(tmp_path: Path) -> None:
    record = write_array(tmp_path / "indptr", np.array([0, 2, 2, 9]))
    array = PagedArray(tmp_path / "indptr", record, stride_bytes=8, span_bytes=16)
    out = np.empty((3, 2), np.int64)
    array.take(np.array([2, 0, 1]), out)
    assert out.tolist() == [[2, 9], [0, 2], [2, 2]]


def test_an_output_out_of_step_with_words_is_filled_all_the_same(tmp_path: Path) -> None:
    rows = random_rows(20, 16)
    array = opened(tmp_path / "rows", rows)
    out = np.zeros(4 * 16 + 3, np.uint8)
    array.take(np.array([5, 6, 7, 5]), out[3:])
    np.testing.assert_array_equal(out[3:].reshape(4, 16), rows[[5, 6, 7, 5]])


@pytest.mark.parametrize("damage", ["cut", "grown", "removed", "replaced"])
def test_a_file_that_changed_is_refused_before_a_page_is_touched(
    tmp_path: Path, damage: str
) -> None:
    array = opened(tmp_path / "rows", random_rows(100, 512))
    array.check_unchanged()
    path = tmp_path / "rows"
    if damage in ("removed", "replaced"):
        path.unlink()
    if damage == "replaced":
        write_array(path, random_rows(100, 512))
    if damage in ("cut", "grown"):
        os.truncate(path, path.stat().st_size + (1 if damage == "grown" else -4096))
    with pytest.raises(StaleFileError, match="rows") as caught:
        array.check_unchanged()
    sizes = caught.value.needed_bytes, caught.value.available_bytes
    if damage == "replaced":
        assert "it was replaced" in str(caught.value) and "bytes where" not in str(caught.value)
        assert sizes == (None, None)
    elif damage != "removed":
        assert sizes == (array.mapping.nbytes, path.stat().st_size)
        assert f"has {sizes[1]} bytes where it had {sizes[0]}" in str(caught.value)


def test_opening_reads_nothing(tmp_path: Path) -> None:
    record = write_array(tmp_path / "rows", random_rows(1000, 512))
    make_cold(tmp_path / "rows")
    array = PagedArray(tmp_path / "rows", record, stride_bytes=512, span_bytes=512)
    payload = array.mapping.address + array.payload_offset
    # The header was read, and the kernel reads ahead from it; what lies beyond was not.
    assert not resident_pages(payload, 512_000)[64:].any()


def test_where_residency_is_hidden_pages_are_always_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(100, 512)
    monkeypatch.setattr(paged, "shows_residency", lambda _path: False)
    array = opened(tmp_path / "again", rows)
    asked: list[int] = []
    monkeypatch.setattr(array._fetcher, "request", lambda firsts, counts: asked.append(len(firsts)))
    out = np.empty((2, 512), np.uint8)
    array.take(np.array([99, 0]), out)
    assert asked == [2]
    assert array.present_share(np.array([99, 0])) == 0
    np.testing.assert_array_equal(out, rows[[99, 0]])


def test_the_share_that_is_present_is_found_by_a_look(tmp_path: Path) -> None:
    array = opened(tmp_path / "rows", random_rows(40_000, 512))
    make_cold(tmp_path / "rows")
    ids = np.array([39_999, 20_000, 1_000, 30_000])
    assert array.present_share(ids) == 0
    array.take(ids[:1], np.empty((1, 512), np.uint8))
    assert array.present_share(ids) == 0.25
    assert array.present_share(ids[:0]) == 0


@pytest.mark.parametrize("state", ["cold", "looked at", "known"])
@pytest.mark.parametrize("placed", [True, False])
def test_a_block_takes_no_more_memory_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, placed: bool
) -> None:
    count = 1 << 21
    array = opened(tmp_path / "rows", np.zeros((count, 8), np.uint8))
    ids = np.random.default_rng(1).integers(0, count, BLOCK_ITEMS)
    out = np.empty((BLOCK_ITEMS, 8), np.uint8)
    places = np.random.default_rng(2).permutation(BLOCK_ITEMS) if placed else None
    make_cold(tmp_path / "rows")
    warm_reading()
    # The worst: all was looked at, and nothing is there.
    if state != "cold":
        monkeypatch.setattr(array._presence, "is_worth_a_look", lambda _share, _items: True)
    if state == "known":
        array._presence.look()
    tracemalloc.start()
    try:
        array.take(ids, out, places=places, threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    most = 40 if state == "known" else 32
    assert 23 * BLOCK_ITEMS < peak <= most * BLOCK_ITEMS + (1 << 19)
