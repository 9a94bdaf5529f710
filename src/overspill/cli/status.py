"""``overspill status``: the runs in a spill directory, who holds them, what their files hold."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overspill.cli.json_output import say_json
from overspill.cli.lines import columns_of, harmless
from overspill.cli.spill_place import refuse_dataset, spill_place

if TYPE_CHECKING:
    from overspill.storage.run_reports import FileReport, RunReport, SpillDirReport


def status(
    directory: Annotated[
        Path | None, typer.Argument(help="The spill directory; OVERSPILL_DIR if left out.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds between two looks of --watch.")
    ] = 2.0,
    files: Annotated[
        int, typer.Option(min=0, help="Files shown of each run, the largest first.")
    ] = 10,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, with every file; a line a look.")
    ] = False,
) -> None:
    """Show the runs in a spill directory: alive or dead, their processes and files.

    It only looks: nothing is written, no page is touched, no run is kept waiting. Exit status 0,
    1 where the directory cannot be looked at, 130 when --watch is ended.

    --json gives an object with directory, runs, totals and disk. Of a run: run, directory, state
    ("alive", "dead", "unknown"), reason, host, on_this_machine, pid (that began it), command,
    started_s (since 1970), age_s, size_bytes, resident_bytes, dirty_bytes, processes (pid, command,
    shows_mappings) and files (name, size_bytes, dtype, shape, resident_bytes, dirty_bytes,
    mapped_by). Of totals: runs, alive, dead, unknown, files, size_bytes, dead_bytes,
    resident_bytes, dirty_bytes, and nameless_files and nameless_bytes (discarded tensors and
    batches on their way that are still mapped). Of disk: file_system, free_bytes, total_bytes. What
    is not known is null.
    """
    from overspill.storage.survey import survey_spill_dir

    place = spill_place(directory, "status")
    try:
        while True:
            report = survey_spill_dir(place)
            if not report.runs:
                refuse_dataset(place)
            if as_json:
                say_json(to_json(report))
            else:
                _show(report, files, every_s=interval if watch else None)
            if not watch:
                return
            sys.stdout.flush()
            # A true timer: nothing in the kernel tells of pages that were written or dropped.
            time.sleep(interval)
    except KeyboardInterrupt:
        if not watch:
            raise
        # How a watch ends: nothing was broken off.
        raise typer.Exit(128 + signal.SIGINT) from None


def to_json(report: SpillDirReport) -> dict[str, Any]:
    """The report as `status` documents it."""
    files = [file for run in report.runs for file in run.files]
    states = [run.state for run in report.runs]
    return {
        "directory": str(report.directory),
        "runs": [_run(run) for run in report.runs],
        "totals": {
            "runs": len(states),
            "alive": states.count("alive"),
            "dead": states.count("dead"),
            "unknown": states.count("unknown"),
            "files": len(files),
            "size_bytes": sum(file.nbytes for file in files),
            "dead_bytes": sum(run.nbytes for run in report.runs if run.state == "dead"),
            "resident_bytes": sum(run.resident_bytes for run in report.runs),
            "dirty_bytes": sum(run.dirty_bytes for run in report.runs),
            "nameless_files": report.unnamed_files,
            "nameless_bytes": report.unnamed_bytes,
        },
        "disk": {
            "file_system": report.file_system,
            "free_bytes": report.free_bytes,
            "total_bytes": report.total_bytes,
        },
    }


def _run(run: RunReport) -> dict[str, Any]:
    began = run.began
    return {
        "run": run.directory.name.partition("-")[2],
        "directory": str(run.directory),
        "state": run.state,
        "reason": run.reason,
        "host": None if began is None else began.host,
        "on_this_machine": run.is_of_this_machine,
        "pid": None if began is None else began.pid,
        "command": None if began is None else began.command,
        "started_s": None if began is None else began.started_s,
        "age_s": run.age_s,
        "size_bytes": run.nbytes,
        "resident_bytes": run.resident_bytes,
        "dirty_bytes": run.dirty_bytes,
        "processes": [
            {"pid": one.pid, "command": one.command, "shows_mappings": one.shows_mappings}
            for one in run.processes
        ],
        "files": [_file(file) for file in run.files],
    }


def _file(file: FileReport) -> dict[str, Any]:
    return {
        "name": file.name,
        "size_bytes": file.nbytes,
        "dtype": None if file.tensor is None else file.tensor.dtype,
        "shape": None if file.tensor is None else list(file.tensor.shape),
        "resident_bytes": file.resident_bytes,
        "dirty_bytes": file.dirty_bytes,
        "mapped_by": list(file.mapped_by),
    }


def _show(report: SpillDirReport, most_files: int, *, every_s: float | None) -> None:
    from overspill.cli.status_text import status_lines, total_lines

    width, height = columns_of(sys.stdout), shutil.get_terminal_size().lines
    lines = status_lines(report, width=width, most_files=most_files)
    if every_s is None:
        typer.echo("\n".join(lines))
        return
    name = harmless(str(report.directory))
    head = [f"{time.strftime('%H:%M:%S')}, every {every_s:g} s; Ctrl-C ends", ""]
    if not sys.stdout.isatty():
        typer.echo("\n".join([name, *head[:1], *lines, ""]))
        return
    screen = fitted([*head, *lines], len(total_lines(report, width=width)), height)
    # Over the last look, line by line, so that nothing flickers.
    typer.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in screen) + "\x1b[J", nl=False)


def fitted(lines: list[str], last: int, height: int) -> list[str]:
    """What fits a screen: the beginning, and the last lines, the totals, whatever is left out."""
    if len(lines) < height:
        return lines
    first = max(0, height - 2 - last)
    left_out = len(lines) - first - last
    return [*lines[:first], f"... {left_out:,} lines left out", *lines[len(lines) - last :]]
