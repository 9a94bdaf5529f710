"""What a disk does when it is tried, and that nothing is left of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from capabilities import requires
from overspill.errors import UnavailableError
from overspill.linux import disk_trial
from overspill.linux.disk_trial import DiskTrial, try_disk

from .injection import Injected


def test_a_disk_that_does(tmp_path: Path) -> None:
    assert try_disk(tmp_path) == DiskTrial(True, True, True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_can_be_made(tmp_path: Path) -> None:
    found = try_disk(tmp_path / "missing")
    assert not found.writable and found.reserves is None and found.errno == errno.ENOENT
    assert found.reason == "No such file or directory"


def test_a_file_system_that_cannot_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Injected(monkeypatch, "fallocate", errno.EOPNOTSUPP)
    found = try_disk(tmp_path)
    assert found.writable and found.reserves is False and found.locks is None
    assert found.errno == errno.EOPNOTSUPP and "cannot reserve" in str(found.reason)
    assert list(tmp_path.iterdir()) == []


@requires("loop_device")
def test_a_full_disk(loop_disk: Callable[[int], Path]) -> None:
    disk = loop_disk(4 << 20)
    (disk / "all").write_bytes(b"")
    with pytest.raises(OSError, match="No space"), (disk / "all").open("wb") as file:
        file.write(bytes(8 << 20))
    assert try_disk(disk).errno == errno.ENOSPC


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> bool:
        raise UnavailableError("the file cannot be locked: no locks", errno=errno.ENOLCK)

    monkeypatch.setattr(disk_trial, "lock_exclusive", refuse)
    found = try_disk(tmp_path)
    assert found.reserves is True and found.locks is False and found.errno == errno.ENOLCK
