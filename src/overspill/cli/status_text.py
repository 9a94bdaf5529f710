"""The status of a spill directory as lines of text, for a terminal of any width.

Sizes and numbers are never parted from their units: a line breaks between facts. Files are a table
where it fits the width, else a few lines each.
"""

from __future__ import annotations

import shlex

from overspill.cli.lines import counted, glued, harmless, table, wrapped
from overspill.storage.run_reports import FileReport, RunReport, SpillDirReport
from overspill.storage.spill_records import TensorRecord
from overspill.units import format_bytes

_LABEL_WIDTH = 11
_MOST_COMMAND = 400
_MOST_PIDS = 24
_PIDS_A_FILE = 4
_HEADS = ("size", "in memory", "tensor", "mapped by", "file")
_STEPS_S = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def status_lines(report: SpillDirReport, *, width: int | None, most_files: int) -> list[str]:
    """Tell each run, its processes and its largest files, and in the end the totals.

    Args:
        report: What there is.
        width: Of the terminal, in columns; None where there is none, and each line stays one.
        most_files: Files told of each run; the others are summed up.

    Returns:
        The lines, none longer than the width unless a single name or number is.
    """
    lines: list[str] = []
    for run in report.runs:
        lines += [*_run_lines(run, width, most_files), ""]
    return lines + total_lines(report, width=width)


def total_lines(report: SpillDirReport, *, width: int | None) -> list[str]:
    """The last lines: all runs together, the disk, and what to do about what is dead."""
    dead = [run for run in report.runs if run.state == "dead"]
    lines = [harmless(str(report.directory))]
    lines += _fact("runs", _joined(_run_counts(report)), width)
    lines += _fact("files", _joined(_file_facts([f for r in report.runs for f in r.files])), width)
    if report.unnamed_files:
        mapped = glued(f"{format_bytes(report.unnamed_bytes)} mapped")
        number = glued(counted(report.unnamed_files, "file"))
        told = f"{number}, {mapped}: discarded, or batches on their way"
        lines += _fact("nameless", told, width)
    free, total = format_bytes(report.free_bytes), format_bytes(report.total_bytes)
    disk = _joined([f"{free} free of {total}", harmless(report.file_system)])
    lines += _fact("disk", disk, width)
    own = [run for run in dead if run.is_removable]
    if own:
        told = f"{_dead_runs(own)}, removed by the next"
        command = f"overspill clean {shlex.quote(harmless(str(report.directory)))}"
        lines += _fact("to clean", f"{told} run that begins here, or by: {command}", width)
    if len(own) < len(dead):
        others = _dead_runs([run for run in dead if not run.is_removable])
        lines += _fact("others'", f"{others}, not this user's: its owner, or root, cleans", width)
    return lines


def _dead_runs(runs: list[RunReport]) -> str:
    size = format_bytes(sum(run.nbytes for run in runs))
    return f"{glued(counted(len(runs), 'dead run'))} {glued(f'({size})')}"


def format_age(seconds: float) -> str:
    """Write a span of time for people, by its two largest units ("2 h 14 min")."""
    left = int(seconds)
    parts: list[str] = []
    for step, unit in _STEPS_S:
        amount, left = divmod(left, step)
        if amount or parts:
            parts.append(f"{amount} {unit}" if amount else "")
    return " ".join(part for part in parts[:2] if part) or "0 s"


def format_tensor(tensor: TensorRecord | None) -> str:
    """Write dtype and shape for people ("float32 1,000 x 64"), "-" where they are not known."""
    if tensor is None:
        return "-"
    return f"{tensor.dtype} {' x '.join(f'{size:,}' for size in tensor.shape) or 'scalar'}"


def _run_lines(run: RunReport, width: int | None, most_files: int) -> list[str]:
    lines = [run.directory.name]
    lines += _fact(run.state, _state_facts(run), width)
    command = _command(run)
    if command is not None:
        lines += _fact("command", command, width)
    if run.processes:
        lines += _fact("pids", _joined(_pids(run), " "), width)
    if run.began is not None and run.began.host is not None:
        lines += _fact("host", _host(run), width)
    lines += _fact("files", _joined(_file_facts(run.files)), width)
    return lines + _file_lines(run, width, most_files)


def _state_facts(run: RunReport) -> str:
    facts = [] if run.age_s is None else [f"begun {format_age(run.age_s)} ago"]
    if run.processes:
        holders = "process" if len(run.processes) == 1 else "processes"
        facts.append(f"held by {len(run.processes):,} {holders}")
    told = _joined(facts)
    return "; ".join(part for part in (told, harmless(run.reason)) if part) or "-"


