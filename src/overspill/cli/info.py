"""``overspill info``: what a dataset holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overspill.cli.wording import told_at_the_prompt
from overspill.errors import FormatError, OverspillError, StaleFileError
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.storage.manifest import FileRecord, Manifest
    from overspill.storage.type_records import EdgeTypeRecord, NodeTypeRecord


def info(dataset: Annotated[str, typer.Argument(help="The dataset's directory.")]) -> None:
    """Show types, counts, arrays, dtypes and sizes of a dataset; reads headers only."""
    from rich.console import Console

    from overspill.storage.manifest import read_manifest

    manifest = read_manifest(dataset, check_files=False)
    listing = _Listing(Path(dataset))
    listing.add_all(manifest)
    Console().print(listing.table)
    if manifest.partition is not None:
        part = manifest.partition
        typer.echo(f"part {part.index} of {part.num_parts}, by {part.method}")
    typer.echo(f"built {manifest.created} by overspill {manifest.overspill_version}")
    for problem in listing.problems:
        typer.echo(f"overspill: {told_at_the_prompt(problem)}", err=True)
    if listing.problems:
        raise typer.Exit(1)


class _Listing:
    """The table, and what is wrong with the files that it lists."""

    def __init__(self, directory: Path) -> None:
        from rich.table import Table

        self.table: Any = Table("what", "dtype", "shape", "size", box=None, pad_edge=False)
        self.problems: list[OverspillError] = []
        self._directory = directory

    def add_all(self, manifest: Manifest) -> None:
        for node in manifest.node_types.values():
            self._add_nodes(node)
        for edge in manifest.edge_types.values():
            self._add_edges(edge)
        total = sum(record.nbytes for record in manifest.files())
        self.table.add_row("[bold]in all[/]", "", "", format_bytes(total))

    def _add_nodes(self, node: NodeTypeRecord) -> None:
        self.table.add_row(f"[bold]{node.name}[/]: {node.count:,} nodes")
        for name, record in node.arrays.items():
            self._add(name, record)
        self._add("hashes of ids" if node.texts else "original ids", node.ids)
        for name, record in (node.texts or {}).items():
            self._add(f"text of ids, {name}", record)
        self._add("numbers, original", node.original)
        self._add("numbers, renumbered", node.renumbered)
        self._tell(node.notes)

    def _add_edges(self, edge: EdgeTypeRecord) -> None:
        self.table.add_row(f"[bold]{' -> '.join(edge.key)}[/]: {edge.count:,} edges")
        for layout, parts in edge.layouts.items():
            for part, record in parts.items():
                self._add(f"{layout} {part}", record)
            for name, record in edge.arrays.get(layout, {}).items():
                self._add(f"{layout} array {name}", record)
        self._tell(edge.notes)

    def _add(self, what: str, record: FileRecord | None) -> None:
        from overspill.storage.manifest import check_file

        if record is None:
            return
        try:
            check_file(self._directory, record)
            size = format_bytes(record.nbytes)
        except (FormatError, StaleFileError) as error:
            self.problems.append(error)
            size = "damaged"
        shape = " x ".join(f"{n:,}" for n in record.shape)
        self.table.add_row(f"  {what}", record.dtype, shape, size)

    def _tell(self, notes: dict[str, int]) -> None:
        for note, count in notes.items():
            if count:
                self.table.add_row(f"  {note.replace('_', ' ')}: {count:,}")
