"""A spill directory for a test, and what must be gone from it afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import overspill as ov
from overspill.storage.workspace import leave_runs
from overspill.tensors import headroom


@pytest.fixture
def spill_dir(tmp_path: Path) -> Iterator[Path]:
    """Spilling on, from one byte, into a directory of this test's own; its runs left afterwards."""
    place = tmp_path / "spill"
    with ov.settings(spill_dir=place, min_bytes=1):
        yield place
        leave_runs()


@pytest.fixture
def no_spill_dir() -> Iterator[None]:
    """Spilling off."""
    with ov.settings(spill_dir=None, min_bytes=None):
        yield
        leave_runs()


@pytest.fixture
def empty_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process seems to hold no memory, so that a limit on memory is what is left of it."""
    monkeypatch.setattr(headroom, "held_memory_bytes", lambda: 0)


def spill_files(place: Path) -> list[Path]:
    """Every spill file below a spill directory."""
    return sorted(place.glob("run-*/spill_*.bin"))


def open_descriptors() -> set[str]:
    """What this process has open, by number and target."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {entry.readlink()}")
        except OSError:  # the listing's own
            continue
    return found
