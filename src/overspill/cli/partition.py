"""``overspill partition``: a dataset split into parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from overspill.cli.options import size
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.graph.partition import Partitioned


def partition(
    dataset: Annotated[str, typer.Argument(help="The dataset's directory.")],
    parts: Annotated[int, typer.Option(help="How many parts.")],
    out: Annotated[str, typer.Option(help="The directory of the parts: absent or empty.")],
    method: Annotated[
        str, typer.Option(help="range, hash or degree-balanced: how nodes are given to parts.")
    ] = "range",
    memory_limit: Annotated[
        str | None, typer.Option(help='The most memory for buffers, such as "1GiB".')
    ] = None,
) -> None:
    """Split a dataset into parts, each a dataset of its own, and write the partition books."""
    from overspill.cli.progress import PhaseBars
    from overspill.graph.dataset import open_dataset
    from overspill.graph.partition import partition_dataset

    limit = None if memory_limit is None else size(memory_limit)
    whole = open_dataset(dataset)
    with PhaseBars() as bars:
        found = partition_dataset(
            whole,
            parts,
            out=out,
            method=method,
            memory_limit=limit,
            progress=bars.follow_build,
        )
    _print_parts(found)


def _print_parts(found: Partitioned) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("part", "nodes", "edges", "size", box=None, pad_edge=False)
    for part in found.parts:
        nbytes = sum(record.nbytes for record in part.manifest.files())
        row = f"{part.num_nodes:,}", f"{part.num_edges:,}", format_bytes(nbytes)
        table.add_row(part.path.name, *row)
    Console().print(table)
    nodes = sum(part.num_nodes for part in found.parts)
    edges = sum(part.num_edges for part in found.parts)
    typer.echo(f"{found.path}: {len(found.parts)} parts, {nodes:,} nodes, {edges:,} edges")
