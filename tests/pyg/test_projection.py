from __future__ import annotations

import pytest

import overspill as ov
from overspill.pyg import projection
from overspill.tensors import headroom

GIB = 1 << 30


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 TiB of memory, nothing reserved by the environment."""
    monkeypatch.setattr(headroom, "binding_memory_group", lambda: None)
    monkeypatch.setattr(headroom, "physical_memory_bytes", lambda: 1024 * GIB)
    monkeypatch.setattr(projection, "available_memory_bytes", lambda: 1024 * GIB)
    for name in (
        "OVERSPILL_RANDOM_ACCESS_RESERVE_BYTES",
        "GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES",
    ):
        monkeypatch.delenv(name, raising=False)


def test_the_reserve_is_an_eighth_of_the_limit_and_at_most_16_gib() -> None:
    assert projection.measure_room("64GiB").reserve_bytes == 8 * GIB
    assert projection.measure_room(None).reserve_bytes == 16 * GIB


@pytest.mark.parametrize("reserve", [0, 20 * GIB])
def test_a_reserve_that_is_asked_for_is_kept_as_it_is(reserve: int) -> None:
    with ov.settings(random_access_reserve_bytes=reserve):
        assert projection.measure_room(None).reserve_bytes == reserve


def test_so_is_gigls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES", str(20 * GIB))
    assert projection.measure_room("64GiB").reserve_bytes == 20 * GIB
