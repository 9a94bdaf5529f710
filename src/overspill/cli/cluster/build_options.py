"""The options that the stages of a build on several machines share, and what they say together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
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


def asked_for(
    out: Out,
    edges: Edges,
    parts: Parts,
    method: Method = "range",
    node_features: NodeFeatures = None,
    edge_features: EdgeFeatures = None,
    num_nodes: NumNodes = None,
    columns: Columns = None,
    edge_axis: EdgeAxis = None,
    header: Header = None,
    layout: LayoutNames = "csc",
    to_undirected: Undirected = False,
    edge_ids: EdgeIds = False,
    duplicates: DuplicatesKind = "keep",
    self_loops: SelfLoopsKind = "keep",
    non_finite: NonFiniteKind = "keep",
    sort_within_row: Sorted = True,
    threads: Threads = None,
) -> dict[str, Any]:
    """The arguments of `overspill.cluster.init_build`, of the options that say what to build."""
    return {
        "out": out,
        "edges": edges_by_type(edges),
        "num_parts": parts,
        "method": chosen(method, _METHODS, option="--method"),
        "node_features": arrays_by_type(node_features or [], {}, option="--node-features"),
        "edge_features": arrays_by_type(edge_features or [], {}, option="--edge-features"),
        "num_nodes": by_node_type(num_nodes or [], option="--num-nodes", convert=int),
        "columns": id_columns(columns or []),
        "edge_axis": edge_axis,
        "header": header,
        "layout": tuple(chosen(name, _LAYOUTS, option="--layout") for name in layout.split(",")),
        "to_undirected": to_undirected,
        "edge_ids": edge_ids,
        "duplicates": chosen(duplicates, _DUPLICATES, option="--duplicates"),
        "self_loops": chosen(self_loops, _SELF_LOOPS, option="--self-loops"),
        "non_finite": chosen(non_finite, _NON_FINITE, option="--non-finite"),
        "sort_within_row": sort_within_row,
        "threads": threads,
    }


def asking(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb with the options of `asked_for` before its own; its first argument is what they ask.

    typer makes options of a signature, which here is that of both.
    """
    shared = inspect.signature(asked_for, eval_str=True).parameters
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        asked = asked_for(**{name: given.pop(name) for name in shared if name in given})
        verb(asked, **given)

    run.__signature__ = inspect.Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    return run
