"""Samples: what devices did for a tree of processes, what loaders and the kernel counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from confined import make_cold
from overspill.linux import process_io
from overspill.linux.process_io import DeviceBytes
from overspill.linux.processes import process_memory
from overspill.recording import sampler as sampling
from overspill.recording.fields import UNKNOWN, column
from overspill.recording.loader_counts import LoaderCounts
from overspill.recording.sampler import Sampler
from recorded import MIB, ToldLoaders, ToldMemory

READ = "import pathlib, sys; pathlib.Path(sys.argv[1]).read_bytes(); print(flush=True); input()"


def test_a_child_counts_while_it_lives_and_after(tmp_path: Path) -> None:
    if process_io.device_bytes() is None:
        pytest.skip("the kernel does not account for reads")
    path = tmp_path / "x"
    path.write_bytes(os.urandom(4 * MIB))
    make_cold(path)
    sampler = Sampler(ToldMemory())
    argv = [sys.executable, "-S", "-c", READ, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = int(column(sampler.take(boundary=True), "read_bytes"))
        assert living >= 4 * MIB
        child.communicate(b"\n")
    assert int(column(sampler.take(), "read_bytes")) >= living


def told_devices(monkeypatch: pytest.MonkeyPatch, held: dict[int, DeviceBytes | None]) -> None:
    monkeypatch.setattr(sampling, "device_bytes", held.get)
    monkeypatch.setattr(
        sampling, "descendants", lambda root: [pid for pid in held if pid not in (root, 1)]
    )


def test_counts_never_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    held: dict[int, DeviceBytes | None] = {own: DeviceBytes(100, 10), 7: DeviceBytes(1000, 5)}
    told_devices(monkeypatch, held)
    sampler = Sampler(ToldMemory())

    def counts() -> tuple[int, int]:
        row = sampler.take()
        return int(column(row, "read_bytes")), int(column(row, "written_bytes"))

    assert counts() == (0, 0)
    held[7] = DeviceBytes(1500, 5)
    assert counts() == (500, 0)
    held[7] = None  # ended, and not yet waited for
    assert counts() == (500, 0)
    held[own] = DeviceBytes(100 + 1500, 10 + 5 + 3)
    assert counts() == (500, 3)
    held[own] = None  # the process is gone
    assert counts() == (500, 3)


def test_what_the_system_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    told_devices(monkeypatch, {})
    row = Sampler(ToldMemory(limit_bytes=None), pid=1 << 29).take()
    for name in ("limit_bytes", "read_bytes", "written_bytes", "process_anon_bytes"):
        assert column(row, name) == UNKNOWN


def test_counters_start_at_zero_and_kills_add_up_over_groups() -> None:
    memory, loaders = ToldMemory(), ToldLoaders()
    memory.kills, loaders.counts = 3, LoaderCounts(1000, 10, 8000, 50)
    sampler = Sampler(memory, loaders=loaders)

    def figures() -> tuple[int, ...]:
        row = sampler.take()
        names = ("loader_rows", "loader_batches", "loader_bytes", "loader_waited_ns", "kills")
        return tuple(int(column(row, name)) for name in names)

    assert figures() == (0, 0, 0, 0, 0)
    memory.kills, loaders.counts = 4, LoaderCounts(1200, 12, 9000, 70)
    assert figures() == (200, 2, 1000, 20, 1)
    memory.path, memory.kills = "/another", 40  # which has counted its own
    assert figures()[-1] == 1
    memory.kills = 42
    assert figures()[-1] == 3


def test_the_processs_own_memory_is_among_it() -> None:
    row, own = Sampler(ToldMemory()).take(), process_memory()
    for name, nbytes in (("anon", own.anon_bytes), ("file", own.file_bytes)):
        assert nbytes > MIB
        assert abs(int(column(row, f"process_{name}_bytes")) - nbytes) < 64 * MIB
