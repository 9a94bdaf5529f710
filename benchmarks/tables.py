"""Results as tables of Markdown, for docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.harness import Alike, Contender, Result, Target, is_met, speed_ratio, spread
from benchmarks.harness import figure as figure_of
from benchmarks.report import judged, number, ratio_told, short, whom
from benchmarks.scaling import Series, fitted
from overspill.units import format_bytes

_GIB = 1 << 30


def case_table(result: Result) -> list[str]:
    """A case: a row for each contender, its targets beside it, and what a reader must know.

    Args:
        result: The rounds of a case.

    Returns:
        Lines of Markdown, blocks parted by empty ones.
    """
    case = result.case
    if not result.rounds:
        return [f"**{case.name}**: the limit never held still, {result.dropped} rounds dropped", ""]
    dropped = f", {result.dropped} dropped" if result.dropped else ""
    lines = [f"**{case.name}**, {_counted(len(result.rounds), 'round')}{dropped}", ""]
    columns = _columns(result)
    lines += _table(
        ["way", *columns],
        [[one.name, *(column[one.name] for column in columns.values())] for one in case.contenders],
    )
    lines += [f"- {text}" for text in _notes(result)]
    return [*lines, ""]


def scaling_table(series: Sequence[Series]) -> list[str]:
    """The exponents of some series, and what they rest on."""
    rows = []
    for one in series:
        fit = fitted(one.points)
        sizes = [format_bytes(point.size_bytes) for point in one.points]
        rows.append(
            [
                one.case,
                one.way,
                f"{fit.exponent:.2f}",
                ", ".join(f"{step:.2f}" for step in fit.steps),
                f"{fit.off:.2f} times",
                ", ".join(sizes),
            ]
        )
    head = ["case", "way", "exponent of time", "from size to size", "off the line by", "sizes"]
    return _table(head, rows)


def machine_table(machine: Mapping[str, object]) -> list[str]:
    """What the machine is."""
    rows = [[name, "not told" if value is None else str(value)] for name, value in machine.items()]
    return _table(["", ""], rows)


def missed(result: Result) -> Iterator[str]:
    """The targets that a case misses, in words."""
    for target in result.case.targets if result.rounds else ():
        if not is_met(result.rounds, target):
            yield f"{result.case.name}: {whom(target)}: {judged(result, target)}"


def _columns(result: Result) -> dict[str, dict[str, str]]:
    """Columns by their head, each a text by contender."""
    case, rounds = result.case, result.rounds
    names = [one.name for one in case.contenders]
    held = {"seconds": {name: _seconds(result, name) for name in names}}
    if any(one.nbytes for one in case.contenders):
        held["GiB/s"] = {one.name: _rate(result, one) for one in case.contenders}
    held[f"speed / {case.baseline}"] = {name: _speed(result, name, case.baseline) for name in names}
    if case.limit is not None and case.limit != case.baseline:
        held[f"speed / {case.limit}"] = {name: _speed(result, name, case.limit) for name in names}
    for figure in _figures(result):
        held[figure] = {
            name: short(figure_of(rounds, of=name, name=figure))
            if figure in rounds[0][name].figures
            else ""
            for name in names
        }
    if case.targets:
        held["target"] = {name: _targets(result, name) for name in names}
    return held


def _figures(result: Result) -> list[str]:
    seen: dict[str, None] = {}
    for sample in result.rounds[0].values():
        seen.update(dict.fromkeys(sample.figures))
    return list(seen)


def _seconds(result: Result, name: str) -> str:
    return short(spread([one[name].seconds for one in result.rounds]))


def _rate(result: Result, contender: Contender) -> str:
    if contender.nbytes is None:
        return ""
    seconds = spread([one[contender.name].seconds for one in result.rounds]).median
    return number(contender.nbytes / _GIB / seconds)


def _speed(result: Result, name: str, against: str) -> str:
    if name == against:
        return "1"
    held = speed_ratio(result.rounds, of=name, against=against)
    if len(result.rounds) == 1:
        return ratio_told(held.median)
    return f"{ratio_told(held.median)} ({ratio_told(held.low)} to {ratio_told(held.high)})"


def _targets(result: Result, name: str) -> str:
    told = []
    for target in result.case.targets:
        if name in _whose(target):
            word = "met" if is_met(result.rounds, target) else "**missed**"
            told.append(f"{word}: {judged(result, target)}")
    return "; ".join(told)


def _whose(target: Target) -> tuple[str, ...]:
    return target.of if isinstance(target, Alike) else (target.of,)


def _notes(result: Result) -> Iterator[str]:
    by_note: dict[str, list[str]] = {}
    for one in result.case.contenders:
        if one.note:
            by_note.setdefault(one.note, []).append(one.name)
    for note, names in by_note.items():
        yield f"{'; '.join(names)}: {note}"
    for name in result.case.absent:
        yield f"{name}: not installed"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return [*lines, ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
