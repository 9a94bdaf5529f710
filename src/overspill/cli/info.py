"""``overspill info``: what a dataset holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overspill.cli.wording import told_at_the_prompt
from overspill.errors import FormatError, OverspillError, StaleFileError
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.storage.manifest import FileRecord


def info(dataset: Annotated[str, typer.Argument(help="The dataset's directory.")]) -> None:
    """Show types, counts, arrays, dtypes and sizes of a dataset; reads headers only."""
    from rich.console import Console
    from rich.table import Table

    from overspill.storage.manifest import check_file, read_manifest

    manifest = read_manifest(dataset, check_files=False)
    table = Table("what", "dtype", "shape", "size", box=None, pad_edge=False)
    problems: list[OverspillError] = []

    def add(what: str, record: FileRecord) -> None:
        shape = " x ".join(f"{n:,}" for n in record.shape)
        try:
            check_file(Path(dataset), record)
            size = format_bytes(record.nbytes)
        except (FormatError, StaleFileError) as error:
            problems.append(error)
            size = "damaged"
        table.add_row(what, record.dtype, shape, size)

    for node in manifest.node_types.values():
        table.add_row(f"[bold]{node.name}[/]: {node.count:,} nodes")
        for name, record in node.arrays.items():
            add(f"  {name}", record)
        if node.ids is not None:
            add("  original ids", node.ids)
    for edge in manifest.edge_types.values():
        table.add_row(f"[bold]{' -> '.join(edge.key)}[/]: {edge.count:,} edges")
        for layout, parts in edge.layouts.items():
            for part, record in parts.items():
                add(f"  {layout} {part}", record)
    total = sum(record.nbytes for record in manifest.files())
    table.add_row("[bold]in all[/]", "", "", format_bytes(total))
    Console().print(table)
    typer.echo(f"built {manifest.created} by overspill {manifest.overspill_version}")
    for problem in problems:
        typer.echo(f"overspill: {told_at_the_prompt(problem)}", err=True)
    if problems:
        raise typer.Exit(1)
