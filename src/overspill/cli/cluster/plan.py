"""``overspill cluster plan``: what a graph takes of several machines, on paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overspill.cli.ending import ended_in_order
from overspill.cli.json_output import say_json
from overspill.cli.lines import columns_of
from overspill.cli.options import size
from overspill.settings import current_settings

if TYPE_CHECKING:
    from overspill.cluster.planning.rates import Rates


def plan(
    nodes: Annotated[str, typer.Option(help="Nodes of the graph, such as 1e9.")],
    edges: Annotated[str, typer.Option(help="Its edges, such as 1e10.")],
    machines: Annotated[int, typer.Option(min=1, help="How many machines, alike.")],
    memory: Annotated[str, typer.Option(help='Memory to use of each, such as "64GiB".')],
    feature_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes of all node arrays, a node.")
    ] = 0,
    parts: Annotated[int | None, typer.Option(min=1, help="Parts; default: one a machine.")] = None,
    input_edge_bytes: Annotated[int, typer.Option(min=1, help="Bytes an edge in its file.")] = 16,
    build_memory: Annotated[
        str | None, typer.Option(help="The build's memory limit; default: MEMORY.")
    ] = None,
    shared_disk: Annotated[bool, typer.Option("--shared-disk", help="All see one disk.")] = False,
    rows_everywhere: Annotated[
        bool,
        typer.Option("--rows-everywhere", help="Each has the files of node arrays, not one alone."),
    ] = False,
    num_neighbors: Annotated[str, typer.Option(help="Fan-outs, one a hop.")] = "15,10,5",
    batch_size: Annotated[int, typer.Option(min=1, help="Seeds a batch.")] = 1024,
    seeds: Annotated[
        str | None,
        typer.Option(help="Seeds an epoch; default: a hundredth of the nodes."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Loader workers a machine.")] = 2,
    local_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of neighbours on the machine of their node; 1 in MACHINES.",
        ),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Processors.")] = None,
    disk_rate: Annotated[
        str | None,
        typer.Option(help="Bytes a second in order, read or written."),
    ] = None,
    random_reads: Annotated[
        str | None,
        typer.Option(help="Random reads of 4 KiB a second."),
    ] = None,
    network_rate: Annotated[str | None, typer.Option(help="Bytes a second each way.")] = None,
    transport_rate: Annotated[
        str | None,
        typer.Option(help="Bytes a second and core through Ray."),
    ] = None,
    round_trip: Annotated[
        float | None,
        typer.Option(help="Milliseconds to a small answer."),
    ] = None,
    split_rate: Annotated[
        str | None,
        typer.Option(help="Edges a second and core sent to owners."),
    ] = None,
    build_rate: Annotated[
        str | None,
        typer.Option(help="Edges a second and core built."),
    ] = None,
    sample_rate: Annotated[
        str | None,
        typer.Option(help="Edges a second and core sampled."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="On the disk to measure; OVERSPILL_DIR, else here."),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Measure rates, or assume them.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Estimate disk, memory, network and time of a graph on several machines.

    Measures this machine's rates for some 5 seconds, in 0.4 GiB of disk, and leaves nothing; what
    is given is taken instead, and what no single machine can tell is assumed. Says which is which.
    Connects to no cluster. The model is in the documentation: "The cluster's model".

    The JSON object has overspill_version, work, rates (by name: value and source), batch, disk,
    memory, network (bytes a machine, all of them), build (a list of stages) and epoch (seconds by
    what they are spent on, least_seconds, most_seconds, bottleneck).
    """
    from overspill import __version__
    from overspill.cli.cluster.plan_text import as_text
    from overspill.cluster.planning.plan import plan as planned

    rate = None if disk_rate is None else size(disk_rate)
    given: dict[str, float | None] = {
        "cores": cores,
        "disk_write": rate,
        "disk_read": rate,
        "random_reads": _number(random_reads, option="--random-reads"),
        "network": None if network_rate is None else size(network_rate),
        "transport": None if transport_rate is None else size(transport_rate),
        "round_trip": None if round_trip is None else round_trip / 1000,
        "split_edges": _number(split_rate, option="--split-rate"),
        "build_edges": _number(build_rate, option="--build-rate"),
        "sample_edges": _number(sample_rate, option="--sample-rate"),
    }
    found = planned(
        _count(nodes, option="--nodes"),
        _count(edges, option="--edges"),
        feature_bytes=feature_bytes,
        machines=machines,
        memory=size(memory),
        rates=_rates(directory if probe else None, given, probe=probe),
        parts=parts,
        input_edge_bytes=input_edge_bytes,
        build_memory=None if build_memory is None else size(build_memory),
        shared_disk=shared_disk,
        rows_everywhere=rows_everywhere,
        num_neighbors=_fan_outs(num_neighbors),
        batch_size=batch_size,
        seeds=_number(seeds, option="--seeds"),
        workers=workers,
        local_share=local_share,
    )
    if as_json:
        say_json({"overspill_version": __version__} | found.to_json(), indent=2)
    else:
        typer.echo(as_text(found, columns=columns_of(sys.stdout)))


def _rates(directory: Path | None, given: dict[str, float | None], *, probe: bool) -> Rates:
    from overspill.cli.progress import PhaseBars
    from overspill.cluster.planning.probe import MEASURED, measure_rates
    from overspill.cluster.planning.rates import ASSUMED

    held = ASSUMED
    if probe and any(given.get(name) is None for name in MEASURED):
        place = directory or current_settings().spill_dir or Path()
        with ended_in_order(), PhaseBars(quick=True) as bars:
            held = measure_rates(
                place, told=lambda done, total: bars.update("measure", done, total, "steps")
            )
    return held.having("given", **given)


def _number(text: str | None, *, option: str) -> float | None:
    return None if text is None else _count(text, option=option)


def _count(text: str, *, option: str) -> float:
    """A count such as 1000, 1_000 or 1e9."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no number", param_hint=option) from error


def _fan_outs(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not like 15,10,5", param_hint="--num-neighbors"
        ) from error
