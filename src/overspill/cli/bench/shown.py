"""The report as text of 40 columns or more, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from overspill import __version__
from overspill.cli.bench.figures import LIMITS, Figure, Spread
from overspill.cli.lines import glued, harmless, wrapped
from overspill.cli.progress import format_count
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.cli.bench.run import Report

# A row of 37 columns stands in the narrowest terminal that is looked after, 40.
_NAME, _RATE, _RATIO = 13, 18, 6


def as_text(report: Report, *, columns: int | None) -> str:
    """The report for people.

    Args:
        report: What was found.
        columns: Width of the terminal; None is no terminal, and lines are as long as they need.
    """
    parts = (_head(report), _limits(report), _shares(report, columns), _tail(report))
    return "\n\n".join(wrapped("\n".join(lines), columns, indent=2) for lines in parts)


def as_json(report: Report, *, quick: bool) -> dict[str, Any]:
    """The report for programs: see the verb's own description."""
    return {
        "overspill_version": __version__,
        "directory": report.directory,
        "quick": quick,
        "seconds": round(report.seconds, 3),
        "rounds": report.rounds,
        "moved": {
            "write_bytes": report.sizes.write_bytes,
            "read_bytes": report.sizes.read_bytes,
            "edges": report.sizes.edges,
            "nodes": report.sizes.nodes,
        },
        "machine": asdict(report.around),
        "limits": {
            name: {"unit": figure.kind.unit, "per_second": _rounded(figure.per_second)}
            for name, figure in report.figures.items()
            if figure.ratio is None
        },
        "measures": {
            name: {
                "unit": figure.kind.unit,
                "per_second": _rounded(figure.per_second),
                "limit": figure.kind.limit,
                "ratio": _rounded(figure.ratio),
                "poor_below": figure.kind.poor_below,
            }
            for name, figure in report.figures.items()
            if figure.ratio is not None
        },
        "advice": [asdict(one) for one in report.advice],
    }


def _head(report: Report) -> Iterator[str]:
    around = report.around
    told = [around.file_system, f"{around.cpus} CPUs"]
    if around.read_ahead_bytes is not None:
        told.append(f"read-ahead {format_bytes(around.read_ahead_bytes)}")
    if not around.direct:
        told.append("no direct I/O")
    yield f"{harmless(report.directory)} ({', '.join(glued(one) for one in told)})"
    rounds = "1 round" if report.rounds == 1 else f"medians of {report.rounds} rounds"
    yield f"{rounds}, {report.seconds:.0f} s"


def _limits(report: Report) -> Iterator[str]:
    yield "what this machine can do"
    for figure in report.figures.values():
        if figure.kind.measured:
            yield _row(figure)


def _shares(report: Report, columns: int | None) -> Iterator[str]:
    yield glued(f"{'Overspill':<{_NAME}}{'':>{_RATE}}{'share':>{_RATIO}}")
    for figure in report.figures.values():
        if figure.ratio is None:
            continue
        row = f"{_row(figure)}{glued(' !' if figure.is_poor else '  ')}"
        meant = glued(f"  of {_limit_of(figure)}: {figure.kind.about}")
        fits = columns is None or len(row + meant) <= columns
        yield row + meant if fits else row.rstrip(glued(" "))


def _limit_of(figure: Figure) -> str:
    return next(kind.shown for kind in LIMITS if kind.name == figure.kind.limit)


def _row(figure: Figure) -> str:
    row = f"{figure.kind.shown:<{_NAME}}{_rate(figure):>{_RATE}}"
    if figure.ratio is not None:
        row = f"{row}{figure.ratio.median:>{_RATIO}.2f}"
    return glued(row)


def _rate(figure: Figure) -> str:
    value = figure.per_second.median
    if figure.kind.unit == "B":
        return f"{format_bytes(int(value))}/s"
    return f"{format_count(value)} {figure.kind.unit}/s"


def _tail(report: Report) -> Iterator[str]:
    if not report.advice:
        yield "Nothing to advise: every share is what a healthy machine has."
    for one in report.advice:
        yield f"! {one.finding}"
        yield f"  what to do: {one.remedy}"


def _rounded(held: Spread | None) -> dict[str, float] | None:
    if held is None:
        return None
    return {name: float(f"{value:.5g}") for name, value in asdict(held).items()}
