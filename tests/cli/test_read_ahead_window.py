"""Whoever speaks of the read-ahead window wants the same one: advice that was taken is the end."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from doctor_machines import machine
from test_bench_figures import HEALTHY, MIB, QUIET

from overspill.cli.bench.advice import advised
from overspill.cli.bench.figures import summarised
from overspill.cli.doctor.disk import disk_findings
from overspill.cli.read_ahead_window import GOOD_BYTES, window_command, window_fault

SETTING = "/sys/block/disk/queue/read_ahead_kb"


def wanted_kib(window_bytes: int) -> list[int]:
    """What doctor, and bench after slow reads of a mapping and slow gathers, want it set to."""
    held = {"read_ahead_bytes": window_bytes, "read_ahead_setting": SETTING}
    told = [one.remedy.text for one in disk_findings(machine(spill_dir=held))]
    around = replace(QUIET, read_ahead_bytes=window_bytes, read_ahead_setting=SETTING)
    for slow in ("mapped_read", "gather"):
        poor = summarised([{**HEALTHY, slow: HEALTHY[slow] / 100}])
        told += [one.remedy for one in advised(poor, around)]
    return [int(kib) for one in told for kib in re.findall(r"echo (\d+) \| sudo tee", one)]


@pytest.mark.parametrize("window_bytes", [0, 32 << 10, 128 << 10, 2 * MIB, 8 * MIB])
def test_every_verb_wants_the_same_and_then_no_more(window_bytes: int) -> None:
    wanted = wanted_kib(window_bytes)
    assert wanted and set(wanted) == {GOOD_BYTES >> 10}
    assert wanted_kib(wanted[0] << 10) == []


def test_both_costs_are_named() -> None:
    for window_bytes in (0, 8 * MIB):
        why = window_fault(window_bytes) or ""
        assert "plain indexing" in why and ("sequential" in why or "in order" in why)


def test_the_usual_window_is_held_against_a_disk_only_where_it_was_measured() -> None:
    assert window_fault(128 << 10) is None
    assert window_fault(128 << 10, slow_in_order=True) is not None
    assert window_fault(8 * MIB, slow_in_order=True) == window_fault(8 * MIB)
    assert window_command(SETTING) == f"echo 1024 | sudo tee {SETTING}"
