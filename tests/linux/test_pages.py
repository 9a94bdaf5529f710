"""Advice and residency on real mappings, pages counted by hand."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from confined import make_cold
from overspill.errors import MappingError
from overspill.linux import pages
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.pages import PAGE_BYTES, advise, resident_bytes, resident_pages

from .injection import Injected

pytestmark = requires("mincore")
PAGES = 300
NBYTES = PAGES * PAGE_BYTES - 100  # the last page is not whole


@pytest.fixture
def cold(tmp_path: Path) -> Mapping:
    path = tmp_path / "data.bin"
    path.write_bytes(np.random.default_rng(1).bytes(NBYTES))
    make_cold(path)
    mapping = map_file(path, nbytes=NBYTES)
    advise(mapping.address, mapping.nbytes, "random")  # without read-ahead a touch is one page
    return mapping


def touch(mapping: Mapping, *touched: int) -> None:
    view = np.asarray(mapping)
    for page in touched:
        assert view[page * PAGE_BYTES] >= 0


def test_only_touched_pages_are_resident(cold: Mapping) -> None:
    assert not resident_pages(cold.address, cold.nbytes).any()
    touch(cold, 3, 4, 299)
    found = resident_pages(cold.address, cold.nbytes)
    assert found.dtype == np.bool_
    assert found.shape == (PAGES,)
    assert np.flatnonzero(found).tolist() == [3, 4, 299]


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, NBYTES, 3 * PAGE_BYTES - 100),  # the last page counts with what the file has of it
        (3 * PAGE_BYTES, 2 * PAGE_BYTES, 2 * PAGE_BYTES),
        (3 * PAGE_BYTES + 10, PAGE_BYTES, PAGE_BYTES),
        (4 * PAGE_BYTES + 10, PAGE_BYTES, PAGE_BYTES - 10),
        (4 * PAGE_BYTES + 10, 20, 20),
        (0, 3 * PAGE_BYTES, 0),
        (50, 0, 0),
    ],
)
def test_bytes_are_counted_within_the_range(
    cold: Mapping, start: int, length: int, expected: int
) -> None:
    touch(cold, 3, 4, 299)
    assert resident_bytes(cold.address + start, length) == expected


def test_a_large_mapping_is_counted_in_parts(
    cold: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_PAGES_A_CALL", 7)
    touch(cold, 0, 6, 7, 13, 14, 299)
    injected = Injected(monkeypatch, "mincore", None)
    assert resident_bytes(cold.address + 5, NBYTES - 5) == 6 * PAGE_BYTES - 105
    assert len(injected.calls) == -(-PAGES // 7)


def test_advice_is_widened_to_pages(cold: Mapping, monkeypatch: pytest.MonkeyPatch) -> None:
    injected = Injected(monkeypatch, "madvise", None)
    advise(cold.address + PAGE_BYTES + 10, 20, "normal")
    assert injected.calls == [(cold.address + PAGE_BYTES, 30, 0)]
    advise(cold.address, 0, "random")
    assert len(injected.calls) == 1


def test_willneed_brings_pages_in(cold: Mapping) -> None:
    advise(cold.address + 10 * PAGE_BYTES, 20 * PAGE_BYTES, "willneed")
    touch(cold, *range(10, 30))  # waits for the reads under way
    assert np.flatnonzero(resident_pages(cold.address, NBYTES)).tolist() == list(range(10, 30))


def test_dontneed_loses_private_changes(cold: Mapping) -> None:
    view = np.asarray(cold)
    kept = int(view[0])
    view[0] = (kept + 1) % 256
    advise(cold.address, 1, "dontneed")
    assert view[0] == kept


@pytest.mark.parametrize("act", [lambda a: advise(a, 10, "random"), lambda a: resident_bytes(a, 1)])
def test_a_range_that_is_not_mapped_is_refused(act: object) -> None:
    with pytest.raises(MappingError, match="live mapping") as caught:
        act(PAGE_BYTES)  # type: ignore[operator]
    assert caught.value.errno == errno.ENOMEM


def test_nothing_has_no_pages() -> None:
    assert resident_pages(0, 0).shape == (0,)
    assert resident_bytes(0, 0) == 0
