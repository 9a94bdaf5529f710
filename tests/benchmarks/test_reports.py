from __future__ import annotations

from dataclasses import replace

from benchmarks.harness import Alike, Bound, Case, Contender, Result, Sample, SpeedTarget, Spread
from benchmarks.report import number, ratio_told, rendered, scaling_told
from benchmarks.scaling import Point, Series


def result() -> Result:
    case = Case(
        name="copying",
        contenders=[
            Contender(name="ours", act=print, nbytes=1 << 30),
            Contender(name="peer", act=print, nbytes=1 << 30, note="then fsync"),
            Contender(name="bare", act=print),
        ],
        baseline="ours",
        targets=[
            SpeedTarget(of="ours", against="peer", at_least=2),
            SpeedTarget(of="ours", against="bare", at_least=1),
            Bound(of="ours", figure="bytes", at_most=10),
            Alike(of=("ours", "peer"), figure="bytes", within=0.1),
        ],
        absent=["another"],
    )
    rounds = [
        {
            "ours": Sample(0.5, {"bytes": 9}),
            "peer": Sample(seconds, {"bytes": 12}),
            "bare": Sample(0.25),
        }
        for seconds in (1.0, 2.0, 1.5)
    ]
    return Result(case, rounds, 2)


def test_a_table_says_rates_ratios_figures_and_targets() -> None:
    text = rendered(result())
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert "3 rounds count, 2 dropped" in text
    assert rows["ours"][1:] == ["0.500000", "2.00", "1.00", "1.00", "1.00"]
    assert rows["peer"][1:] == ["1.500000", "0.67", "0.33", "0.25", "0.50"]
    assert rows["bare"][1:] == ["0.250000", "2.00", "2.00", "2.00"]
    assert "another: not installed" in text and "peer: then fsync" in text
    assert "ours: bytes 9" in text
    assert "met    ours: 3 (2 to 4) times the speed of peer, at least 2" in text
    assert "MISSED ours: 0.5 times the speed of bare, at least 1" in text
    assert "met    ours: bytes 9, at most 10" in text
    assert "MISSED ours; peer: bytes apart by 0.333 of the least, at most 0.1" in text


def test_a_small_ratio_is_not_rounded_away() -> None:
    rounds = [{"ours": Sample(0.0012), "peer": Sample(2.4), "bare": Sample(1)}]
    case = replace(result().case, targets=[])
    assert " 0.0005 " in rendered(Result(case, rounds, 0))


def test_a_case_without_a_round_that_counts_says_so() -> None:
    assert "no round counts: 15 were dropped" in rendered(Result(result().case, [], 15))


def test_small_ratios_and_large_numbers_are_told_whole() -> None:
    assert [ratio_told(value) for value in (0.0034, 0.099, 0.1, 12.345)] == [
        "0.003",
        "0.1",
        "0.10",
        "12.35",
    ]
    assert [number(value) for value in (0.33333, 7.0, 1234.5, 40_000_000)] == [
        "0.333",
        "7",
        "1,234",
        "40,000,000",
    ]


def test_exponents_are_told_with_what_they_rest_on() -> None:
    points = [Point(size, Spread(size / 1e6, 1, 1)) for size in (1 << 20, 1 << 22)]
    told = scaling_told([Series("copying", "ours", points)])
    assert "copying: ours: exponent 1.00; step by step 1.00; a point is off by 1.00 times" in told
    assert "1.0 MiB, 4.0 MiB" in told
