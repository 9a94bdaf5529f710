"""``overspill verify``: read a dataset and compare its checksums."""

from __future__ import annotations

from typing import Annotated

import typer


def verify(dataset: Annotated[str, typer.Argument(help="The dataset's directory.")]) -> None:
    """Read every file of a dataset once and compare its checksum; exit 1 when one differs."""
    from overspill.cli.progress import PhaseBars
    from overspill.storage.checksums import verify_checksums
    from overspill.storage.manifest import read_manifest

    manifest = read_manifest(dataset, check_files=False)
    with PhaseBars() as bars:
        problems = verify_checksums(
            dataset,
            manifest,
            progress=lambda done, total: bars.update("verify", done, total, "B"),
        )
    for problem in problems:
        typer.echo(f"overspill: {problem.path}: {problem.reason}", err=True)
    if problems:
        typer.echo("  what to do: build the dataset again, or copy the file anew", err=True)
        raise typer.Exit(1)
    typer.echo(f"{dataset}: {len(manifest.files())} files as recorded")
