"""Results as tables for a terminal, and targets in words."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import (
    Alike,
    Bound,
    Contender,
    Result,
    Spread,
    Target,
    excess,
    figure,
    is_met,
    speed_ratio,
    spread,
)
from benchmarks.scaling import Series, fitted
from overspill.units import format_bytes

_GIB = 1 << 30


def rendered(result: Result) -> str:
    """A case's table, its figures, notes and targets."""
    case = result.case
    lines = [f"## {case.name}", ""]
    if not result.rounds:
        return "\n".join([*lines, f"no round counts: {result.dropped} were dropped", ""])
    lines += [f"{len(result.rounds)} rounds count, {result.dropped} dropped", ""]
    lines += _table(
        ["contender", "seconds", "GiB/s", f"speed / {case.baseline}: median", "lowest", "highest"],
        [_row(result, contender) for contender in case.contenders],
    )
    lines += [f"{name}: not installed" for name in case.absent]
    lines += [f"{one.name}: {one.note}" for one in case.contenders if one.note]
    lines += [
        _figures(result, one) for one in case.contenders if result.rounds[0][one.name].figures
    ]
    lines += ["", *(_judged(result, target) for target in case.targets), ""]
    return "\n".join(lines)


def scaling_told(series: Sequence[Series]) -> str:
    """The exponent of each way, and what it rests on."""
    lines = ["## time against size", ""]
    for one in series:
        fit = fitted(one.points)
        steps = ", ".join(f"{step:.2f}" for step in fit.steps)
        sizes = ", ".join(format_bytes(point.size_bytes) for point in one.points)
        lines.append(
            f"{one.case}: {one.way}: exponent {fit.exponent:.2f}; step by step {steps}; a point is "
            f"off by {fit.off:.2f} times at most; {sizes}"
        )
    return "\n".join([*lines, ""])


def _row(result: Result, contender: Contender) -> list[str]:
    rounds = result.rounds
    seconds = spread([one[contender.name].seconds for one in rounds]).median
    ratio = speed_ratio(rounds, of=contender.name, against=result.case.baseline)
    rate = "" if contender.nbytes is None else f"{contender.nbytes / _GIB / seconds:.2f}"
    ratios = [ratio_told(value) for value in (ratio.median, ratio.low, ratio.high)]
    return [contender.name, f"{seconds:.6f}", rate, *ratios]


def _figures(result: Result, contender: Contender) -> str:
    names = result.rounds[0][contender.name].figures
    told = (
        f"{name} {short(figure(result.rounds, of=contender.name, name=name))}" for name in names
    )
    return f"{contender.name}: {', '.join(told)}"


def _judged(result: Result, target: Target) -> str:
    word = "met   " if is_met(result.rounds, target) else "MISSED"
    return f"{word} {whom(target)}: {judged(result, target)}"


def whom(target: Target) -> str:
    """Whose target it is."""
    return "; ".join(target.of) if isinstance(target, Alike) else target.of


def judged(result: Result, target: Target) -> str:
    """What was reached, and what was to be."""
    if isinstance(target, Alike):
        got = excess(result.rounds, of=target.of, name=target.figure)
        return (
            f"{target.figure} apart by {short(got)} of the least, at most {number(target.within)}"
        )
    if isinstance(target, Bound):
        got = figure(result.rounds, of=target.of, name=target.figure)
        return f"{target.figure} {short(got)}, at most {number(target.at_most)}"
    got = speed_ratio(result.rounds, of=target.of, against=target.against)
    return f"{short(got)} times the speed of {target.against}, at least {number(target.at_least)}"


def short(held: Spread) -> str:
    """Median, and the extremes where they differ."""
    if held.low == held.high:
        return number(held.median)
    return f"{number(held.median)} ({number(held.low)} to {number(held.high)})"


def ratio_told(value: float) -> str:
    """A ratio, of which a small one is not rounded away."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


def number(value: float) -> str:
    """Three digits of a broken number, all of a whole one."""
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    return [_line(head, widths), *(_line(row, widths) for row in rows), ""]


def _line(cells: list[str], widths: list[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)])
