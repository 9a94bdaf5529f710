from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import overspill as ov
from benchmarks import place
from benchmarks.machine import described, read_ahead_kib
from benchmarks.place import place_for, require_disk
from overspill.errors import DiskRefusedError, SpillDirError


def test_everything_written_is_gone_afterwards(tmp_path: Path) -> None:
    with place_for(tmp_path, 1) as made:
        (made / "deep").mkdir()
        (made / "deep" / "file").write_bytes(b"x")
        assert ov.is_tensor_spilling_enabled()
        assert made.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_everything_written_is_gone_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), place_for(tmp_path, 1) as made:
        (made / "file").write_bytes(b"x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requires("private_mount")
@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_memory_in_disguise_is_refused(kind: str, memory_disk: Callable[..., Path]) -> None:
    point = memory_disk(kind)
    with pytest.raises(SpillDirError, match=kind), place_for(point, 1):
        pass
    assert list(point.iterdir()) == []


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "total_disk_bytes", lambda _path: 2000)
    monkeypatch.setattr(place, "free_disk_bytes", lambda _path: 1100)
    require_disk(tmp_path, 1000)  # a twentieth of the disk stays free
    with pytest.raises(DiskRefusedError) as caught, place_for(tmp_path, 1001):
        pass
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (1001, 1000)
    assert caught.value.errno == errno.ENOSPC and caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_the_machine_is_described(tmp_path: Path) -> None:
    told = described(tmp_path)
    assert {"cpus", "load", "kernel", "file system", "read-ahead KiB", "torch"} <= set(told)
    assert told["file system"] not in ("", "unknown")


@pytest.mark.parametrize("partition", [False, True])
def test_read_ahead_is_the_disk_s_also_for_a_partition(partition: bool, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    major, minor = divmod(device, 256)
    disk = tmp_path / "devices" / "disk"
    place = disk / "part" if partition else disk
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "read_ahead_kb").write_text("4096\n")
    place.mkdir(exist_ok=True)
    entry = tmp_path / "dev" / "block" / f"{major}:{minor}"
    entry.parent.mkdir(parents=True)
    entry.symlink_to(place)
    assert read_ahead_kib(tmp_path, sys=tmp_path) == 4096


def test_read_ahead_that_is_not_told_is_none(tmp_path: Path) -> None:
    assert read_ahead_kib(tmp_path, sys=tmp_path) is None
