"""Results as tables for people and as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def write_json(path: Path, machine: Mapping[str, object], results: Sequence[Result]) -> None:
    """Write the machine and every round that counts, for later comparison."""
    held: dict[str, Any] = {"machine": dict(machine), "cases": [_plain(one) for one in results]}
    path.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


def _row(result: Result, contender: Contender) -> list[str]:
    rounds = result.rounds
    seconds = spread([one[contender.name].seconds for one in rounds]).median
    ratio = speed_ratio(rounds, of=contender.name, against=result.case.baseline)
    rate = "" if contender.nbytes is None else f"{contender.nbytes / _GIB / seconds:.2f}"
    ratios = [_ratio(value) for value in (ratio.median, ratio.low, ratio.high)]
    return [contender.name, f"{seconds:.6f}", rate, *ratios]


def _figures(result: Result, contender: Contender) -> str:
    names = result.rounds[0][contender.name].figures
    told = (
        f"{name} {_short(figure(result.rounds, of=contender.name, name=name))}" for name in names
    )
    return f"{contender.name}: {', '.join(told)}"


def _judged(result: Result, target: Target) -> str:
    word = "met   " if is_met(result.rounds, target) else "MISSED"
    if isinstance(target, Alike):
        got = excess(result.rounds, of=target.of, name=target.figure)
        return (
            f"{word} {'; '.join(target.of)}: {target.figure} apart by {_short(got)} of the least, "
            f"at most {target.within:g}"
        )
    if isinstance(target, Bound):
        got = figure(result.rounds, of=target.of, name=target.figure)
        return f"{word} {target.of}: {target.figure} {_short(got)}, at most {target.at_most:g}"
    got = speed_ratio(result.rounds, of=target.of, against=target.against)
    return (
        f"{word} {target.of}: {_short(got)} times the speed of {target.against}, "
        f"at least {target.at_least:g}"
    )


def _short(held: Spread) -> str:
    if held.low == held.high:
        return _number(held.median)
    return f"{_number(held.median)} ({_number(held.low)} to {_number(held.high)})"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    return [_line(head, widths), *(_line(row, widths) for row in rows), ""]


def _line(cells: list[str], widths: list[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)])


def _plain(result: Result) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "dropped": result.dropped,
        "rounds": [
            {name: {"seconds": sample.seconds, **sample.figures} for name, sample in one.items()}
            for one in result.rounds
        ],
        "targets": [
            {"target": str(target), "met": bool(result.rounds) and is_met(result.rounds, target)}
            for target in result.case.targets
        ],
    }
