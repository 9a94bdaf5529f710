"""``overspill build``: edge lists and arrays in, a dataset out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from overspill.cli.inputs import arrays_by_type, by_node_type, edges_by_type, fills, id_columns
from overspill.cli.options import size
from overspill.cli.progress import PhaseBars, format_count
from overspill.units import format_bytes


def build(
    out: Annotated[str, typer.Option(help="The dataset's directory; new, or empty.")],
    edges: Annotated[
        list[str],
        typer.Option(
            help="[SOURCE:RELATION:TARGET=]FILE: Parquet, CSV/TSV, SNAP text (all also .gz, .zst), "
            ".npy, .npz, Arrow or TFRecord; a quoted glob or a directory of Parquet; repeatable."
        ),
    ],
    node_features: Annotated[
        list[str] | None,
        typer.Option(
            help="[TYPE.]NAME=FILE.npy, a row a node, or [TYPE.]NAME=FILE::COLUMN,...[@KEY], "
            "columns of a table whose rows find their nodes by the ids in KEY; repeatable."
        ),
    ] = None,
    edge_features: Annotated[
        list[str] | None,
        typer.Option(
            help="[SOURCE:RELATION:TARGET.]NAME=FILE.npy, a row an edge, NAME=FILE::COLUMN,..., or "
            "NAME=::COLUMN,... of the edge files; repeatable."
        ),
    ] = None,
    fill: Annotated[
        list[str] | None,
        typer.Option(
            help="[TYPE.]NAME=NUMBER (or true, false): value of nodes without a row under their "
            "key; repeatable."
        ),
    ] = None,
    num_nodes: Annotated[
        list[str] | None,
        typer.Option(help="[TYPE=]NUMBER of nodes; default: from features or ids; repeatable."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            help="[TYPE=]MODE: dense, remap (any integers), text (of CSV too), or auto; repeatable."
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="[SOURCE:RELATION:TARGET=]FROM,TO: the columns of the edges' ids; repeatable."
        ),
    ] = None,
    edge_axis: Annotated[
        int | None, typer.Option(help="1 for .npy edges of shape (2, E), 0 for (E, 2).")
    ] = None,
    header: Annotated[
        bool | None, typer.Option(help="Whether CSV files name their columns; default: look.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="csc (in-neighbours), csr (out-neighbours), or csc,csr.")
    ] = "csc",
    to_undirected: Annotated[
        bool, typer.Option("--to-undirected", help="Let each edge run the other way as well.")
    ] = False,
    edge_ids: Annotated[
        bool, typer.Option("--edge-ids", help="Keep which input row each edge came from.")
    ] = False,
    duplicates: Annotated[str, typer.Option(help="Parallel edges: keep, drop, or count.")] = "keep",
    self_loops: Annotated[str, typer.Option(help="keep or drop.")] = "keep",
    non_finite: Annotated[
        str, typer.Option(help="Infinite and NaN features: keep (and count) or error.")
    ] = "keep",
    sort_within_row: Annotated[
        bool,
        typer.Option(
            "--sort-within-row/--input-order", help="Neighbours by id, or as the input has them."
        ),
    ] = True,
    order: Annotated[
        str, typer.Option(help="given, or degree: number nodes by falling in-degree.")
    ] = "given",
    memory_limit: Annotated[
        str | None, typer.Option(help='Most memory of the build, like "1GiB".')
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Most threads that compute; default: the CPUs.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take an unfinished build up where it stopped.")
    ] = False,
) -> None:
    """Build a dataset out of core, in a fixed amount of memory."""
    from overspill.build import describe_build, run_build

    filled = fills(fill or [])
    options: dict[str, Any] = {
        "num_nodes": by_node_type(num_nodes or [], option="--num-nodes", convert=int),
        "ids": by_node_type(ids or [], option="--ids", convert=str) or "auto",
        "layout": tuple(layout.split(",")),
        "columns": id_columns(columns or []),
    }
    spec = describe_build(
        out,
        edges=edges_by_type(edges),
        node_features=arrays_by_type(node_features or [], filled, option="--node-features"),
        edge_features=arrays_by_type(edge_features or [], {}, option="--edge-features"),
        memory_limit=None if memory_limit is None else size(memory_limit),
        edge_axis=edge_axis,  # type: ignore[arg-type]
        header=header,
        to_undirected=to_undirected,
        edge_ids=edge_ids,
        duplicates=duplicates,  # type: ignore[arg-type]
        self_loops=self_loops,  # type: ignore[arg-type]
        non_finite=non_finite,  # type: ignore[arg-type]
        sort_within_row=sort_within_row,
        order=order,  # type: ignore[arg-type]
        threads=threads,
        resume=resume,
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
    for name, notes in summary["notes"].items():
        told = ", ".join(f"{note}: {count:,}" for note, count in notes.items())
        typer.echo(f"  {name}: {told}")
