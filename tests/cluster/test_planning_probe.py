"""The probe, whole, on this machine's disk in small; and where it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overspill.cluster.planning import probe
from overspill.cluster.planning.rates import ASSUMED
from overspill.errors import DiskRefusedError, SpillDirError
from overspill.linux.cgroups import usable_cpus


def test_what_one_machine_can_tell_is_measured_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_FILE_BYTES": 8 << 20, "_EDGES": 20_000, "_NODES": 2_000}.items():
        monkeypatch.setattr(probe, name, value)
    monkeypatch.setattr(probe, "_SECONDS", 0.05)
    told: list[tuple[int, int]] = []
    before = ASSUMED.having("given", network=5e9)
    rates = probe.measure_rates(tmp_path, rates=before, told=lambda *step: told.append(step))
    assert set(rates.by_source()["measured"]) == set(probe.MEASURED)
    assert rates.cores.value == usable_cpus()
    assert rates.network == before.network and rates.transport == ASSUMED.transport
    assert min(getattr(rates, name).value for name in probe.MEASURED) > 0
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert list(tmp_path.iterdir()) == []


def test_where_it_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_disk: Any
) -> None:
    with pytest.raises(SpillDirError, match="absent"):
        probe.measure_rates(tmp_path / "nothing")
    with pytest.raises(SpillDirError, match="tmpfs, which is memory"):
        probe.measure_rates(memory_disk())
    monkeypatch.setattr(probe, "spare_bytes", lambda _place: 1 << 20)
    with pytest.raises(DiskRefusedError, match="give the rates yourself") as caught:
        probe.measure_rates(tmp_path)
    assert caught.value.needed_bytes == probe.ROOM_BYTES
    assert not list(tmp_path.glob("overspill-plan-*"))
