from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest

import overspill as ov
from overspill.errors import UnavailableError
from overspill.placement.loader import LoaderRoom
from overspill.pyg.projection import measure_room
from overspill.settings import Settings, current_settings
from overspill.tensors import headroom
from overspill.tensors.headroom import held_memory_bytes, memory_headroom, memory_reserve
from overspill.tensors.rooms import measured_rooms

MIB = 1 << 20


def given(monkeypatch: pytest.MonkeyPatch, *, available: int, held: int = 0) -> None:
    monkeypatch.setattr(headroom, "available_memory_bytes", lambda: available)
    monkeypatch.setattr(headroom, "held_memory_bytes", lambda: held)


def unknown() -> int:
    raise UnavailableError("cannot be read")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, 700), (2000, 700), (1000, 600), (401, 1), (400, 0), (300, 0)],
)
def test_what_is_held_counts_against_the_limit(
    limit: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, available=700, held=400)
    assert memory_headroom(Settings(memory_limit_bytes=limit)) == expected


def test_what_cannot_be_told_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given(monkeypatch, available=700, held=400)
    monkeypatch.setattr(headroom, "available_memory_bytes", unknown)
    assert memory_headroom(Settings()) is None
    assert memory_headroom(Settings(memory_limit_bytes=1000)) == 600
    monkeypatch.setattr(headroom, "held_memory_bytes", unknown)
    assert memory_headroom(Settings(memory_limit_bytes=1000)) == 1000
    assert "the headroom is unknown" in caplog.text


def test_one_limit_means_the_same_to_tensors_batches_and_loaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = held_memory_bytes() + 300 * MIB
    with ov.settings(memory_limit_bytes=limit, random_access_reserve_bytes=0):
        rooms, loader = measured_rooms(), measure_room(None)
        spare = memory_headroom(current_settings())
    assert rooms.memory_bytes is not None and spare is not None
    for left in (rooms.memory_bytes, spare, loader.allowed_bytes - loader.base_bytes):
        assert abs(left - 300 * MIB) < 16 * MIB
    assert isinstance(loader, LoaderRoom) and loader.limit_bytes == limit


@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["anon", "shared"])
def test_anonymous_and_shared_memory_are_held(flags: int) -> None:
    before = held_memory_bytes()
    taken = mmap.mmap(-1, 32 * MIB, flags=flags | mmap.MAP_ANONYMOUS)
    view = np.frombuffer(taken, dtype=np.uint8)
    view[:] = 1
    assert 31 * MIB <= held_memory_bytes() - before <= 40 * MIB
    del view
    taken.close()


def test_the_reserve_is_a_share_of_the_tightest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "binding_memory_group", lambda: None)
    ask: Callable[[int | None], int] = lambda limit: memory_reserve(Settings(), limit)  # noqa: E731
    monkeypatch.setattr(headroom, "physical_memory_bytes", lambda: 64 << 30)
    assert (ask(None), ask(800), ask(1 << 40)) == (8 << 30, 100, 8 << 30)
    assert memory_reserve(Settings(random_access_reserve_bytes=7), 800) == 7
