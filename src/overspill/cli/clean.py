"""``overspill clean``: remove what dead runs left in a spill directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overspill.errors import SettingsError
from overspill.settings import current_settings
from overspill.units import format_bytes


def clean(
    directory: Annotated[
        Path | None, typer.Argument(help="The spill directory; OVERSPILL_DIR if left out.")
    ] = None,
) -> None:
    """Remove the spill files of runs that have no process left; never those of a living run."""
    from overspill.storage.leases import reclaim_dead_runs

    place = directory or current_settings().spill_dir
    if place is None:
        raise SettingsError(
            "no spill directory is given", remedy="overspill clean DIR, or set OVERSPILL_DIR"
        )
    removed = reclaim_dead_runs(place)
    for run in removed:
        typer.echo(f"{run.directory}: {run.files} files, {format_bytes(run.nbytes)}")
    total = format_bytes(sum(run.nbytes for run in removed))
    typer.echo(f"{len(removed)} dead runs removed from {place}, {total}")