def _command(run: RunReport) -> str | None:
    """The command that began the run; where it is not recorded, that of its first process."""
    recorded = None if run.began is None else run.began.command
    found = recorded or next((p.command for p in run.processes if p.command), None)
    if found is None:
        return None
    told = " ".join(found.split())  # a script given by -c has lines
    return harmless(told if len(told) <= _MOST_COMMAND else f"{told[:_MOST_COMMAND].rstrip()} ...")


def _pids(run: RunReport) -> list[str]:
    told = [
        str(process.pid) if process.shows_mappings else f"{process.pid} (mappings not shown)"
        for process in run.processes
    ]
    more = len(told) - _MOST_PIDS
    return told if more <= 0 else [*told[:_MOST_PIDS], f"and {more:,} more"]


def _host(run: RunReport) -> str:
    assert run.began is not None and run.began.host is not None
    name = harmless(run.began.host.rpartition("/")[0] or run.began.host)
    begun = "begun" if run.began.pid is None else f"begun by {glued(f'process {run.began.pid}')}"
    where = "on this machine" if run.is_of_this_machine else "elsewhere, or before a restart"
    return f"{name}; {begun} {where}"


def _run_counts(report: SpillDirReport) -> list[str]:
    facts = [counted(len(report.runs), "run")] if report.runs else ["none"]
    for state in ("alive", "dead", "unknown"):
        number = sum(run.state == state for run in report.runs)
        if number:
            facts.append(f"{number:,} {state}")
    return facts


def _file_facts(files: list[FileReport] | tuple[FileReport, ...]) -> list[str]:
    if not files:
        return ["none"]
    facts = [counted(len(files), "file"), format_bytes(sum(file.nbytes for file in files))]
    known = [file for file in files if file.resident_bytes is not None]
    if known:
        resident = sum(file.resident_bytes or 0 for file in known)
        facts.append(f"{format_bytes(resident)} in memory")
    dirty = sum(file.dirty_bytes or 0 for file in files)
    if dirty:
        facts.append(f"{format_bytes(dirty)} not written back")
    if len(known) < len(files):
        facts.append(f"unknown of {len(files) - len(known):,} what is in memory")
    return facts


def _file_lines(run: RunReport, width: int | None, most_files: int) -> list[str]:
    shown, rest = run.files[:most_files], run.files[most_files:]
    rows = [_row(file, told=bool(run.processes)) for file in shown]
    held = table([_HEADS, *rows], None, right=(0, 1)).split("\n") if rows else []
    lines = [f"    {line}" for line in held]
    if width is not None and any(len(line) > width for line in lines):
        lines = [line for row in rows for line in _stacked(row, width)]
    if rest:
        told = _joined([f"and {len(rest):,} more", *_file_facts(rest)[1:]])
        lines += _wrapped(told, width, indent=4)
    return lines


def _row(file: FileReport, *, told: bool) -> tuple[str, ...]:
    resident = "-" if file.resident_bytes is None else format_bytes(file.resident_bytes)
    pids = [str(pid) for pid in file.mapped_by[:_PIDS_A_FILE]]
    if len(file.mapped_by) > _PIDS_A_FILE:
        pids.append(f"+{len(file.mapped_by) - _PIDS_A_FILE:,}")
    mapped = " ".join(pids) or ("nobody" if told else "-")
    return format_bytes(file.nbytes), resident, format_tensor(file.tensor), mapped, file.name


def _stacked(row: tuple[str, ...], width: int | None) -> list[str]:
    size, resident, tensor, mapped, name = row
    facts = [size] if resident == "-" else [size, f"{resident} in memory"]
    if tensor != "-":
        facts.append(tensor)
    if mapped != "-":
        facts.append(f"mapped by {mapped}")
    return [f"    {name}", *_wrapped(_joined(facts), width, indent=6)]


def _joined(facts: list[str], separator: str = ", ") -> str:
    """Facts in a row, each of them whole on one line if it can be."""
    return separator.join(glued(fact) for fact in facts)


def _fact(label: str, told: str, width: int | None) -> list[str]:
    lines = _wrapped(told, width, indent=_LABEL_WIDTH)
    return [f"  {label}".ljust(_LABEL_WIDTH) + lines[0][_LABEL_WIDTH:], *lines[1:]]


def _wrapped(told: str, width: int | None, *, indent: int) -> list[str]:
    if width is not None:
        # What is longer than a line gives up its joints, and only that.
        words = told.split(" ")
        told = " ".join(" ".join(w.split()) if len(w) > width - indent else w for w in words)
    return wrapped(" " * indent + told, width).split("\n")
