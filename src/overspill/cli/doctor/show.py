"""How the doctor's findings are shown: on one screen, or as JSON.

Lines are broken here and not by the console, so that a command that is longer than a line can
still be pasted, and no number is parted from its unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from overspill.cli.doctor.finding import Finding, Remedy, RemedyKind
from overspill.cli.doctor.machine import Machine, Memory
from overspill.cli.lines import glued, harmless, wrapped
from overspill.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

_MOST_LINES = 40
_LABEL_WIDTH = 9
_UNIT = re.compile(r"\d (?:B|[KMGT]iB)\b")
# A shell's words: what is quoted stays in one piece.
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
_LABELS = {"shell": "do: ", "yaml": "pod: ", "python": "python: "}
_STYLES = {"problem": "bold red", "advice": "bold yellow"}

Line = tuple[str, str]


def print_findings(
    console: Console, machine: Machine, findings: list[Finding], *, everything: bool = False
) -> None:
    """Print what was measured, the findings, and their number.

    Args:
        console: Where to.
        machine: What was measured.
        findings: What follows from it, problems first.
        everything: Show all advice, on however many lines; otherwise as much as fits on a screen.
            Problems are always shown.
    """
    from rich.text import Text

    width = max(20, console.width)
    lines = [line for label, text in facts(machine) for line in _fact_lines(label, text, width)]
    hidden = 0
    for finding in findings:
        block = list(_finding_lines(finding, width))
        # Two lines are kept for the sum.
        fits = len(lines) + len(block) + 2 <= _MOST_LINES
        if finding.severity == "problem" or everything or (fits and not hidden):
            lines += block
        else:
            hidden += 1
    lines += [("", ""), *((line, "bold") for line in _wrapped(_sum(findings, hidden), width))]
    for line, style in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def as_json(machine: Machine, findings: list[Finding]) -> dict[str, Any]:
    """All of it as one object; see the verb for its keys."""
    held = asdict(machine)
    settings = held["settings"]
    if settings is not None and settings["spill_dir"] is not None:
        settings["spill_dir"] = str(settings["spill_dir"])
    return {
        "problems": sum(one.severity == "problem" for one in findings),
        "advice": sum(one.severity == "advice" for one in findings),
        "findings": [
            {
                "check": one.check,
                "severity": one.severity,
                "measured": one.measured,
                "why": one.why,
                "remedy": one.remedy.text,
                "remedy_kind": one.remedy.kind,
                "otherwise": one.otherwise.text if one.otherwise else None,
                "sources": list(one.sources),
            }
            for one in findings
        ],
        "machine": held,
    }


def facts(machine: Machine) -> Iterator[tuple[str, str]]:
    """What was measured, as pairs of a label and a text."""
    shm, limits, held = machine.shm, machine.limits, machine.processors
    yield "memory", _memory(machine.memory)
    yield "", _eaten(machine.memory)
    sizes = f"{_size(shm.total_bytes)}, {_size(shm.free_bytes)} free"
    yield "/dev/shm", "missing" if shm.total_bytes is None else sizes
    yield "spill", _spill(machine)
    quota = "no quota" if held.quota is None else f"a quota of {held.quota:g}"
    yield "cpu", f"{held.allowed} CPUs, {quota}"
    held_open = f"{_count(limits.open_files)} open files, {_count(limits.mappings)} mappings"
    yield "limits", held_open + _tasks(machine)
    where = "" if machine.surroundings == "host" else f", in {machine.surroundings}"
    yield "kernel", f"{machine.kernel}{where}; pages asked for by {machine.fetch_method}"
    versions = {"torch": None, "torch_geometric": None, **machine.versions}
    told = [name for name in versions if versions[name] or name in ("torch", "torch_geometric")]
    yield "software", ", ".join(f"{name} {versions[name] or 'none'}" for name in sorted(told))


def _memory(memory: Memory) -> str:
    available = f"{_size(memory.available_bytes)} can be had"
    total = _size(memory.total_bytes)
    if memory.limit_bytes is None:
        return f"{available} of {total}, no limit"
    return f"{available} of a limit of {_size(memory.limit_bytes)} (machine: {total})"


def _eaten(memory: Memory) -> str:
    return (
        f"in use {_size(memory.usage_bytes)}: anonymous {_size(memory.anon_bytes)}, shared "
        f"{_size(memory.shmem_bytes)}, clean cache {_size(memory.clean_file_bytes)} (taken back "
        f"at need), dirty {_size(memory.dirty_bytes)}"
    )


def _spill(machine: Machine) -> str:
    held = machine.spill_dir
    told = [f"{held.path} ({held.chosen_by}{'' if held.exists else ', to be made'}): {held.kind}"]
    told.append(f"{_size(held.free_bytes)} free of {_size(held.total_bytes)}")
    if held.reserves is not None:
        told.append("reserves blocks" if held.reserves else "cannot reserve blocks")
    if held.read_ahead_bytes is not None:
        told.append(f"read-ahead {_size(held.read_ahead_bytes)}")
    return ", ".join(told)


def _tasks(machine: Machine) -> str:
    held = machine.tasks
    return "" if held is None else f", {held.count:,} of {held.limit:,} processes and threads"


def _fact_lines(label: str, text: str, width: int) -> Iterator[Line]:
    for line in _wrapped(text, width, label.ljust(_LABEL_WIDTH), " " * _LABEL_WIDTH):
        yield line, ""


def _finding_lines(finding: Finding, width: int) -> Iterator[Line]:
    yield "", ""
    style = _STYLES[finding.severity]
    for line in _wrapped(f"{finding.severity}: {finding.measured}", width, "", "  "):
        yield line, style
    for line in _wrapped(finding.why, width, "  ", "  "):
        yield line, ""
    for line in _remedy_lines(finding.remedy, width, _LABELS[finding.remedy.kind]):
        yield line, "cyan"
    if finding.otherwise is not None:
        for line in _remedy_lines(finding.otherwise, width, "or: "):
            yield line, "cyan"


def _remedy_lines(remedy: Remedy, width: int, label: str) -> list[str]:
    """The remedy on lines that are still one command, or one value, when they are pasted."""
    lines: list[str] = []
    for text in remedy.text.splitlines():
        lines += _folded(text, width, f"  {label}" if not lines else "    ", remedy.kind)
    return lines


def _folded(text: str, width: int, first: str, kind: RemedyKind) -> list[str]:
    """Break between words: with a backslash in a shell and in Python, as it is in YAML."""
    ending = "" if kind == "yaml" else " \\"
    words = _WORD.findall(harmless(text))
    lines = [first + words[0]]
    for word in words[1:]:
        if len(f"{lines[-1]} {word}{ending}") > width:
            lines[-1] += ending
            lines.append("      " + word)
        else:
            lines[-1] += f" {word}"
    return lines


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    told = _UNIT.sub(lambda found: glued(found[0]), harmless(text))
    return wrapped(glued(first) + told, width, indent=len(rest)).split("\n")


def _sum(findings: list[Finding], hidden: int) -> str:
    if not findings:
        return "nothing is wrong"
    problems = sum(one.severity == "problem" for one in findings)
    advice = len(findings) - problems
    told = "no problem" if not problems else f"{problems} problem{'s' * (problems > 1)}"
    told += f", {advice} {'pieces' if advice > 1 else 'piece'} of advice" if advice else ""
    return told + (f" ({hidden} not shown: overspill doctor --all)" if hidden else "")


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_bytes(nbytes)


def _count(number: int | None) -> str:
    return "unlimited" if number is None else f"{number:,}"
