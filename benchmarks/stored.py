"""Results as JSON and back: every round that counts, to be judged by whatever reads them."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Alike,
    Bound,
    Case,
    Contender,
    Result,
    Sample,
    SpeedTarget,
    Spread,
    Target,
)
from benchmarks.scaling import Point, Series

_TARGETS: dict[str, type[Target]] = {kind.__name__: kind for kind in (SpeedTarget, Bound, Alike)}
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one benchmark came to.

    Attributes:
        date: The day, ISO 8601.
        commit: The project's, with a plus sign where files differed from it; None: not known.
        machine: As `benchmarks.machine.described` tells it.
        options: What the command was told, for whoever wants to repeat it.
        seconds: How long it took, all told.
        results: Case by case.
        series: How they scale.
        failed: Why there is nothing; empty where it ran.
    """

    date: str = ""
    commit: str | None = None
    machine: Mapping[str, object] = field(default_factory=dict)
    options: str = ""
    seconds: float = 0.0
    results: Sequence[Result] = ()
    series: Sequence[Series] = ()
    failed: str = ""


def to_plain(measured: Measured) -> dict[str, Any]:
    """What JSON can hold."""
    return {
        "date": measured.date,
        "commit": measured.commit,
        "machine": dict(measured.machine),
        "options": measured.options,
        "seconds": _rounded(measured.seconds),
        "failed": measured.failed,
        "cases": [_plain_result(one) for one in measured.results],
        "scaling": [_plain_series(one) for one in measured.series],
    }


def from_plain(held: Mapping[str, Any]) -> Measured:
    """The same again; contenders of it can be judged, and not run."""
    return Measured(
        date=held["date"],
        commit=held["commit"],
        machine=held["machine"],
        options=held["options"],
        seconds=held["seconds"],
        failed=held["failed"],
        results=[_result(one) for one in held["cases"]],
        series=[_series(one) for one in held["scaling"]],
    )


def write_json(path: Path, held: Mapping[str, Any]) -> None:
    """Write it for people to compare too: one line a value. Its directory is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read what was written."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def today() -> str:
    """The day, ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def commit_of_project() -> str | None:
    """The commit of the clone, abbreviated, with a plus sign where its sources differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git("status", "--porcelain", "--", "src", "benchmarks") else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _plain_result(result: Result) -> dict[str, Any]:
    case = result.case
    return {
        "name": case.name,
        "baseline": case.baseline,
        "limit": case.limit,
        "absent": list(case.absent),
        "contenders": [
            {"name": one.name, "nbytes": one.nbytes, "note": one.note} for one in case.contenders
        ],
        "targets": [{"kind": type(one).__name__, **asdict(one)} for one in case.targets],
        "dropped": result.dropped,
        "rounds": [
            {name: _plain_sample(sample) for name, sample in one.items()} for one in result.rounds
        ],
    }


def _plain_sample(sample: Sample) -> dict[str, float]:
    figures = {name: _rounded(value) for name, value in sample.figures.items()}
    return {"seconds": _rounded(sample.seconds), **figures}


def _result(held: Mapping[str, Any]) -> Result:
    case = Case(
        name=held["name"],
        contenders=[
            Contender(name=one["name"], act=_gone, nbytes=one["nbytes"], note=one["note"])
            for one in held["contenders"]
        ],
        baseline=held["baseline"],
        limit=held["limit"],
        targets=[_target(one) for one in held["targets"]],
        absent=held["absent"],
    )
    rounds = [{name: _sample(one) for name, one in each.items()} for each in held["rounds"]]
    return Result(case, rounds, held["dropped"])


def _target(held: Mapping[str, Any]) -> Target:
    told = {name: value for name, value in held.items() if name != "kind"}
    if isinstance(told["of"], list):
        told["of"] = tuple(told["of"])
    return _TARGETS[held["kind"]](**told)


def _sample(held: Mapping[str, float]) -> Sample:
    figures = {name: value for name, value in held.items() if name != "seconds"}
    return Sample(held["seconds"], figures)


def _plain_series(series: Series) -> dict[str, Any]:
    points = [
        [one.size_bytes, *map(_rounded, (one.seconds.median, one.seconds.low, one.seconds.high))]
        for one in series.points
    ]
    return {"case": series.case, "way": series.way, "points": points}


def _series(held: Mapping[str, Any]) -> Series:
    points = [Point(size, Spread(*seconds)) for size, *seconds in held["points"]]
    return Series(held["case"], held["way"], points)


def _rounded(value: float) -> float:
    """Six digits: more of them say nothing, and make differences hard to read."""
    return value if value == int(value) else float(f"{value:.6g}")


def _gone(_given: object) -> None:
    raise RuntimeError("a contender that was read from a file cannot be run")
