"""``overspill bench``: what this machine can do, and how close Overspill comes to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from overspill.cli.bench.sizes import FULL, QUICK
from overspill.cli.ending import ended_in_order
from overspill.cli.json_output import say_json
from overspill.settings import current_settings


def bench(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="On the disk to measure; OVERSPILL_DIR, else here."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A sixth of the time and of the room, less exact.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Check this machine in at most two minutes: the disk's limits, and Overspill's share of them.

    Writes, reads and reads at random past the page cache, then spills, maps, gathers, hands over
    and builds the same amounts, each as a share of the limit measured beside it; a share above 1
    is no error. Takes 2.9 GiB of disk, --quick 0.7, and leaves nothing. Ends with status 1 if there
    is advice about a poor share or the disk; a machine that was busy, and what a killed bench left,
    are told alone.

    The JSON object has directory, overspill_version, quick, rounds, seconds, "moved" (write_bytes,
    read_bytes, edges, nodes), "machine" (file_system, direct, read_ahead_bytes and more), "limits"
    (by name: unit, and per_second with median, low and high), "measures" (the same, and limit,
    ratio and poor_below) and "advice" (a list of about, finding, remedy).
    """
    from overspill.cli.bench import shown
    from overspill.cli.bench.advice import BUSY, LEFT
    from overspill.cli.bench.run import measure
    from overspill.cli.lines import columns_of
    from overspill.cli.progress import PhaseBars

    place = directory or current_settings().spill_dir or Path()
    with ended_in_order(), PhaseBars() as bars:
        report = measure(
            place,
            QUICK if quick else FULL,
            smaller=None if quick else QUICK,
            told=lambda phase, done, total: bars.update(phase, done, total, "steps"),
        )
    if as_json:
        say_json(shown.as_json(report, quick=quick), indent=2)
    else:
        typer.echo(shown.as_text(report, columns=columns_of(sys.stdout)))
    if any(one.about not in (BUSY, LEFT) for one in report.advice):
        raise typer.Exit(1)
