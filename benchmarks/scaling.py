"""How time grows with size: a power law through a few sizes, and how far they are from one.

``seconds = c * size ** exponent`` is a line in logarithms, fitted by least squares. Three points
make a poor fit look good: the exponent from each size to the next is told beside it, and the
largest factor by which a point lies off the line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.harness import Case, Result, Spread, spread


@dataclass(frozen=True)
class Point:
    """A size in bytes, and what it took, over the rounds."""

    size_bytes: int
    seconds: Spread


@dataclass(frozen=True)
class Series:
    """One way of doing a case's work at several sizes, ascending."""

    case: str
    way: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Fit:
    """A power law.

    Attributes:
        exponent: Of the line.
        steps: Exponents from each size to the next.
        off: The largest factor by which a point lies above or below the line; 1 is on it.
    """

    exponent: float
    steps: Sequence[float]
    off: float


def fitted(points: Sequence[Point]) -> Fit:
    """Fit the medians of at least two different sizes.

    Raises:
        ValueError: There are fewer.
    """
    sizes = [math.log(point.size_bytes) for point in points]
    if len(set(sizes)) < 2:
        raise ValueError(f"an exponent takes two sizes or more; there are {len(set(sizes))}")
    times = [math.log(point.seconds.median) for point in points]
    middle, height = sum(sizes) / len(sizes), sum(times) / len(times)
    exponent = sum((x - middle) * (y - height) for x, y in zip(sizes, times, strict=True)) / sum(
        (x - middle) ** 2 for x in sizes
    )
    off = max(abs(y - height - exponent * (x - middle)) for x, y in zip(sizes, times, strict=True))
    steps = [
        (times[at + 1] - times[at]) / (sizes[at + 1] - sizes[at]) for at in range(len(sizes) - 1)
    ]
    return Fit(exponent, steps, math.exp(off))


def series_within(result: Result) -> list[Series]:
    """The series of a case that holds several sizes itself."""
    held: dict[str, list[Point]] = {}
    for one in result.case.contenders if result.rounds else ():
        if one.point is not None:
            way, size = one.point
            held.setdefault(way, []).append(Point(size, _seconds(result, one.name)))
    return [Series(result.case.name, way, _ascending(points)) for way, points in held.items()]


def series_across(runs: Sequence[tuple[int, Sequence[Result]]]) -> Iterator[Series]:
    """The series of runs of the same cases at several sizes.

    Args:
        runs: Sizes with their results, case by case in the same order; the last names the cases.

    Yields:
        A series for each way that was measured at two sizes or more.
    """
    for at, last in enumerate(runs[-1][1] if runs else ()):
        for contender in last.case.contenders:
            points = [
                Point(size, _seconds(results[at], contender.name))
                for size, results in runs
                if _holds(results[at], contender.name)
            ]
            if len(points) > 1:
                yield Series(last.case.name, contender.name, _ascending(points))


def holds_points(case: Case) -> bool:
    """Whether a case holds several sizes itself."""
    return any(one.point is not None for one in case.contenders)


def _holds(result: Result, name: str) -> bool:
    return bool(result.rounds) and name in result.rounds[0]


def _seconds(result: Result, name: str) -> Spread:
    return spread([one[name].seconds for one in result.rounds])


def _ascending(points: Sequence[Point]) -> list[Point]:
    return sorted(points, key=lambda point: point.size_bytes)
