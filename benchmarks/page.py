"""docs/performance.md and its plots, from stored results: ``python -m benchmarks.page``.

What is said between the tables stands in performance.template.md. Of its lines, a name in double
braces is replaced: ``{{ machine }}``, ``{{ missed }}``, or a benchmark's name by its tables, plots
and exponents, those of the suite first and then those at full size, where ``results/NAME.json``
holds them. What stands from ``{{ unless NAME }}`` to ``{{ end }}`` is left out once that is there.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plots import scaling_plot, speeds_plot
from benchmarks.stored import Measured, from_plain, read_json
from benchmarks.tables import case_table, machine_table, missed, scaling_table

_HERE = Path(__file__).resolve().parent
TEMPLATE = _HERE / "performance.template.md"
RESULTS = _HERE / "results"
PAGE = _HERE.parent / "docs" / "performance.md"
PLOTS = _HERE.parent / "docs" / "assets" / "performance"
_SUITE = "suite"
_MARK = re.compile(r"\{\{ (\w+)(?: (\w+))? \}\}")
# What two runs on one machine differ in.
_PASSING = ("load", "memory")


@dataclass(frozen=True, kw_only=True)
class Held:
    """All that a page is made of.

    Attributes:
        suite: The suite's results by benchmark.
        shared: The suite's day, commit, machine and seconds.
        full: Results at full size by benchmark.
    """

    suite: Mapping[str, Measured]
    shared: Measured
    full: Mapping[str, Measured]


def held_in(directory: Path) -> Held:
    """Read the results of a directory that the template has a place for, the suite's or none."""
    placed = {_SUITE, *names_in(TEMPLATE.read_text(encoding="utf-8"))}
    found = [path for path in sorted(directory.glob("*.json")) if path.stem in placed]
    files = {path.stem: read_json(path) for path in found}
    whole = files.pop(_SUITE, {"date": "", "commit": None, "machine": {}, "seconds": 0})
    shared = {name: whole[name] for name in ("date", "commit", "machine", "seconds")}
    entries = {
        name: from_plain({**shared, **one}) for name, one in whole.get("entries", {}).items()
    }
    full = {name: from_plain(one) for name, one in files.items()}
    return Held(suite=entries, shared=Measured(**shared), full=full)


def rendered_page(template: str, held: Held) -> str:
    """The page.

    Args:
        template: See the module.
        held: What was measured.

    Returns:
        Markdown, which the same arguments always give.

    Raises:
        ValueError: A mark of the template names nothing that is known.
    """
    lines: list[str] = []
    skipped = False
    for line in template.splitlines():
        found = _MARK.fullmatch(line.strip())
        if found is None:
            lines += [] if skipped else [line]
        elif found[1] == "end":
            skipped = False
        elif found[1] == "unless":
            skipped = found[2] in held.full
        elif not skipped:
            lines += _filled(found[1], held)
    text = "\n".join(lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def rendered_plots(held: Held) -> dict[str, str]:
    """The plots of the suite by file name."""
    plots = {}
    for name, measured in held.suite.items():
        plots[f"{name}.svg"] = speeds_plot(measured.results)
        plots[f"{name}-scaling.svg"] = scaling_plot(measured.series)
    return {name: text for name, text in plots.items() if text}


def write_page(held: Held, *, page: Path = PAGE, plots: Path = PLOTS) -> None:
    """Write the page and its plots; a plot of what is no longer measured goes."""
    page.write_text(rendered_page(TEMPLATE.read_text(encoding="utf-8"), held), encoding="utf-8")
    plots.mkdir(parents=True, exist_ok=True)
    drawn = rendered_plots(held)
    for name, text in drawn.items():
        (plots / name).write_text(text, encoding="utf-8")
    for path in plots.glob("*.svg"):
        if path.name not in drawn:
            path.unlink()


def names_in(template: str) -> list[str]:
    """The benchmarks that a template has a place for, in its order."""
    marks = (_MARK.fullmatch(line.strip()) for line in template.splitlines())
    names = [found[1] for found in marks if found is not None]
    return [name for name in names if name not in ("machine", "missed", "unless", "end")]


def _filled(name: str, held: Held) -> list[str]:
    if name == "machine":
        return _machine(held.shared)
    if name == "missed":
        return list(_missed(held))
    lines = []
    if name in held.suite:
        lines += _measured(name, held.suite[name], plotted=True)
    if name in held.full:
        lines += _full(name, held)
    if not lines:
        lines = [f"No results are kept of `python -m benchmarks.{name}`.", ""]
    return lines


def _machine(shared: Measured) -> list[str]:
    if not shared.machine:
        return ["No results of the suite are kept: `make bench`.", ""]
    when = f"{_day(shared.date)}, {_commit(shared.commit)}, {shared.seconds / 60:.0f} minutes"
    return [*machine_table(shared.machine), f"{when}.", ""]


def _missed(held: Held) -> Iterator[str]:
    parts = [("", held.suite), (", at full size", held.full)]
    told = [
        f"    - [{name}](#{name}){kind}: {text}"
        for kind, measured in parts
        for name, one in measured.items()
        for result in one.results
        for text in missed(result)
    ]
    count = sum(
        len(result.case.targets)
        for _, measured in parts
        for one in measured.values()
        for result in one.results
        if result.rounds
    )
    if told:
        yield from (f'!!! warning "Missed: {len(told)} of {count} targets"', "", *told, "")
    elif count:
        yield from (f"All {count} targets are met.", "")
    else:
        yield from ("No target has been judged yet.", "")


def _full(name: str, held: Held) -> list[str]:
    measured = held.full[name]
    when = f"{_day(measured.date)}, {_commit(measured.commit)}"
    machine = ["the machine above"]
    if _lasting(measured.machine) != _lasting(held.shared.machine):
        machine = [f"{key} {value}" for key, value in measured.machine.items()]
    return [
        f"#### At full size {{#{name}-full}}",
        "",
        f"{when}; {', '.join(machine)}.",
        "",
        *_measured(name, measured, plotted=False),
    ]


def _measured(name: str, measured: Measured, *, plotted: bool) -> list[str]:
    command = " ".join(f"python -m benchmarks.{name} {measured.options}".split())
    lines = [f"`{command}`", ""] if measured.options else []
    if measured.failed:
        lines += ['!!! warning "It could not run"', "", f"    {measured.failed}", ""]
    for result in measured.results:
        lines += case_table(result)
    if plotted and speeds_plot(measured.results):
        lines += [_image(f"{name}.svg", f"Speeds of {name}"), ""]
    if measured.series:
        lines += scaling_table(measured.series)
        if plotted:
            lines += [_image(f"{name}-scaling.svg", f"Time against size of {name}"), ""]
    return lines


def _image(file: str, told: str) -> str:
    return f"![{told.replace('_', ' ')}](assets/performance/{file})"


def _lasting(machine: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in machine.items() if name not in _PASSING}


def _day(date: str) -> str:
    day = datetime.date.fromisoformat(date)
    return f"{day.day} {day:%B %Y}"


def _commit(commit: str | None) -> str:
    if commit is None:
        return "commit not known"
    changed = ", with changes to it" if commit.endswith("+") else ""
    return f"commit {commit.removesuffix('+')}{changed}"


if __name__ == "__main__":
    write_page(held_in(RESULTS))
    sys.exit(0)
