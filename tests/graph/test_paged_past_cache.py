"""Which rows go through the page cache, and which past it: by what the cache holds and finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from confined import make_cold
from overspill.graph.cache_use import CacheUse
from overspill.graph.paged import PagedArray
from overspill.graph.warm import warm_reading
from overspill.linux.device_reads import device_bytes_read
from overspill.linux.pages import PAGE_BYTES, resident_bytes, resident_pages
from paged_arrays import opened, random_rows
from reading_graphs import write_wide

ROOM = 1 << 20


def of_a_cache(array: PagedArray, room_bytes: int | None) -> None:
    array._cache = CacheUse(array.mapping.nbytes, lambda: room_bytes)


@requires("aio")
@pytest.mark.parametrize("width", [512, 5000, 300])
def test_a_file_far_larger_than_the_cache_is_read_past_it(tmp_path: Path, width: int) -> None:
    rows = random_rows(16 * ROOM // width, width)
    array = opened(tmp_path / "rows", rows)
    of_a_cache(array, ROOM)
    rng = np.random.default_rng(3)
    make_cold(tmp_path / "rows")
    held = []
    for _ in range(4):
        ids, places = rng.integers(0, len(rows), 150), rng.permutation(200)[:150]
        out = np.full((200, width), 255, np.uint8)
        array.take(ids, out, places=places)
        np.testing.assert_array_equal(out[places], rows[ids])
        assert (np.delete(out, places, axis=0) == 255).all()
        held.append(resident_bytes(array.mapping.address, array.mapping.nbytes))
    # The first found out that nothing is found again; what it left stays for who else wants it.
    assert held[0] > 0 and held[1:] == held[:1] * 3
    assert array.pages_asked > 3 * 140


@requires("aio")
def test_rows_that_are_wanted_again_stay_in_the_cache(tmp_path: Path) -> None:
    rows = random_rows(16 * ROOM // 512, 512)
    array = opened(tmp_path / "rows", rows)
    of_a_cache(array, ROOM)
    make_cold(tmp_path / "rows")
    out = np.empty((900, 512), np.uint8)
    for _ in range(6):
        array.take(np.arange(0, 900 * 16, 16), out)
        np.testing.assert_array_equal(out, rows[: 900 * 16 : 16])
    assert array.pages_asked <= 1800  # known by now, or asked for twice


@pytest.mark.parametrize("reused", [True, False])
def test_a_file_that_the_cache_holds_is_read_whole_in_the_end_by_who_reads_on(
    tmp_path: Path, reused: bool
) -> None:
    rows = random_rows(4 * ROOM // 512, 512)
    array = opened(tmp_path / "rows", rows)
    of_a_cache(array, 16 * ROOM)
    assert array.fits_cache()
    if reused:
        array.expect_reuse()
    make_cold(tmp_path / "rows")
    rng = np.random.default_rng(1)
    for _ in range(3):
        ids = rng.integers(0, len(rows), 300)
        out = np.empty((300, 512), np.uint8)
        array.take(ids, out)
        np.testing.assert_array_equal(out, rows[ids])
    assert array.pages_asked < 900
    held = resident_pages(array.mapping.address, array.mapping.nbytes).mean()
    assert held > 0.9 if reused else 0.5 < held < 0.65


def test_of_a_file_that_the_cache_could_hold_a_gather_reads_the_pages_of_its_rows_alone(
    tmp_path: Path,
) -> None:
    pages, batch = 8192, 1024
    rows = random_rows(8 * pages, 512)
    dataset = write_wide(tmp_path / "ds", {"x": ("uint8", rows)}, len(rows))
    array = dataset.row_reader("x")
    assert isinstance(array, PagedArray) and array.fits_cache()
    warm_reading()  # what it loads is read from a device too
    make_cold(dataset.path / "node.x")
    rng = np.random.default_rng(5)
    ids = rng.permutation(pages) * 8 + rng.integers(0, 8, pages)
    distinct, before = 0, device_bytes_read()
    for start in range(0, 6 * batch, batch):
        some = ids[start : start + batch]
        np.testing.assert_array_equal(dataset.gather("x", some).numpy(), rows[some])
        distinct += len(np.unique(some // 8))
        after = device_bytes_read()
        held = resident_bytes(array.mapping.address, array.mapping.nbytes)
        assert held <= 1.1 * distinct * PAGE_BYTES
        if before is not None and after is not None:
            assert 0.99 * distinct <= (after - before) / PAGE_BYTES <= 1.1 * distinct


def test_where_the_room_is_unknown_the_cache_is_used(tmp_path: Path) -> None:
    rows = random_rows(16 * ROOM // 512, 512)
    array = opened(tmp_path / "rows", rows)
    of_a_cache(array, None)
    make_cold(tmp_path / "rows")
    before = resident_bytes(array.mapping.address, array.mapping.nbytes)
    for start in range(3):
        array.take(np.arange(start * 900, start * 900 + 900) * 8, np.empty((900, 512), np.uint8))
        held = resident_bytes(array.mapping.address, array.mapping.nbytes)
        assert held > before
        before = held
