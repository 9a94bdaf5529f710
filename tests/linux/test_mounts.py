"""File system types on real mounts and on fake tables; room on a disk of known size."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capabilities import requires
from overspill.errors import UnavailableError
from overspill.linux import mounts
from overspill.linux.mounts import (
    backing_directory,
    filesystem_type,
    free_disk_bytes,
    has_local_locks,
    is_copy_on_write,
    is_memory_backed,
    nearest_existing,
    read_mounts,
    total_disk_bytes,
)

from .injection import Injected

MIB = 1 << 20


def fake_proc(tmp_path: Path, *lines: str) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
    return proc


def line(number: int, point: Path | str, kind: str, options: str = "rw") -> str:
    escaped = str(point).replace(" ", "\\040")
    return f"{number} 1 0:{number} / {escaped} rw,relatime shared:1 - {kind} source {options}"


@requires("private_mount")
@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_memory_is_told_from_disk(memory_disk: Callable[..., Path], kind: str) -> None:
    point = memory_disk(kind)
    assert filesystem_type(point) == kind
    assert is_memory_backed(point)
    assert is_memory_backed(point / "not" / "made" / "yet")
    assert not is_memory_backed(point.parent)
    assert not is_copy_on_write(point)


@requires("loop_device")
def test_a_disk_is_told_with_its_room(loop_disk: Callable[[int], Path]) -> None:
    disk = loop_disk(32 * MIB)
    assert filesystem_type(disk / "new" / "directory") == "ext4"
    assert not is_memory_backed(disk)
    assert not is_copy_on_write(disk)
    assert 0 < free_disk_bytes(disk / "new") < total_disk_bytes(disk) < 32 * MIB
    before = free_disk_bytes(disk)
    with (disk / "taken").open("wb") as file:
        file.write(bytes(4 * MIB))
        file.flush()
        os.fsync(file.fileno())
    assert free_disk_bytes(disk) <= before - 4 * MIB


@requires("private_mount")
def test_links_lead_to_where_the_bytes_are(
    memory_disk: Callable[..., Path], tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(memory_disk("tmpfs"))
    assert is_memory_backed(link / "below")


@requires("private_mount")
def test_an_overlay_is_judged_by_its_upper_directory(
    memory_disk: Callable[..., Path], tmp_path: Path
) -> None:
    memory = memory_disk("tmpfs")
    for name in ("upper", "work"):
        (memory / name).mkdir()
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    lower.mkdir()
    merged.mkdir()
    options = f"lowerdir={lower},upperdir={memory}/upper,workdir={memory}/work"
    if os.system(f"mount -t overlay -o {options} overlay {merged}") != 0:
        pytest.skip("no overlay file system")
    try:
        assert filesystem_type(merged) == "overlay"
        assert is_memory_backed(merged / "x")
    finally:
        assert os.system(f"umount {merged}") == 0


def test_the_longest_mount_point_decides_and_of_equals_the_last(tmp_path: Path) -> None:
    proc = fake_proc(
        tmp_path,
        line(901, "/", "ext4"),
        line(902, tmp_path / "data", "xfs"),
        line(903, tmp_path / "data" / "zed", "zfs"),
        line(904, tmp_path / "data", "btrfs"),
        line(905, tmp_path / "database", "tmpfs"),
    )
    (tmp_path / "data" / "zed").mkdir(parents=True)
    assert filesystem_type(tmp_path / "data" / "x", proc=proc) == "btrfs"
    assert filesystem_type(tmp_path / "data" / "zed", proc=proc) == "zfs"
    assert filesystem_type(tmp_path, proc=proc) == "ext4"


def test_the_device_tells_a_mount_from_the_one_that_hides_it(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    real = line(901, tmp_path.parent, "xfs").replace(
        "0:901", f"{os.major(device)}:{os.minor(device)}"
    )
    proc = fake_proc(tmp_path, line(900, "/", "ext4"), real, line(902, tmp_path, "tmpfs"))
    assert filesystem_type(tmp_path, proc=proc) == "xfs"


@pytest.mark.parametrize("kind", ["zfs", "btrfs", "bcachefs"])
def test_copy_on_write_is_known(tmp_path: Path, kind: str) -> None:
    proc = fake_proc(tmp_path, line(900, "/", kind))
    assert is_copy_on_write(tmp_path, proc=proc)
    assert not is_memory_backed(tmp_path, proc=proc)


@pytest.mark.parametrize(
    ("options", "local"),
    [
        ("rw,vers=4.2,local_lock=none,addr=10.0.0.1", False),
        ("rw,vers=3,local_lock=all", True),
        ("rw,localflock", True),
        ("rw,flock,lazystatfs", False),
    ],
)
def test_locks_that_reach_no_other_machine_are_known(
    tmp_path: Path, options: str, local: bool
) -> None:
    proc = fake_proc(tmp_path, line(900, "/", "ext4"), line(901, tmp_path, "lustre", options))
    assert has_local_locks(tmp_path / "spill", proc=proc) is local
    assert not has_local_locks("/", proc=proc)
    assert not has_local_locks(tmp_path, proc=tmp_path / "none")


@pytest.mark.parametrize(("seen", "copy_on_write"), [(True, True), (False, False)])
def test_an_overlay_whose_upper_directory_is_out_of_sight_counts_as_ordinary(
    tmp_path: Path, seen: bool, copy_on_write: bool
) -> None:
    upper, merged = tmp_path / "upper dir", tmp_path / "merged"
    merged.mkdir()
    if seen:
        upper.mkdir()
    escaped = str(upper).replace(" ", "\\040")
    proc = fake_proc(
        tmp_path,
        line(900, "/", "btrfs"),
        line(901, merged, "overlay", f"rw,lowerdir=/l,upperdir={escaped},workdir=/w"),
    )
    assert is_copy_on_write(merged, proc=proc) is copy_on_write
    assert backing_directory(merged / "x", proc=proc) == (upper if seen else merged)


def test_an_overlay_upon_itself_ends(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, line(900, "/", "overlay", f"rw,upperdir={tmp_path}"))
    assert not is_copy_on_write(tmp_path, proc=proc)
    assert backing_directory(tmp_path, proc=proc) == tmp_path


def test_names_are_unescaped(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, r"1 0 8:1 /a\040b /c\011d\134e rw - ext4 /dev/x rw,x=\054y")
    (mount,) = read_mounts(proc)
    assert (mount.root, mount.point) == ("/a b", "/c\td\\e")
    assert (mount.device, mount.kind, mount.options) == (os.makedev(8, 1), "ext4", ("rw", "x=,y"))


def test_without_a_table_the_magic_number_tells(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(UnavailableError):
        read_mounts(nowhere)
    assert filesystem_type("/dev/shm", proc=nowhere) == "tmpfs"
    assert filesystem_type("/proc", proc=nowhere) == "0x9fa0"
    assert is_memory_backed("/dev/shm", proc=nowhere)


def test_a_file_system_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Injected(monkeypatch, "statfs", errno.EIO)
    with pytest.raises(UnavailableError) as caught:
        filesystem_type(tmp_path, proc=tmp_path / "nowhere")
    assert caught.value.errno == errno.EIO

    def refused(_: Path) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(mounts.os, "statvfs", refused)
    with pytest.raises(UnavailableError, match="cannot be asked"):
        free_disk_bytes(tmp_path)


def test_a_loop_of_links_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert nearest_existing(tmp_path / "a" / "c") == tmp_path
    assert nearest_existing("/no/such/place") == Path("/")
