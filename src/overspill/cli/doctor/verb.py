"""``overspill doctor``: what will go wrong on this machine, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overspill.cli.json_output import say_json


def doctor(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="The spill directory to check; OVERSPILL_DIR, or the current one, if left out.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all advice, also what is beyond one screen.")
    ] = False,
) -> None:
    """Say what will go wrong on this machine, or in this container, and what to do about it.

    Looks at the memory limit and what eats it, /dev/shm, the spill directory and its disk, the
    processors, limits of the process, the kernel, and the versions of torch and PyG. Changes
    nothing. Ends with status 1 if there is a problem; advice alone is status 0.

    The JSON object has "problems" and "advice" (how many), "findings" (a list of check, severity,
    measured, why, remedy, remedy_kind, otherwise and sources) and "machine" (all that was measured;
    sizes are in bytes and end in _bytes, null is not known or no limit).
    """
    from rich.console import Console

    from overspill.cli.doctor import show
    from overspill.cli.doctor.diagnosis import diagnose
    from overspill.cli.doctor.measure import measure

    machine = measure(directory)
    findings = diagnose(machine)
    if as_json:
        say_json(show.as_json(machine, findings), indent=2)
    else:
        console = Console(highlight=False)
        with console.capture() as text:  # rich ends the process itself where nobody reads
            show.print_findings(console, machine, findings, everything=everything)
        typer.echo(text.get(), nl=False)
    if any(one.severity == "problem" for one in findings):
        raise typer.Exit(1)
