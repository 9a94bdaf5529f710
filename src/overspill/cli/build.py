"""``overspill build``: edge lists and arrays in, a dataset out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from overspill.cli.options import named_paths, size
from overspill.cli.progress import PhaseBars, format_count
from overspill.units import format_bytes


def build(
    out: Annotated[str, typer.Option(help="The dataset's directory; new, or empty.")],
    edges: Annotated[
        list[str], typer.Option(help="Edge file or quoted glob: CSV, SNAP, .npy; repeatable.")
    ],
    node_features: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE.npy, a row a node; repeatable.")
    ] = None,
    num_nodes: Annotated[
        int | None, typer.Option(min=0, help="Number of nodes; default: from features or ids.")
    ] = None,
    ids: Annotated[
        str, typer.Option(help="dense, remap, or auto (remap for SNAP text alone).")
    ] = "auto",
    columns: Annotated[
        str | None, typer.Option(help="SOURCE,TARGET: the columns of CSV edges.")
    ] = None,
    edge_axis: Annotated[
        int | None, typer.Option(help="1 for .npy edges of shape (2, E), 0 for (E, 2).")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help='Most memory of the build, like "1GiB".')
    ] = None,
) -> None:
    """Build a dataset out of core, in a fixed amount of memory."""
    from overspill.build import describe_build, run_build

    options: dict[str, Any] = {"num_nodes": num_nodes, "ids": ids, "edge_axis": edge_axis}
    if columns is not None:
        options["columns"] = tuple(columns.split(","))
    spec = describe_build(
        out,
        edges=edges,
        node_features=named_paths(node_features or [], option="--node-features"),
        memory_limit=None if memory_limit is None else size(memory_limit),
        **options,
    )
    with PhaseBars() as bars:
        summary = run_build(spec, on_event=bars.follow_build)
    typer.echo(
        f"{out}: {summary['nodes']:,} nodes, {summary['edges']:,} edges at "
        f"{format_count(summary['edges_per_second'])} edges/s; peak "
        f"{format_bytes(summary['peak_anon_bytes'])} of "
        f"{format_bytes(summary['projected_bytes'])} projected"
    )
