"""The options that the stages of a build on several machines share, and what they say together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from overspill.cli.inputs import arrays_by_type, by_node_type, edges_by_type, id_columns
from overspill.cli.options import chosen

_METHODS = ("range", "hash", "degree-balanced")
_LAYOUTS = ("csc", "csr")
_DUPLICATES = ("keep", "drop", "count")
_SELF_LOOPS = ("keep", "drop")
_NON_FINITE = ("keep", "error")

Out = Annotated[
    str, typer.Option(help="Directory of the parts, the same path on every machine; new, or empty.")
]
Begun = Annotated[
    str, typer.Option("--out", help="Directory of the parts, as overspill cluster init was told.")
]
Edges = Annotated[
    list[str],
    typer.Option(
        help="[SOURCE:RELATION:TARGET=][ADDRESS:]FILE, as of overspill build; looked for on every "
        "machine, or on that at ADDRESS; repeatable."
    ),
]
Parts = Annotated[int, typer.Option(min=1, help="How many parts.")]
Method = Annotated[
    str, typer.Option(help="range, hash or degree-balanced: how nodes are given to parts.")
]
NodeFeatures = Annotated[
    list[str] | None,
    typer.Option(help="[TYPE.]NAME=[ADDRESS:]FILE.npy, a row a node; repeatable."),
]
EdgeFeatures = Annotated[
    list[str] | None,
    typer.Option(
        help="[SOURCE:RELATION:TARGET.]NAME=[ADDRESS:]FILE.npy, a row an edge, or "
        "NAME=::COLUMN,... of the edge files; repeatable."
    ),
]
NumNodes = Annotated[
    list[str] | None,
    typer.Option(help="[TYPE=]NUMBER of nodes; default: from features or edges; repeatable."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        help="[SOURCE:RELATION:TARGET=]FROM,TO: the columns of the edges' ids; repeatable."
    ),
]
EdgeAxis = Annotated[
    int | None,
    typer.Option(min=0, max=1, help="1 for .npy edges of shape (2, E), 0 for (E, 2)."),
]
Header = Annotated[
    bool | None, typer.Option(help="Whether CSV files name their columns; default: look.")
]
LayoutNames = Annotated[
    str, typer.Option(help="csc (in-neighbours), csr (out-neighbours), or csc,csr.")
]
Undirected = Annotated[
    bool, typer.Option("--to-undirected", help="Let each edge run the other way as well.")
]
EdgeIds = Annotated[
    bool, typer.Option("--edge-ids", help="Keep which input row each edge came from.")
]
DuplicatesKind = Annotated[str, typer.Option(help="Parallel edges: keep, drop, or count.")]
SelfLoopsKind = Annotated[str, typer.Option(help="keep or drop.")]
NonFiniteKind = Annotated[
    str, typer.Option(help="Infinite and NaN features: keep (and count) or error.")
]
Sorted = Annotated[
    bool,
    typer.Option(
        "--sort-within-row/--input-order", help="Neighbours by id, or as the input has them."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Most threads that build a part; default: the CPUs Ray may give."),
]
MemoryLimit = Annotated[
    str | None, typer.Option(help='Most memory of the build on each machine, like "8GiB".')
]
Address = Annotated[
    str | None, typer.Option(help="Of the Ray cluster; default: RAY_ADDRESS, or the one here.")
]
ShowProgress = Annotated[bool, typer.Option(help="Show bars, on standard error.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead.")]


def asked_for(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `overspill.cluster.init_build`, of those of a verb."""
    names = given["layout"].split(",")
    kept = ("out", "edge_axis", "header", "to_undirected", "edge_ids", "sort_within_row", "threads")
    return {
        **{name: given[name] for name in kept},
        "num_parts": given["parts"],
        "method": chosen(given["method"], _METHODS, option="--method"),
        "edges": edges_by_type(given["edges"]),
        "node_features": arrays_by_type(given["node_features"] or [], {}, option="--node-features"),
        "edge_features": arrays_by_type(given["edge_features"] or [], {}, option="--edge-features"),
        "num_nodes": by_node_type(given["num_nodes"] or [], option="--num-nodes", convert=int),
        "columns": id_columns(given["columns"] or []),
        "layout": tuple(chosen(name, _LAYOUTS, option="--layout") for name in names),
        "duplicates": chosen(given["duplicates"], _DUPLICATES, option="--duplicates"),
        "self_loops": chosen(given["self_loops"], _SELF_LOOPS, option="--self-loops"),
        "non_finite": chosen(given["non_finite"], _NON_FINITE, option="--non-finite"),
    }
