"""``overspill clean``: remove what dead runs left in a spill directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overspill.cli.lines import counted, harmless
from overspill.cli.spill_place import refuse_dataset, spill_place
from overspill.units import format_bytes


def clean(
    directory: Annotated[
        Path | None, typer.Argument(help="The spill directory; OVERSPILL_DIR if left out.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be removed.")
    ] = False,
) -> None:
    """Remove the spill files of runs that have no process left; never those of a living run.

    Exit status 0, or 1 where the directory, or a run, cannot be looked into, or a dead run had to
    be kept.
    """
    from overspill.storage.leases import run_directories, sweep_dead_runs
    from overspill.storage.survey import require_readable

    place = spill_place(directory, "clean")
    require_readable(place)
    if not run_directories(place):
        refuse_dataset(place)
    dead = sweep_dead_runs(place, dry_run=dry_run)
    for run in dead:
        if run.files or run.kept is None:
            size = format_bytes(run.nbytes)
            typer.echo(f"{harmless(str(run.directory))}: {counted(run.files, 'file')}, {size}")
        if run.kept is not None:
            typer.echo(harmless(f"overspill: kept {run.directory}: {run.kept}"), err=True)
    gone = [run for run in dead if run.kept is None]
    total = format_bytes(sum(run.nbytes for run in dead))
    done = "to remove" if dry_run else "removed"
    told = f"{counted(len(gone), 'dead run')} {done} from {harmless(str(place))}, {total}"
    typer.echo(told)
    if len(gone) < len(dead):
        others = all(run.is_others for run in dead if run.kept is not None)
        whose = "clean as their owner, as root, or on their machine"
        what = whose if others else "look into the directories that were kept"
        typer.echo(f"  what to do: {what}", err=True)
        raise typer.Exit(1)
