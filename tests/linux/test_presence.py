"""What is known of a file's pages: true when looked at, dropped in time, looked at when it pays."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from confined import make_cold
from overspill.errors import MappingError
from overspill.linux import libc, presence
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.pages import PAGE_BYTES, advise, resident_pages
from overspill.linux.presence import PresenceMap, note_read

pytestmark = requires("mincore")
PAGES = 4003
HELD = [0, 7, 8, 9, 1000, 2047, PAGES - 1]


@pytest.fixture
def mapping(tmp_path: Path) -> Mapping:
    """Some pages are present."""
    path = tmp_path / "data"
    path.write_bytes(bytes(PAGES * PAGE_BYTES - 10))
    make_cold(path)
    held = map_file(path, nbytes=PAGES * PAGE_BYTES - 10)
    advise(held.address, held.nbytes, "random")
    np.asarray(held)[np.array(HELD) * PAGE_BYTES].sum()
    return held


def set_bits(known: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(known, bitorder="little")[:PAGES]).tolist()


@pytest.mark.parametrize("a_look", [1 << 20, 1024])
def test_a_look_tells_each_page(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch, a_look: int
) -> None:
    monkeypatch.setattr(presence, "_PAGES_A_LOOK", a_look)
    pages = PresenceMap(mapping, shown=True)
    assert pages.known() is None
    looked = pages.look()
    assert set_bits(looked) == HELD
    assert (
        set_bits(looked) == np.flatnonzero(resident_pages(mapping.address, mapping.nbytes)).tolist()
    )
    assert pages.known() is looked


def test_what_is_known_is_forgotten_in_time(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pages = PresenceMap(mapping, shown=True)
    pages.look()
    now[0] += 1.9
    assert pages.known() is not None
    now[0] += 0.2
    assert pages.known() is None


def test_what_is_known_is_forgotten_once_much_was_read(mapping: Mapping) -> None:
    np.asarray(mapping)[::PAGE_BYTES].sum()
    pages = PresenceMap(mapping, shown=True)
    pages.look()
    # Of whatever file: it is they that may have driven out this one's.
    note_read(PAGES // 64)
    assert pages.known() is not None
    note_read(1)
    assert pages.known() is None
    pages.look()
    assert pages.known() is not None


def test_a_look_pays_once_as_much_was_wasted(mapping: Mapping) -> None:
    """A look at 4,003 pages is put at 200 us, an item that was there for nothing at 1."""
    pages = PresenceMap(mapping, shown=True)
    assert not pages.is_worth_a_look(0.4, 10**9)
    assert not pages.is_worth_a_look(1.0, 190)
    assert pages.is_worth_a_look(1.0, 20)
    assert pages.is_worth_a_look(0.5, 100)


def test_spans_are_present_with_all_their_pages(mapping: Mapping) -> None:
    starts = np.array([7, 8, 9, 10, 1000, PAGES - 1]) * PAGE_BYTES + 5
    pages = PresenceMap(mapping, shown=True)
    assert pages.spans_present(starts, 1).tolist() == [True, True, True, False, True, True]
    assert pages.spans_present(starts[:5], PAGE_BYTES).tolist() == [True, True, False, False, False]
    assert pages.spans_present(starts[:0], 1).size == 0


def test_a_refusal_names_the_file(mapping: Mapping, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.ENOMEM, "no")

    monkeypatch.setattr(libc, "call", refused)
    with pytest.raises(MappingError) as caught:
        PresenceMap(mapping, shown=True).spans_present(np.array([0]), 1)
    assert (caught.value.errno, caught.value.path) == (errno.ENOMEM, mapping.path)


def test_where_it_is_hidden_nothing_is_present(mapping: Mapping) -> None:
    pages = PresenceMap(mapping, shown=False)
    assert not pages.spans_present(np.array(HELD) * PAGE_BYTES, 1).any()


def test_pages_that_go_are_seen_to_be_gone(mapping: Mapping) -> None:
    pages = PresenceMap(mapping, shown=True)
    pages.look()
    os.truncate(mapping.path, 1000 * PAGE_BYTES)
    assert set_bits(pages.look()) == [page for page in HELD if page < 1000]


def test_a_kernel_short_of_memory_tells_nothing(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> int:
        raise OSError(errno.EAGAIN, "no")

    monkeypatch.setattr(libc, "call", busy)
    pages = PresenceMap(mapping, shown=True)
    assert not pages.spans_present(np.array(HELD) * PAGE_BYTES, 1).any()
    assert set_bits(pages.look()) == []


@pytest.mark.parametrize(("look_s", "age_s"), [(0.01, 2.0), (0.25, 5.0), (3.0, 10.0)])
def test_what_a_look_costs_stretches_its_age_up_to_ten_seconds(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch, look_s: float, age_s: float
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pages = PresenceMap(mapping, shown=True)

    def slow(_address: int, count: int) -> np.ndarray:
        now[0] += look_s
        return np.ones(count, np.bool_)

    monkeypatch.setattr(pages, "_resident", slow)
    pages.look()
    now[0] = 1000.0 + age_s - 0.01
    assert pages.known() is not None
    now[0] = 1000.0 + age_s + 0.01
    assert pages.known() is None
