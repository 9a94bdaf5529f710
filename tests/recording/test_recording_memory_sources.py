"""Whose memory is read: v1, v2, nested, none, gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from linux.fake_trees import MIB, FakeSystem, v1_group, v2_group
from overspill.errors import UnavailableError
from overspill.linux.cgroups import binding_memory_group
from overspill.linux.machine_memory import machine_memory
from overspill.linux.processes import process_tree_memory
from overspill.recording.memory_sources import BindingMemory, TreeMemory

GIB = 1 << 30


def machine(system: FakeSystem, total_bytes: int = 8 * GIB) -> Path:
    proc = system.proc
    (proc / "meminfo").write_text(
        f"MemTotal: {total_bytes // 1024} kB\nMemFree: {total_bytes // 2048} kB\n"
        f"AnonPages: {MIB // 1024} kB\n"
    )
    return proc


@pytest.fixture
def nested(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A limited v2 group within a limited one."""
    system = FakeSystem(tmp_path)
    root = system.mount("cg", "cgroup2")
    outer = v2_group(root / "pod", 900 * MIB, 300 * MIB)
    inner = v2_group(outer / "job", 500 * MIB, 100 * MIB, anon=70 * MIB, file=20 * MIB)
    v2_group(root, None)
    system.groups.append("0::/pod/job")
    return machine(system), outer, inner


def test_the_group_with_the_least_room_binds(nested: tuple[Path, Path, Path]) -> None:
    proc, outer, inner = nested
    memory = BindingMemory(proc)
    use = memory.read()
    assert (use.path, use.limit_bytes, use.anon_bytes) == (str(inner), 500 * MIB, 70 * MIB)
    (outer / "memory.current").write_text(str(890 * MIB))
    assert memory.read().path == str(outer)
    (outer / "memory.events").write_text("oom 3\noom_kill 2\n")
    assert memory.kill_count() == 2


def test_two_that_are_about_level_do_not_take_turns(nested: tuple[Path, Path, Path]) -> None:
    proc, outer, inner = nested
    memory = BindingMemory(proc)
    assert memory.read().path == str(inner)
    room = 500 * MIB - 100 * MIB + 20 * MIB
    (outer / "memory.current").write_text(str(900 * MIB - room + MIB))
    assert memory.read().path == str(inner)
    (outer / "memory.current").write_text(str(900 * MIB - room + 20 * MIB))
    assert memory.read().path == str(outer)


def test_v1_binds_too(tmp_path: Path) -> None:
    system = FakeSystem(tmp_path)
    point = system.mount("memory", "cgroup", options="rw,memory")
    group = v1_group(point / "job", 600 * MIB, 50 * MIB, rss=30 * MIB, cache=10 * MIB)
    system.groups.append("4:memory:/job")
    use = BindingMemory(machine(system)).read()
    assert (use.path, use.anon_bytes, use.clean_file_bytes) == (str(group), 30 * MIB, 10 * MIB)


@pytest.mark.parametrize("limit", [None, "max", 20 * GIB])
def test_without_a_limit_within_the_machines_it_is_the_machine(
    tmp_path: Path, limit: int | str | None
) -> None:
    system = FakeSystem(tmp_path)
    v2_group(system.mount("cg", "cgroup2") / "job", limit, 5 * MIB)
    system.groups.append("0::/job")
    memory = BindingMemory(machine(system))
    use = memory.read()
    assert memory.kill_count() == 0
    assert (use.limit_bytes, use.usage_bytes, use.anon_bytes) == (8 * GIB, 4 * GIB, MIB)
    assert use.path.endswith("/meminfo")


@pytest.mark.parametrize("limit", [7 * GIB, 8 * GIB, 9 * GIB])
def test_a_recording_names_the_group_that_everything_else_names(tmp_path: Path, limit: int) -> None:
    system = FakeSystem(tmp_path)
    root = system.mount("cg", "cgroup2")
    v2_group(root / "pod", limit, 6 * GIB)
    v2_group(root / "pod/job", 20 * GIB, MIB)
    system.groups.append("0::/pod/job")
    proc = machine(system)
    binding = binding_memory_group(proc)
    assert BindingMemory(proc).read() == (binding or machine_memory(proc=proc))
    assert (binding is None) == (limit > 8 * GIB)


def test_a_limit_that_is_lifted_and_a_group_that_goes(nested: tuple[Path, Path, Path]) -> None:
    proc, outer, inner = nested
    memory = BindingMemory(proc)
    for group in (outer, inner):
        (group / "memory.max").write_text("max\n")
    assert memory.read().path.endswith("/meminfo")
    for group in (outer, inner):
        (group / "memory.current").unlink()
    with pytest.raises(UnavailableError, match="cannot be read any more"):
        memory.read()


def test_without_proc_nothing_can_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="machine's memory cannot be read"):
        BindingMemory(tmp_path)


def test_a_tree_adds_up_its_processes() -> None:
    use = TreeMemory(os.getpid(), 5 * GIB).read()
    expected = process_tree_memory()
    assert use.limit_bytes == 5 * GIB
    assert abs(use.anon_bytes - expected.anon_bytes) < 64 * MIB
    assert use.usage_bytes > use.anon_bytes > MIB
