"""What is measured: under fake control groups of either version and none, on real small disks."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from capabilities import requires
from linux.fake_trees import MIB, V1_NO_LIMIT, FakeSystem, v1_group, v2_group
from linux.injection import Injected
from overspill.cli.doctor import measure as measuring
from overspill.cli.doctor.machine import SpillDirectory
from overspill.cli.doctor.measure import (
    Places,
    measure,
    measure_memory,
    measure_processors,
    measure_shm,
    measure_spill_directory,
)
from overspill.errors import SpillDirError
from overspill.linux.disk_trial import try_disk

NAMES = ("OVERSPILL_DIR", "GIGL_TENSOR_SPILL_DIR", "OVERSPILL_MIN_BYTES", "OMP_NUM_THREADS")


@pytest.fixture(autouse=True)
def blank_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def system(tmp_path: Path) -> FakeSystem:
    return FakeSystem(tmp_path / "system", available_bytes=800 * MIB)


def test_a_group_of_version_2(system: FakeSystem) -> None:
    system.groups = ["0::/job"]
    root = system.mount("cgroup", "cgroup2")
    group = v2_group(
        root / "job",
        *(1000 * MIB, 900 * MIB),
        anon=300 * MIB,
        file=600 * MIB,
        shmem=200 * MIB,
        file_dirty=50 * MIB,
        file_writeback=10 * MIB,
    )
    (group / "memory.events").write_text("oom 1\noom_kill 4\n")
    (group / "cpu.max").write_text("150000 100000\n")
    held = measure_memory(system.proc)
    assert (held.group, held.limit_bytes, held.usage_bytes) == (
        str(group),
        1000 * MIB,
        900 * MIB,
    )
    assert (held.anon_bytes, held.shmem_bytes, held.dirty_bytes) == (300 * MIB, 200 * MIB, 60 * MIB)
    assert held.clean_file_bytes == 340 * MIB
    assert held.available_bytes == 440 * MIB  # the headroom, less than what the machine has
    assert held.kills == 4
    assert held.total_bytes == 128 << 30
    assert measure_processors(system.proc).quota == 1.5


def test_a_group_of_version_1(system: FakeSystem) -> None:
    system.groups = ["4:memory:/docker/a", "2:cpu,cpuacct:/docker/a"]
    root = system.mount("memory", "cgroup", options="rw,memory")
    group = v1_group(
        root / "docker/a",
        64 * MIB,
        60 * MIB,
        rss=20 * MIB,
        cache=40 * MIB,
        shmem=8 * MIB,
        dirty=MIB,
    )
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    cpu = system.mount("cpu", "cgroup", options="rw,cpu,cpuacct") / "docker/a"
    cpu.mkdir(parents=True)
    (cpu / "cpu.cfs_quota_us").write_text("200000\n")
    (cpu / "cpu.cfs_period_us").write_text("100000\n")
    held = measure_memory(system.proc)
    assert (held.limit_bytes, held.anon_bytes, held.shmem_bytes) == (64 * MIB, 20 * MIB, 8 * MIB)
    assert (held.clean_file_bytes, held.dirty_bytes, held.kills) == (31 * MIB, MIB, 2)
    assert measure_processors(system.proc).quota == 2.0


@pytest.mark.parametrize("version", ["1", "2", "none"])
def test_without_a_limit_the_machine_is_told(system: FakeSystem, version: str) -> None:
    if version == "1":
        system.groups = ["4:memory:/a"]
        v1_group(system.mount("memory", "cgroup", options="memory") / "a", V1_NO_LIMIT, MIB)
    if version == "2":
        system.groups = ["0::/a"]
        v2_group(system.mount("cgroup", "cgroup2") / "a", "max", MIB)
    held = measure_memory(system.proc)
    assert (held.group, held.limit_bytes, held.kills) == (None, None, None)
    assert held.available_bytes == 800 * MIB
    assert held.total_bytes == 128 << 30 and held.usage_bytes == (128 << 30) - 1024
    assert measure_processors(system.proc).quota is None


def test_nothing_can_be_read(tmp_path: Path) -> None:
    held = measure_memory(tmp_path / "nowhere")
    assert held.available_bytes is None and held.limit_bytes is None and held.usage_bytes is None
    assert measure_shm(tmp_path / "nowhere").total_bytes is None


@requires("private_mount")
def test_memory_in_disguise_is_not_tried(
    memory_disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = memory_disk(nbytes=8 * MIB)
    assert measure_shm(disk).total_bytes == 8 * MIB
    tried: list[Path] = []
    monkeypatch.setattr(measuring, "try_disk", lambda path: tried.append(path) or try_disk(path))
    held = measure(disk / "spill").spill_dir
    assert disk not in tried
    assert held.memory_backed and held.kind == "tmpfs" and held.reserves is None
    assert not held.exists
    if held.elsewhere is not None:  # on this machine's own disk
        assert Path(held.elsewhere).name == "overspill"
    assert list(disk.iterdir()) == []


def test_a_disk_that_does(tmp_path: Path) -> None:
    spill = tmp_path / "a" / "b"
    held = measure(spill).spill_dir
    assert (held.path, held.chosen_by, held.exists) == (str(spill), "--dir", False)
    assert held.reserves and held.locks and held.refusal is None and held.elsewhere is None
    assert held.total_bytes and held.free_bytes and held.spare_bytes is not None
    assert held.spare_bytes < held.free_bytes < held.total_bytes
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Injected(monkeypatch, "fallocate", errno.EOPNOTSUPP)
    held = measure_spill_directory(SpillDirectory(path=str(tmp_path), chosen_by="--dir"), Places())
    assert held.reserves is False and "cannot reserve" in str(held.reason)
    assert not measuring.will_do(held)


def test_a_full_disk_is_told_from_one_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Injected(monkeypatch, "fallocate", errno.ENOSPC)
    held = measure_spill_directory(SpillDirectory(path=str(tmp_path), chosen_by="--dir"), Places())
    assert held.errno == errno.ENOSPC and held.reserves is False


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    held = measure(tmp_path / "file" / "spill").spill_dir
    assert held.refusal is not None and "is a file" in held.refusal and held.reserves is None


@pytest.mark.requires("unprivileged_user", "root")
def test_a_directory_of_somebody_else(tmp_path: Path, run_python: Callable[..., object]) -> None:
    script = f"""
        import os
        from pathlib import Path
        from overspill.cli.doctor.machine import SpillDirectory
        from overspill.cli.doctor.measure import Places, measure_spill_directory
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        held = SpillDirectory(path={str(tmp_path)!r}, chosen_by="--dir")
        print(measure_spill_directory(held, Places()).refusal)
    """
    tmp_path.chmod(0o755)
    done = run_python(script)
    assert "Permission denied" in done.stdout, done.stderr  # type: ignore[attr-defined]


def test_who_chose_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert measure().spill_dir.chosen_by == "current directory"
    monkeypatch.setenv("OVERSPILL_DIR", str(tmp_path / "x"))
    assert (measure().spill_dir.chosen_by, measure().spill_dir.path) == (
        "OVERSPILL_DIR",
        str(tmp_path / "x"),
    )
    assert measure(Path("y")).spill_dir.path == str(tmp_path / "y")


def test_a_setting_that_cannot_be_understood_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERSPILL_MIN_BYTES", "many")
    held = measure(tmp_path)
    assert held.settings is None
    assert held.settings_refusal == "OVERSPILL_MIN_BYTES='many' is not a size"


def test_the_current_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x").rmdir()
    with pytest.raises(SpillDirError, match="current directory has been removed"):
        measure()
    assert measure(tmp_path).spill_dir.path == str(tmp_path)
