"""``overspill partition``: a dataset split into parts."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overspill.cli.json_output import say_json
from overspill.cli.lines import columns_of, counted, glued, harmless, say, table
from overspill.cli.options import chosen, size
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.graph.dataset import Dataset
    from overspill.graph.partition import Partitioned

_METHODS = ("range", "hash", "degree-balanced")


def partition(
    dataset: Annotated[str, typer.Argument(help="The dataset's directory.")],
    parts: Annotated[int, typer.Option(min=1, help="How many parts.")],
    out: Annotated[str, typer.Option(help="The directory of the parts: absent or empty.")],
    method: Annotated[
        str, typer.Option(help="range, hash or degree-balanced: how nodes are given to parts.")
    ] = "range",
    memory_limit: Annotated[
        str | None, typer.Option(help='The most memory for buffers, such as "1GiB".')
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of the table.")
    ] = False,
) -> None:
    """Split a dataset into parts, each a dataset of its own, and write the partition books.

    Refuses at once what the disk cannot hold. Takes 32 MiB for buffers however large the dataset,
    so that it has no plan to tell, as builds have. Ctrl-C undoes it.

    --json gives an object with path, method, nodes, edges, size_bytes, seconds and parts (path,
    nodes, edges, size_bytes).
    """
    from overspill.cli.progress import PhaseBars
    from overspill.graph.dataset import open_dataset
    from overspill.graph.partition import partition_dataset

    chosen(method, _METHODS, option="--method")
    limit = None if memory_limit is None else size(memory_limit)
    whole = open_dataset(dataset)
    started = time.monotonic()
    with PhaseBars() as bars:
        found = partition_dataset(
            whole,
            parts,
            out=out,
            method=method,
            memory_limit=limit,
            progress=bars.follow_build,
        )
    if as_json:
        say_json({**_told(found), "seconds": time.monotonic() - started})
    else:
        _print_parts(found)


def _told(found: Partitioned) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {
            "path": str(part.path),
            "nodes": part.num_nodes,
            "edges": part.num_edges,
            "size_bytes": _nbytes(part),
        }
        for part in found.parts
    ]
    sums = {name: sum(one[name] for one in parts) for name in ("nodes", "edges", "size_bytes")}
    return {"path": str(found.path), "method": found.manifest.method, **sums, "parts": parts}


def _nbytes(part: Dataset) -> int:
    return sum(record.nbytes for record in part.manifest.files())


def _print_parts(found: Partitioned) -> None:
    rows: list[tuple[str, ...]] = [("part", "nodes", "edges", "size")]
    for part in found.parts:
        row = f"{part.num_nodes:,}", f"{part.num_edges:,}", format_bytes(_nbytes(part))
        rows.append((part.path.name, *row))
    typer.echo(table(rows, columns_of(sys.stdout), right=(1, 2, 3)))
    nodes = glued(f"{sum(part.num_nodes for part in found.parts):,} nodes")
    edges = glued(f"{sum(part.num_edges for part in found.parts):,} edges")
    parts = glued(counted(len(found.parts), "part"))
    say(f"{harmless(str(found.path))}: {parts}, {nodes}, {edges}")
