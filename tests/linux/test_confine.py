"""Hard limits that kill, groups that leave nothing, and the peaks that were sampled."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capabilities import requires
from overspill.errors import UnavailableError
from overspill.linux import confine
from overspill.linux.cgroups import MemoryUse, memory_directories
from overspill.linux.confine import MemoryGroup, PeakSampler

from .fake_trees import MIB, FakeSystem, v2_group


@requires("memory_cgroup")
def test_a_process_over_the_limit_is_killed_and_one_under_it_is_not(
    memory_group: Callable[[int], MemoryGroup],
) -> None:
    group = memory_group(96 * MIB)
    hold = "import sys; bytearray(int(sys.argv[1]) << 20)"
    for size, expected in ((20, 0), (200, -signal.SIGKILL)):
        command = group.command([sys.executable, "-S", "-c", hold, str(size)])
        assert subprocess.run(command).returncode == expected
    assert group.kill_count() == 1


@requires("memory_cgroup")
def test_the_command_keeps_arguments_output_and_status(
    memory_group: Callable[[int], MemoryGroup],
) -> None:
    group = memory_group(64 * MIB)
    words = ["two words", "$HOME", "", "*", "a'b\"c"]
    script = 'for word; do echo "[$word]"; done; cat /proc/self/cgroup >&2; exit 7'
    done = subprocess.run(
        group.command(["sh", "-c", script, "sh", *words]), capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:-1] == [f"[{word}]" for word in words]
    assert done.returncode == 7
    assert group.directory is not None
    assert group.directory.name in done.stderr  # it ran inside


@requires("memory_cgroup")
def test_the_limit_binds_descendants_and_is_what_they_see(
    run_python: Callable[..., Any],
) -> None:
    result = run_python(
        """
        import multiprocessing
        from overspill.linux.cgroups import available_memory_bytes, binding_memory_group
        def child(out):
            out.put((binding_memory_group().limit_bytes, available_memory_bytes()))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            limit, available = queue.get()
            process.join()
            assert limit == 150 << 20, limit
            assert 0 < available < limit, available
        """,
        limit_bytes=150 * MIB,
    )
    result.check()


@requires("memory_cgroup")
def test_page_cache_of_a_writer_stays_headroom(run_python: Callable[..., Any]) -> None:
    """Write four times the limit; it lives, and what is clean counts as available."""
    result = run_python(
        """
        import os
        from overspill.linux.blocks import finish_writeback, reserve_blocks, write_all
        from overspill.linux.cgroups import available_memory_bytes, binding_memory_group
        before = available_memory_bytes()
        fd = os.open(__file__ + ".bin", os.O_RDWR | os.O_CREAT)
        os.unlink(__file__ + ".bin")
        reserve_blocks(fd, 320 << 20, path="here")
        for at in range(0, 320 << 20, 8 << 20):
            write_all(fd, b"w" * (8 << 20), at, path="here")
        os.fsync(fd)
        use = binding_memory_group()
        print(before - available_memory_bytes(), use.clean_file_bytes, use.usage_bytes)
        """,
        limit_bytes=80 * MIB,
    )
    lost, clean, usage = map(int, result.check().stdout.split())
    assert clean > 20 * MIB
    assert lost < 16 * MIB  # a naive limit minus usage would have lost all of it
    assert usage > clean
    assert result.peaks.anon_bytes < 60 * MIB


@requires("memory_cgroup")
def test_closing_kills_what_is_left_and_removes_the_group() -> None:
    with MemoryGroup.create(64 * MIB, name_hint="overspill-test") as group:
        script = "trap '' TERM; cat & echo ready; cat"  # two processes, deaf to SIGTERM
        child = subprocess.Popen(
            group.command(["sh", "-c", script]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        directory = group.directory
        assert directory is not None
        (directory / "inner").mkdir()  # a group that a confined process made
    assert not directory.exists()
    assert child.wait() == -signal.SIGKILL
    child.communicate()
    group.close()  # again is no error
    with pytest.raises(UnavailableError, match="cannot be read"):
        group.read()


@requires("memory_cgroup")
def test_groups_leave_nothing_behind() -> None:
    (parent, *_), *_ = memory_directories()
    before = own_groups(parent)
    with pytest.raises(ZeroDivisionError), MemoryGroup.create(MIB, name_hint="overspill-test"):
        1 / 0  # noqa: B018
    assert own_groups(parent) == before


def own_groups(parent: Path) -> set[str]:
    return {one.name for one in parent.iterdir() if f"-{os.getpid()}-" in one.name}


@requires("memory_cgroup")
def test_a_forked_child_does_not_remove_the_group(
    memory_group: Callable[[int], MemoryGroup],
) -> None:
    group = memory_group(64 * MIB)
    pid = os.fork()
    if pid == 0:
        group.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert group.read().limit_bytes == 64 * MIB


@requires("memory_cgroup")
def test_peaks_of_a_group_are_sampled(memory_group: Callable[[int], MemoryGroup]) -> None:
    group = memory_group(256 * MIB)
    script = (
        "import mmap, sys; held = bytearray(50 << 20); shared = mmap.mmap(-1, 30 << 20)\n"
        "shared.write(b's' * (30 << 20)); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        group.command([sys.executable, "-c", script]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    sampler = PeakSampler(group)
    sampler.sample()
    child.communicate()
    peaks = sampler.peaks
    assert 50 * MIB < peaks.anon_bytes < 80 * MIB
    assert 29 * MIB < peaks.shmem_bytes < 33 * MIB
    assert peaks.anon_shmem_bytes >= peaks.anon_bytes + 29 * MIB
    assert peaks.samples == 1


class Script:
    """A group whose uses are given, and which tells when they are through."""

    def __init__(self, uses: list[tuple[int, int, int, int]]) -> None:
        self.uses = uses
        self.through = threading.Event()

    def read(self) -> MemoryUse:
        if not self.uses:
            self.through.set()
            raise UnavailableError("gone")
        anon, shmem, clean, dirty = self.uses.pop(0)
        return MemoryUse(None, 0, anon, shmem, clean, dirty - 1, 1, "/x")


def test_the_sampler_keeps_the_largest_of_each_and_the_sum_at_one_moment() -> None:
    script = Script([(10, 1, 5, 2), (4, 8, 50, 1), (9, 3, 7, 9)])
    with PeakSampler(script, interval_s=0.001) as sampler:
        assert script.through.wait(120)
    peaks = sampler.peaks
    assert (peaks.anon_bytes, peaks.shmem_bytes) == (10, 8)
    assert (peaks.clean_file_bytes, peaks.dirty_bytes) == (50, 9)
    assert (peaks.anon_shmem_bytes, peaks.samples) == (12, 3)
    assert sampler.stop() == peaks  # again


def test_a_process_tree_is_sampled_without_a_group() -> None:
    with PeakSampler(interval_s=60) as sampler:
        pass
    assert sampler.peaks.anon_bytes > 5 * MIB
    assert sampler.peaks.samples == 2
    nobody = PeakSampler(pid=2**22 - 1)
    nobody.sample()
    assert nobody.peaks.samples == 0


def test_nowhere_to_make_a_group_tells_every_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    system = FakeSystem(tmp_path)
    system.groups = ["0::/a"]
    v2_group(system.mount("cgroup", "cgroup2") / "a", "max")
    with pytest.raises(UnavailableError) as caught:
        MemoryGroup.create(MIB, proc=system.proc)
    assert "not handed on to children" in str(caught.value)
    assert "systemd-run is not installed" in str(caught.value)
    assert [one.name for one in (tmp_path / "cgroup").rglob("*") if one.is_dir()] == ["a"]


@pytest.mark.parametrize("swap", [True, False])
def test_a_v2_group_is_made_where_a_parent_hands_memory_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: bool
) -> None:
    """A group with processes cannot hand on memory (v2's rule): its parent's child is made."""
    system = FakeSystem(tmp_path)
    system.groups = ["0::/slice/session"]
    point = system.mount("cgroup", "cgroup2")
    v2_group(point / "slice/session", "max")
    real = Path.mkdir

    def mkdir(self: Path, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        if self.parent == point / "slice":  # what the kernel puts there
            for name in ("memory.max", "cgroup.procs", *(["memory.swap.max"] if swap else [])):
                (self / name).touch()

    proc = system.proc
    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = MemoryGroup.create(50 * MIB, proc=proc)
    assert group.directory is not None
    assert group.directory.parent == point / "slice"
    assert (group.directory / "memory.max").read_text() == str(50 * MIB)
    assert (group.directory / "memory.swap.max").exists() is swap
    assert not swap or (group.directory / "memory.swap.max").read_text() == "0"
    (group.directory / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert group.kill_count() == 2


@requires("memory_cgroup")
@pytest.mark.parametrize("failing", ["memory.limit_in_bytes", "cgroup.procs"])
def test_a_group_that_cannot_be_limited_is_not_left(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (parent, *_), *_ = memory_directories()
    real = Path.write_text

    def write_text(self: Path, *arguments: Any, **options: Any) -> int:
        if self.name == failing:
            raise PermissionError(errno.EACCES, "denied")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    monkeypatch.setattr(confine.os, "access", lambda *_: failing != "cgroup.procs")
    monkeypatch.setenv("PATH", "")
    before = own_groups(parent)
    with pytest.raises(UnavailableError):
        MemoryGroup.create(64 * MIB)
    assert own_groups(parent) == before


@requires("memory_cgroup")
def test_a_group_that_cannot_be_removed_is_told(
    memory_group: Callable[[int], MemoryGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = memory_group(64 * MIB)
    directory = group.directory
    assert directory is not None

    def refused(_: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "rmdir", refused)
    with pytest.raises(UnavailableError, match=r"cgroup\.procs"):
        group.close()
    monkeypatch.undo()
    directory.rmdir()


FAKE_RUN = """#!/bin/sh
echo "$@" >> "$FAKE_LOG"
while [ "$1" != "--" ]; do shift; done; shift
exec "$@"
"""
FAKE_CONTROL = """#!/bin/sh
echo "$@" >> "$FAKE_LOG"
"""


def test_a_systemd_scope_where_no_group_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    for name, text in (("systemd-run", FAKE_RUN), ("systemctl", FAKE_CONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(log))
    with MemoryGroup.create(77 * MIB, proc=tmp_path / "nowhere") as group:
        assert group.directory is None
        done = subprocess.run(group.command(["echo", "a b"]), capture_output=True, text=True)
        assert done.stdout == "a b\n"
        with pytest.raises(UnavailableError):
            group.read()
        assert group.kill_count() == 0
    probe, run, *control = log.read_text().splitlines()
    assert probe.endswith("-- true")
    assert f"-p MemoryMax={77 * MIB} -p MemorySwapMax=0 -- echo a b" in run
    assert "--scope" in run
    unit = next(word for word in run.split() if word.startswith("--unit=")).partition("=")[2]
    assert unit.endswith(".scope")
    assert [line for line in control if line.endswith(f"stop {unit}")]
    assert [line for line in control if f"--signal=SIGKILL {unit}" in line]


def test_a_systemd_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("systemd-run", "systemctl"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'no bus' >&2\nexit 1\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="systemd-run: no bus"):
        MemoryGroup.create(MIB, proc=tmp_path / "nowhere")
