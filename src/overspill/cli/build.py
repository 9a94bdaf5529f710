"""``overspill build``: edge lists and arrays in, a dataset out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from overspill.cli.build_text import plan_lines, summary_lines
from overspill.cli.inputs import arrays_by_type, by_node_type, edges_by_type, fills, id_columns
from overspill.cli.json_output import say_json
from overspill.cli.lines import harmless, say
from overspill.cli.options import chosen, size
from overspill.cli.progress import PhaseBars

if TYPE_CHECKING:
    from overspill.build import BuildSpec

# Of the library's own types, whose module would take half a second of --help.
_ID_MODES = ("auto", "dense", "remap", "text")
_LAYOUTS = ("csc", "csr")
_DUPLICATES = ("keep", "drop", "count")
_SELF_LOOPS = ("keep", "drop")
_NON_FINITE = ("keep", "error")
_ORDERS = ("given", "degree")
# Where the lines of plan and summary go on: below their first words.
_PLAN_INDENT = _SUMMARY_INDENT = 9


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
        int | None,
        typer.Option(min=0, max=1, help="1 for .npy edges of shape (2, E), 0 for (E, 2)."),
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
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Tell the plan, write nothing; 1 if refused.")
    ] = False,
    progress: Annotated[
        bool, typer.Option(help="Tell the plan and show bars, on standard error.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of the summary or plan.")
    ] = False,
) -> None:
    """Build a dataset out of core, in a fixed amount of memory.

    Tells its plan first, and refuses at once what the disk or the memory cannot hold. Ctrl-C stops
    it; --resume goes on at the last finished step.

    --json gives an object with path, nodes, edges, seconds, phase_seconds, edges_per_second,
    projected_bytes, allowed_bytes, peak_anon_bytes, notes, dataset_bytes, files and plan. The plan,
    alone with --plan-only, has projected_bytes, allowed_bytes, passes (phase, of, amount, unit,
    buckets), files, input_bytes, edges, edges_known, disk_bytes, least_disk_bytes, dataset_bytes,
    free_bytes, unknown and the sizes of buffers.
    """
    from overspill.build import describe_build

    filled = fills(fill or [])
    given: dict[str, Any] = {
        "num_nodes": by_node_type(num_nodes or [], option="--num-nodes", convert=int),
        "ids": by_node_type(ids or [], option="--ids", convert=_id_mode) or "auto",
        "layout": tuple(chosen(one, _LAYOUTS, option="--layout") for one in layout.split(",")),
        "columns": id_columns(columns or []),
        "duplicates": chosen(duplicates, _DUPLICATES, option="--duplicates"),
        "self_loops": chosen(self_loops, _SELF_LOOPS, option="--self-loops"),
        "non_finite": chosen(non_finite, _NON_FINITE, option="--non-finite"),
        "order": chosen(order, _ORDERS, option="--order"),
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
        sort_within_row=sort_within_row,
        threads=threads,
        resume=resume,
        **given,
    )
    if plan_only:
        _tell_plan(spec, as_json=as_json)
    else:
        _build(out, spec, progress=progress, as_json=as_json)


def _id_mode(text: str) -> str:
    return chosen(text, _ID_MODES, option="--ids")


def _tell_plan(spec: BuildSpec, *, as_json: bool) -> None:
    from overspill.build.child import plan_only

    def tell(plan: dict[str, Any]) -> None:
        # Before the refusal that may follow.
        if as_json:
            say_json({name: value for name, value in plan.items() if name != "event"})
            return
        say(f"plan of {harmless(spec.out)}")
        for line in plan_lines(plan):
            say(line, indent=_PLAN_INDENT)

    plan_only(spec, on_event=tell)


def _build(out: str, spec: BuildSpec, *, progress: bool, as_json: bool) -> None:
    from overspill.build import run_build
    from overspill.storage.manifest import read_manifest

    plan: dict[str, Any] = {}
    with PhaseBars(silent=not progress) as bars:

        def follow(event: dict[str, Any]) -> None:
            if event["event"] == "plan":
                plan.update({name: value for name, value in event.items() if name != "event"})
                bars.say("plan")
                for line in plan_lines(plan):
                    bars.say(line, indent=_PLAN_INDENT)
            bars.follow_build(event)

        summary = run_build(spec, on_event=follow)
    manifest = read_manifest(spec.out, check_files=False)
    if as_json:
        files = manifest.files()
        say_json(
            {"path": spec.out}
            | {name: value for name, value in summary.items() if name != "modules"}
            | {"dataset_bytes": sum(one.nbytes for one in files), "files": len(files)}
            | {"plan": plan}
        )
        return
    for line in summary_lines(out, manifest, summary):
        say(line, indent=_SUMMARY_INDENT if line.startswith(" ") else 2)
