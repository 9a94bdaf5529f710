from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Alike, Bound, Case, Contender, Result, Sample, SpeedTarget
from benchmarks.report import rendered, write_json


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


def test_json_holds_every_round_and_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    empty = Result(result().case, [], 15)
    write_json(path, {"cpus": 2, "read-ahead KiB": None}, [result(), empty])
    held = json.loads(path.read_text())
    assert held["machine"] == {"cpus": 2, "read-ahead KiB": None}
    first, second = held["cases"]
    assert first["rounds"][1]["peer"] == {"seconds": 2.0, "bytes": 12}
    assert first["rounds"][0]["ours"] == {"seconds": 0.5, "bytes": 9}
    assert [one["met"] for one in first["targets"]] == [True, False, True, False]
    assert second["rounds"] == [] and not any(one["met"] for one in second["targets"])
