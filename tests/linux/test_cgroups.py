"""Limits as v1, v2, hybrid and nested trees tell them, in containers and out."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import psutil
import pytest

from overspill.errors import UnavailableError
from overspill.linux import cgroups
from overspill.linux.cgroups import (
    TaskUse,
    available_memory_bytes,
    binding_memory_group,
    binding_task_group,
    cpu_quota,
    kill_count,
    memory_groups,
    usable_cpus,
)

from .fake_trees import MIB, V1_NO_LIMIT, FakeSystem, v1_group, v2_group


@pytest.fixture
def system(tmp_path: Path) -> FakeSystem:
    return FakeSystem(tmp_path)


def headroom(system: FakeSystem) -> int | None:
    binding = binding_memory_group(system.proc)
    return None if binding is None else binding.headroom_bytes


def test_v2_own_limit(system: FakeSystem) -> None:
    system.groups = ["0::/app"]
    root = system.mount("cgroup", "cgroup2")
    v2_group(root, None)
    v2_group(root / "app", 100 * MIB, 60 * MIB, anon=50 * MIB, file=10 * MIB)
    (use,) = memory_groups(system.proc)
    assert (use.limit_bytes, use.usage_bytes, use.anon_bytes) == (100 * MIB, 60 * MIB, 50 * MIB)
    assert use.path == str(root / "app")
    assert headroom(system) == 50 * MIB
    assert available_memory_bytes(system.proc) == 50 * MIB


def test_only_clean_file_pages_count_as_headroom(system: FakeSystem) -> None:
    system.groups = ["0::/app"]
    v2_group(
        system.mount("cgroup", "cgroup2") / "app",
        100 * MIB,
        90 * MIB,
        anon=10 * MIB,
        file=80 * MIB,  # as the kernel counts it: shmem, dirty and write-back within
        shmem=30 * MIB,
        file_dirty=15 * MIB,
        file_writeback=5 * MIB,
    )
    use = binding_memory_group(system.proc)
    assert use is not None
    assert use.clean_file_bytes == 30 * MIB
    assert (use.shmem_bytes, use.dirty_bytes, use.writeback_bytes) == (30 * MIB, 15 * MIB, 5 * MIB)
    assert use.headroom_bytes == 40 * MIB


def test_locked_file_pages_are_not_headroom(system: FakeSystem) -> None:
    system.groups = ["0::/app"]
    group = system.mount("cgroup", "cgroup2") / "app"
    v2_group(group, 100 * MIB, 80 * MIB, file=80 * MIB, active_file=5 * MIB, inactive_file=7 * MIB)
    assert headroom(system) == 32 * MIB


@pytest.mark.parametrize(
    ("outer", "middle", "inner", "tightest"),
    [
        ((50, 10), (200, 10), (100, 10), "outer"),  # a parent tighter than its child
        ((500, 10), (200, 195), (100, 10), "middle"),  # a parent that siblings have filled
        (("max", 10), ("max", 10), (100, 90), "inner"),
    ],
)
def test_the_tightest_ancestor_decides(
    system: FakeSystem,
    outer: tuple[int | str, int],
    middle: tuple[int | str, int],
    inner: tuple[int | str, int],
    tightest: str,
) -> None:
    system.groups = ["0::/outer/middle/inner"]
    root = system.mount("cgroup", "cgroup2")
    places = {
        "outer": root / "outer",
        "middle": root / "outer/middle",
        "inner": root / "outer/middle/inner",
    }
    for name, (limit, usage) in {"outer": outer, "middle": middle, "inner": inner}.items():
        bytes_or_max = limit if isinstance(limit, str) else limit * MIB
        v2_group(places[name], bytes_or_max, usage * MIB)
    binding = binding_memory_group(system.proc)
    assert binding is not None
    assert binding.path == str(places[tightest])


def test_max_everywhere_leaves_the_system(system: FakeSystem) -> None:
    system.groups = ["0::/a/b"]
    system.available_bytes = 7 << 30
    root = system.mount("cgroup", "cgroup2")
    v2_group(root / "a", "max", 5 * MIB)
    v2_group(root / "a/b", "max", 4 * MIB)
    assert binding_memory_group(system.proc) is None
    assert available_memory_bytes(system.proc) == 7 << 30
    (own,) = memory_groups(system.proc)  # the own group is told although nothing limits it
    assert (own.usage_bytes, own.limit_bytes, own.headroom_bytes) == (4 * MIB, None, None)


def test_memory_high_binds_where_it_is_lower(system: FakeSystem) -> None:
    system.groups = ["0::/a"]
    group = v2_group(system.mount("cgroup", "cgroup2") / "a", 100 * MIB, 10 * MIB)
    (group / "memory.high").write_text(f"{40 * MIB}\n")
    assert headroom(system) == 30 * MIB
    (group / "memory.high").write_text("max\n")
    assert headroom(system) == 90 * MIB


def test_a_limit_above_the_machines_memory_is_none(system: FakeSystem) -> None:
    system.groups = ["0::/pod/job"]
    system.total_bytes, system.available_bytes = 8 << 30, 3 << 30
    root = system.mount("cgroup", "cgroup2")
    pod, job = v2_group(root / "pod", 20 << 30, 6 << 30), v2_group(root / "pod/job", 9 << 30, MIB)
    assert binding_memory_group(system.proc) is None
    assert available_memory_bytes(system.proc) == 3 << 30
    (own,) = memory_groups(system.proc)
    assert (own.path, own.limit_bytes) == (str(job), None)
    (pod / "memory.high").write_text(f"{8 << 30}\n")  # equal: lxcfs tells the limit as MemTotal
    binding = binding_memory_group(system.proc)
    assert binding is not None
    assert (binding.path, binding.limit_bytes) == (str(pod), 8 << 30)
    (system.base / "proc/meminfo").unlink()  # unknown: every limit counts
    (own, _) = memory_groups(system.base / "proc")
    assert own.limit_bytes == 9 << 30


def test_a_group_over_its_limit_has_no_headroom(system: FakeSystem) -> None:
    system.groups = ["0::/a"]
    v2_group(system.mount("cgroup", "cgroup2") / "a", 10 * MIB, 12 * MIB)
    assert headroom(system) == 0


def test_the_system_may_be_tighter_than_the_group(system: FakeSystem) -> None:
    system.groups = ["0::/a"]
    system.available_bytes = 3 * MIB
    v2_group(system.mount("cgroup", "cgroup2") / "a", 100 * MIB, 12 * MIB)
    assert available_memory_bytes(system.proc) == 3 * MIB


def test_v1(system: FakeSystem) -> None:
    system.groups = ["4:memory:/docker/abc", "2:cpu,cpuacct:/docker/abc", "0::/"]
    root = system.mount("memory", "cgroup", options="rw,memory")
    v1_group(root, V1_NO_LIMIT, 900 * MIB)
    v1_group(root / "docker", V1_NO_LIMIT, 90 * MIB)
    v1_group(
        root / "docker/abc",
        64 * MIB,
        60 * MIB,
        rss=20 * MIB,
        cache=40 * MIB,
        shmem=8 * MIB,
        dirty=4 * MIB,
        writeback=2 * MIB,
    )
    (use,) = memory_groups(system.proc)
    assert use.limit_bytes == 64 * MIB
    assert (use.anon_bytes, use.shmem_bytes, use.clean_file_bytes) == (20 * MIB, 8 * MIB, 26 * MIB)
    assert use.headroom_bytes == 30 * MIB


@pytest.mark.parametrize("number", [V1_NO_LIMIT, 2**63 - 1, 9223372036854710272])
def test_v1_huge_numbers_mean_no_limit(system: FakeSystem, number: int) -> None:
    system.groups = ["4:memory:/a"]  # the last is a machine with 64 KiB pages
    v1_group(system.mount("memory", "cgroup", options="memory") / "a", number, inherited=number)
    assert binding_memory_group(system.proc) is None


def test_v1_a_limit_above_what_is_visible_still_binds(system: FakeSystem) -> None:
    system.groups = ["4:memory:/a"]
    root = system.mount("memory", "cgroup", options="memory")
    v1_group(root / "a", V1_NO_LIMIT, 10 * MIB, inherited=80 * MIB)
    assert headroom(system) == 70 * MIB


def test_v1_ancestors_without_hierarchy_do_not_bind(system: FakeSystem) -> None:
    system.groups = ["4:memory:/outer/inner"]
    root = system.mount("memory", "cgroup", options="memory")
    v1_group(root / "outer", 10 * MIB, 9 * MIB)
    v1_group(root / "outer/inner", 100 * MIB, 20 * MIB)
    (root / "outer/memory.use_hierarchy").write_text("0\n")
    assert headroom(system) == 80 * MIB
    (root / "outer/memory.use_hierarchy").write_text("1\n")
    assert headroom(system) == 1 * MIB


@pytest.mark.parametrize("memory_in", ["v1", "v2"])
def test_hybrid(system: FakeSystem, memory_in: str) -> None:
    """Both versions mounted; the memory controller lives in one of them."""
    system.groups = ["4:memory:/job", "1:name=systemd:/job", "0::/job"]
    unified = system.mount("unified", "cgroup2")
    (unified / "job").mkdir()
    if memory_in == "v1":
        system.mount("systemd", "cgroup", options="rw,name=systemd")
        v1_group(system.mount("memory", "cgroup", options="rw,memory") / "job", 32 * MIB, MIB)
    else:
        del system.groups[0]
        v2_group(unified / "job", 32 * MIB, MIB)
    assert headroom(system) == 31 * MIB


@pytest.mark.parametrize(
    ("group", "root", "place"),
    [
        ("/docker/abc", "/docker/abc", "."),  # a container without a cgroup namespace
        ("/docker/abc/job", "/docker/abc", "job"),  # a group made inside of it
        ("/kube/pod/abc", "/kube", "pod/abc"),
        ("/", "/", "."),  # a cgroup namespace of its own
        ("/", "/..", "."),  # mounted from outside of the namespace: names hidden
        ("/job", "/../..", "."),
        ("/../side/job", "/..", "side/job"),
        ("/hidden/job", "/", "."),  # told, but not to be seen: the nearest visible ancestor
        ("/docker/me", "/docker/other", "."),  # nothing fits: the safe side
        ("/../side", "/", "."),
    ],
)
def test_mount_roots_are_translated(system: FakeSystem, group: str, root: str, place: str) -> None:
    system.groups = [f"0::{group}"]
    point = system.mount("cgroup", "cgroup2", root=root)
    v2_group(point / place, 20 * MIB, 5 * MIB)
    binding = binding_memory_group(system.proc)
    assert binding is not None
    assert Path(binding.path) == point / place
    assert binding.headroom_bytes == 15 * MIB


def test_the_mount_that_shows_more_is_read(system: FakeSystem) -> None:
    system.groups = ["0::/outer/inner"]
    small = system.mount("small", "cgroup2", root="/outer/inner")
    whole = system.mount("whole", "cgroup2")
    foreign = system.mount("foreign", "cgroup2", root="/other")
    v2_group(small, 100 * MIB)
    v2_group(foreign, 1 * MIB)
    v2_group(whole / "outer/inner", 100 * MIB)
    v2_group(whole / "outer", 50 * MIB)
    assert headroom(system) == 50 * MIB


def test_a_mount_point_with_a_space(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path / "with space")
    system.groups = ["0::/a"]
    v2_group(system.mount("cgroup", "cgroup2") / "a", 9 * MIB)
    assert headroom(system) == 9 * MIB


def test_nothing_to_read(system: FakeSystem, tmp_path: Path) -> None:
    assert memory_groups(system.proc) == []
    assert cpu_quota(system.proc) is None
    assert memory_groups(tmp_path / "nowhere") == []
    with pytest.raises(UnavailableError, match="available memory"):
        available_memory_bytes(tmp_path / "nowhere")


def test_an_old_kernel_tells_no_available_memory(system: FakeSystem) -> None:
    (system.proc / "meminfo").write_text("MemFree: 100 kB\nCached: 50 kB\nShmem: 20 kB\n")
    assert cgroups._system_available(system.base / "proc") == 130 * 1024


@pytest.mark.parametrize(
    ("text", "quota"),
    [("400000 100000", 4.0), ("150000 100000", 1.5), ("max 100000", None), ("20000 100000", 0.2)],
)
def test_v2_cpu_quota(system: FakeSystem, text: str, quota: float | None) -> None:
    system.groups = ["0::/a/b"]
    root = system.mount("cgroup", "cgroup2")
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/cpu.max").write_text(text + "\n")
    assert cpu_quota(system.proc) == quota
    (root / "a/cpu.max").write_text("10000 100000\n")  # an ancestor, tighter than all of them
    assert cpu_quota(system.proc) == 0.1


@pytest.mark.parametrize(("quota", "expected"), [(-1, None), (250000, 2.5)])
def test_v1_cpu_quota(system: FakeSystem, quota: int, expected: float | None) -> None:
    system.groups = ["2:cpu,cpuacct:/a"]
    group = system.mount("cpu", "cgroup", options="rw,cpu,cpuacct") / "a"
    group.mkdir()
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(system.proc) == expected


def set_tasks(group: Path, limit: object, count: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "pids.max").write_text(f"{limit}\n")
    (group / "pids.current").write_text(f"{count}\n")


def test_the_group_with_the_fewest_processes_left_binds(system: FakeSystem) -> None:
    system.groups = ["0::/a/b"]
    root = system.mount("cgroup", "cgroup2")
    set_tasks(root / "a/b", 1000, 10)
    assert binding_task_group(system.proc) == TaskUse(path=str(root / "a/b"), count=10, limit=1000)
    set_tasks(root / "a", 1200, 1150)  # more, and most of them taken by its other groups
    held = binding_task_group(system.proc)
    assert held is not None and (held.path, held.left) == (str(root / "a"), 50)
    set_tasks(root / "a", 1200, 1300)  # the limit was lowered
    held = binding_task_group(system.proc)
    assert held is not None and held.left == 0


def test_processes_of_a_v1_group(system: FakeSystem) -> None:
    system.groups = ["7:pids:/docker/a", "4:memory:/elsewhere"]
    root = system.mount("pids", "cgroup", options="rw,pids")
    set_tasks(root / "docker/a", 64, 60)
    held = binding_task_group(system.proc)
    assert held is not None and (held.limit, held.left) == (64, 4)


def test_without_a_limit_on_processes(system: FakeSystem) -> None:
    assert binding_task_group(system.proc) is None
    system.groups = ["0::/a"]
    set_tasks(system.mount("cgroup", "cgroup2") / "a", "max", 60)
    assert binding_task_group(system.proc) is None


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("400000 100000", 4), ("150000 100000", 2), ("1000 100000", 1), ("max 1", 12)],
)
def test_usable_cpus_under_a_quota(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch, text: str, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    system.groups = ["0::/"]
    (system.mount("cgroup", "cgroup2") / "cpu.max").write_text(text)
    assert usable_cpus(system.proc) == cpus


def test_usable_cpus_under_an_affinity_mask(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    system.groups = ["0::/"]
    (system.mount("cgroup", "cgroup2") / "cpu.max").write_text("800000 100000")
    assert usable_cpus(system.proc) == 2


@pytest.mark.parametrize(
    ("name", "text", "kills"),
    [
        ("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", 7),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),  # before Linux 4.13
        ("memory.stat", "oom_kill 9\n", None),
    ],
)
def test_kills_are_counted(tmp_path: Path, name: str, text: str, kills: int | None) -> None:
    (tmp_path / name).write_text(text)
    assert kill_count(tmp_path) == kills


def test_this_machine() -> None:
    available = available_memory_bytes()
    assert 0 < available <= psutil.virtual_memory().total
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    for use in memory_groups():
        assert Path(use.path).is_dir()
        assert use.usage_bytes > 0


def test_a_value_travels_as_a_plain_record() -> None:
    use = cgroups.MemoryUse(10, 4, 1, 1, 2, 0, 0, "/x")
    assert dataclasses.replace(use, usage_bytes=100).headroom_bytes == 0
    assert use.headroom_bytes == 8
