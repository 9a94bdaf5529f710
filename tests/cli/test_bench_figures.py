"""From rates to ratios, sizes and advice: tables, no machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from overspill.cli.bench.advice import Conditions, advised
from overspill.cli.bench.figures import LIMITS, MEASURES, build_traffic, summarised
from overspill.cli.bench.sizes import FULL, QUICK, Sizes
from overspill.cli.bench.verb import bench
from overspill.units import format_bytes

MIB = 1 << 20
HEALTHY = {
    "sequential_write": 2000.0 * MIB,
    "sequential_read": 2500.0 * MIB,
    "random_reads": 100_000.0,
    "round_trips": 20_000.0,
    "build_traffic": 50e6,
    "spill": 1900.0 * MIB,
    "mapped_read": 2000.0 * MIB,
    "gather": 98_000.0,
    "hand_over": 4_000.0,
    "build": 20e6,
}
QUIET = Conditions(
    file_system="ext4",
    read_ahead_bytes=8 * MIB,
    read_ahead_setting="/sys/block/disk/queue/read_ahead_kb",
    direct=True,
    asynchronous=True,
    memory_share=0.0,
    load_per_cpu=0.1,
    cpus=2,
    available_bytes=20 << 30,
    fetch_method="process_madvise",
)


def advice(
    rates: Mapping[str, float] | None = None, rounds: int = 1, **around: Any
) -> list[tuple[str, str, str]]:
    figures = summarised([{**HEALTHY, **(rates or {})}] * rounds)
    found = advised(figures, replace(QUIET, **around))
    return [(one.about, one.finding, one.remedy) for one in found]


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    rounds = [
        {"sequential_write": 100.0, "spill": 90.0},
        {"sequential_write": 50.0, "spill": 50.0},
        {"sequential_write": 200.0, "spill": 100.0},
    ]
    found = summarised(rounds)
    assert list(found) == ["sequential_write", "spill"]  # what was not measured is left out
    spill = found["spill"]
    assert spill.ratio is not None and found["sequential_write"].ratio is None
    # Not 90 / 100, the ratio of the medians.
    assert (spill.ratio.median, spill.ratio.low, spill.ratio.high) == (0.9, 0.5, 1.0)
    assert (spill.per_second.median, spill.per_second.unsteadiness) == (90.0, 2.0)


def test_every_measure_has_a_limit_that_is_measured_and_a_floor() -> None:
    names = {kind.name for kind in LIMITS}
    assert {kind.limit for kind in MEASURES} <= names
    assert all(0 < kind.poor_below < 1 for kind in MEASURES)
    assert set(HEALTHY) == names | {kind.name for kind in MEASURES}


def test_what_a_build_moves_by_hand() -> None:
    # 24 bytes an edge read at 12 a second, 12 an edge and 8 a row written at 24 a second.
    found = build_traffic(100, 9, read_bytes_per_second=12, write_bytes_per_second=24)
    assert found == 100 / (2400 / 12 + (1200 + 80) / 24)


def test_a_healthy_machine_gets_no_advice() -> None:
    assert advice() == []
    assert advice(rounds=3) == []


@pytest.mark.parametrize(
    ("rates", "around", "about", "finding", "remedy"),
    [
        ({}, {"memory_share": 0.9}, "memory", "in memory", "--dir"),
        ({"sequential_write": 60.0 * MIB, "spill": 60.0 * MIB}, {}, "disk", "60.0 MiB/s", "SSD"),
        ({"random_reads": 150.0, "gather": 150.0}, {}, "disk", "150 random reads", "pack="),
        ({}, {"load_per_cpu": 2.5}, "machine", "2.5 a CPU", "overspill bench"),
        ({"spill": 500.0 * MIB}, {"direct": False}, "spill", "no direct I/O", "ext4"),
        (
            {"mapped_read": 300.0 * MIB},
            {"read_ahead_bytes": 128 << 10},
            "mapped_read",
            "only 128.0 KiB ahead",
            "echo 1024 | sudo tee /sys/block/disk/queue/read_ahead_kb",
        ),
        (
            {"gather": 9_000.0},
            {"fetch_method": "fadvise"},
            "gather",
            "one by one (fadvise)",
            "SYS_NICE",
        ),
        ({"gather": 9_000.0}, {"read_ahead_bytes": 0}, "gather", "switched off", "echo 1024"),
        ({"gather": 9_000.0}, {"available_bytes": 1 << 29}, "gather", "512.0 MiB", "doctor"),
        ({"hand_over": 100.0}, {"cpus": 1}, "hand_over", "one CPU", "--cpus"),
        ({"build": 1e6}, {"cpus": 1}, "build", "one CPU", "--cpus"),
        ({"spill": 100.0 * MIB}, {}, "spill", "nothing that was looked at", "report"),
        ({"mapped_read": 1.0 * MIB}, {}, "mapped_read", "nothing that was looked at", "report"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(
    rates: dict[str, float], around: dict[str, Any], about: str, finding: str, remedy: str
) -> None:
    ((told_about, told, to_do),) = advice(rates, **around)
    assert told_about == about and finding in told and remedy in to_do


@pytest.mark.parametrize("name", [kind.name for kind in MEASURES])
def test_no_poor_share_goes_without_a_word(name: str) -> None:
    assert [one[0] for one in advice({name: HEALTHY[name] / 1000})] == [name]


def test_memory_in_disguise_is_told_alone() -> None:
    found = advice({"random_reads": 10.0, "gather": 1.0}, memory_share=1.0, load_per_cpu=9.0)
    assert [one[0] for one in found] == ["memory"]


def test_a_busy_machine_explains_what_nothing_else_does() -> None:
    assert [one[0] for one in advice({"build": 1.0}, load_per_cpu=3.0)] == ["machine"]
    both = advice({"gather": 9_000.0}, load_per_cpu=3.0, fetch_method="pread")
    assert [one[0] for one in both] == ["machine", "gather"]


def test_limits_that_change_from_round_to_round_are_named() -> None:
    rounds = [{**HEALTHY, "sequential_read": rate * MIB} for rate in (900.0, 2000.0, 2500.0)]
    found = advised(summarised(rounds), QUIET)
    assert [one.about for one in found] == ["machine"] and "(read)" in found[0].finding
    # That Overspill's own rate changes is no limit's change, nor that a derived one does.
    for name in ("spill", "build_traffic", "round_trips"):
        steady = [{**HEALTHY, name: HEALTHY[name] / step} for step in (1, 1.9, 2.5)]
        assert advised(summarised(steady), QUIET) == []


@pytest.mark.parametrize("sizes", [FULL, QUICK])
def test_a_fast_disk_gets_what_was_meant(sizes: Sizes) -> None:
    assert sizes.fitted(write_bytes_per_second=2e9, available_bytes=16 << 30) == sizes


@pytest.mark.parametrize("sizes", [FULL, QUICK])
@pytest.mark.parametrize("rate", [1e6, 20e6, 100e6, 400e6, 2e9])
def test_a_slow_disk_gets_what_it_can_do_in_time(sizes: Sizes, rate: float) -> None:
    found = sizes.fitted(write_bytes_per_second=rate, available_bytes=16 << 30)
    assert found.disk_bytes <= sizes.disk_bytes and found.rounds == sizes.rounds
    assert found.write_bytes >= 32 * MIB and found.read_bytes >= 32 * MIB and found.edges >= 200_000
    assert found.write_bytes % MIB == found.read_bytes % MIB == 0
    if rate >= 50e6:  # what is prepared, and one round, at the same speed in both directions
        moved = 5 * found.write_bytes + 4 * found.read_bytes + (36 + 16) * found.edges
        assert moved / rate + 2 * found.random_seconds < 60


def test_a_small_memory_gets_a_small_tensor() -> None:
    found = FULL.fitted(write_bytes_per_second=2e9, available_bytes=256 * MIB)
    assert found.write_bytes == 64 * MIB and found.read_bytes == FULL.read_bytes


def test_what_is_smaller_than_the_least_stays_as_it_is() -> None:
    tiny = replace(QUICK, write_bytes=2 * MIB, read_bytes=3 * MIB, edges=1000)
    assert tiny.fitted(write_bytes_per_second=1.0, available_bytes=1 << 30) == tiny


def test_the_help_tells_the_room_that_is_wanted() -> None:
    told = " ".join((bench.__doc__ or "").split())
    full, quick = format_bytes(FULL.disk_bytes), format_bytes(QUICK.disk_bytes)
    assert f"Takes {full} of disk" in told and f"{QUICK.disk_bytes / 2**30:.1f}" in told, quick
