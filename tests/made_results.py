"""Small results that nobody measured, for what reads results."""

from __future__ import annotations

from benchmarks.harness import Alike, Bound, Case, Contender, Result, Sample, SpeedTarget, Spread
from benchmarks.scaling import Point, Series
from benchmarks.stored import Measured

OURS, PEER, LIMIT = "overspill", "peer | other", "device"


def made_result(*, at_least: float = 2.0) -> Result:
    """Three rounds: ours at 1 s, a peer at 2 to 4, the device at 0.5."""
    case = Case(
        name="copying & more",
        contenders=[
            Contender(name=OURS, act=print, nbytes=1 << 30),
            Contender(name=PEER, act=print, nbytes=1 << 30, note="then fsync"),
            Contender(name=LIMIT, act=print),
        ],
        baseline=OURS,
        limit=LIMIT,
        targets=[
            SpeedTarget(of=OURS, against=PEER, at_least=at_least),
            Bound(of=OURS, figure="bytes", at_most=10),
            Alike(of=(OURS, PEER), figure="bytes", within=0.1),
        ],
        absent=["another"],
    )
    rounds = [
        {
            OURS: Sample(1.0, {"bytes": 9}),
            PEER: Sample(seconds, {"bytes": 12}),
            LIMIT: Sample(0.5),
        }
        for seconds in (2.0, 4.0, 3.0)
    ]
    return Result(case, rounds, 1)


def made_series(exponent: float = 0.5) -> Series:
    """An exact power law."""
    points = []
    for size in (1 << 20, 1 << 22, 1 << 24):
        seconds = (size / (1 << 20)) ** exponent
        points.append(Point(size, Spread(seconds, seconds / 2, seconds * 2)))
    return Series("copying & more", OURS, points)


def made(**changes: object) -> Measured:
    """What a benchmark of both came to."""
    held = {
        "date": "2026-12-01",
        "commit": "abc123+",
        "machine": {"cpus": 2, "load": 0.1, "read-ahead KiB": None},
        "options": "--rounds 3",
        "seconds": 65.0,
        "results": [made_result()],
        "series": [made_series()],
    }
    return Measured(**{**held, **changes})  # type: ignore[arg-type]
