"""A sampler of one process alone; samplers of groups and trees are in test_confine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from overspill.linux import processes
from overspill.linux.peaks import PeakSampler

MIB = 1 << 20


def test_a_process_alone_does_not_count_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> list[int]:
        raise AssertionError("every process of the machine was looked at")

    monkeypatch.setattr(processes, "descendants", never)
    script = f"held = b'x' * ({256 * MIB}); print(len(held), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own = processes.process_memory().anon_bytes
        with PeakSampler(children=False, interval_s=0.01) as sampler:
            held = bytearray(b"x") * (64 * MIB)
            sampler.sample()
        assert own + 60 * MIB < sampler.peaks.anon_bytes < own + 200 * MIB
        assert len(held) == 64 * MIB
        child.communicate(b"\n")
