"""A partitioned build on the machines of a Ray cluster: `build`, or its stages one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from overspill.build.describe import BuildOptions
from overspill.build.progress import Progress
from overspill.build.spec import plain_integer
from overspill.cluster.building.job import JobPlan
from overspill.cluster.building.looking import another_build
from overspill.cluster.building.nodes import connect
from overspill.cluster.building.preparing import prepare
from overspill.cluster.building.request import request_build
from overspill.cluster.building.standing import Standing, holdings_of
from overspill.errors import ClusterError
from overspill.graph.progress_bar import Event, event_listener
from overspill.settings import current_settings, size_bytes

Listener = bool | Callable[[Event], None]


@dataclass(frozen=True)
class BuiltPart:
    """A part, and where it is.

    Attributes:
        index: Its number.
        machine: The address of the machine whose disk it is on.
        nodes: Its nodes, of all types.
        edges: Its edges, of all types; those that enter its nodes, where there is "csc".
    """

    index: int
    machine: str
    nodes: int
    edges: int


@dataclass(frozen=True)
class Built:
    """What a build in stages made.

    Attributes:
        path: The directory of the parts, on each machine that has some.
        identifier: That of the partition.
        parts: In order.
        seconds: How long the call took.
    """

    path: Path
    identifier: str
    parts: tuple[BuiltPart, ...]
    seconds: float


def build(  # noqa: PLR0913 (what is built, of what, and where)
    *,
    edges: Any,
    num_parts: int,
    out: str | Path,
    method: str = "range",
    node_features: Mapping[Any, Any] | None = None,
    edge_features: Mapping[Any, Any] | None = None,
    memory_limit: str | int | None = None,
    progress: Listener = False,
    **options: Unpack[BuildOptions],
) -> Built:
    """Build a graph dataset in parts, each on its machine's disk, of files wherever they are.

    The stages `init_build`, `partition_build` and `finalise_build`, one after another. What is
    finished already is not done again: a call that was interrupted goes on when it is made again,
    and a partition of the same inputs and options that is complete is left as it is. The parts
    equal those of ``ov.partition_dataset(ov.build_dataset(...), num_parts, method=method)``, array
    for array.

    Cost: every edge is read once (once more where nothing tells how many nodes there are, twice
    more for "degree-balanced"), written once as 8 bytes to where it is staged, 12 with edge ids, 16
    and 24 beyond 2**31 - 1 nodes, and read once by the machine that owns its target, through Ray
    where that is another one; then written as rows. Disk: what is staged, on the machine that read
    it, and a copy of what comes from other machines on that which owns it. Memory: see
    `partition_build` and `finalise_build`. The caller is connected to Ray (``ray.init``), or finds
    a cluster at RAY_ADDRESS or on this machine.

    Args:
        edges: Files as `build_dataset` takes them: paths and patterns, or edge type -> these. They
            are looked for on every machine; one path with one size and time of change on several is
            one file. "ADDRESS:/path" is the file of one machine.
        num_parts: How many parts; more than machines are shared out, more than nodes are empty.
        out: Directory of the parts, the same path on every machine; a file system that machines
            share is found out. Absent, empty, or an unfinished build of the same inputs.
        method: "range", "degree-balanced" or "hash"; see `partition_dataset`.
        node_features: Name -> a .npy file in row order; or node type -> such a mapping.
        edge_features: Name -> a .npy file, a row an input edge, or `Columns` of the edge files; or
            edge type -> such a mapping.
        memory_limit: The most memory that processes of the build take together on a machine, such
            as "8GiB": splits that are staged at a time are as many as fit, one at least, and parts
            are built one at a time. None goes by what each machine has.
        progress: True shows bars on stderr; a callable gets events ``{"event": "progress", "phase",
            "done", "total", "unit"}``.
        **options: Of `build_dataset`. Ids are the nodes' numbers ("dense"), and ``order="degree"``
            is not to be had.

    Returns:
        The parts, and the machines that have them; `open_dataset` opens their directory.

    Raises:
        InputError: An input is wrong, as `build_dataset` says, or of what no build in stages takes.
        OutputDirError: `out` holds something else on a machine.
        DiskRefusedError: A machine's disk refused; names the machine. Make room, and call again.
        NoRoomError: A part does not fit the memory that its machine may use.
        ClusterError: A machine that is needed is not up, or was lost again and again.
        BuildFailedError: A process failed for no known reason.
    """
    started = time.monotonic()
    _limit(memory_limit)  # refused before anything is left on the machines
    plan = init_build(
        edges=edges,
        num_parts=num_parts,
        out=out,
        method=method,
        node_features=node_features,
        edge_features=edge_features,
        progress=progress,
        **options,
    )
    partition_build(out, memory_limit=memory_limit, progress=progress)
    built = finalise_build(out, memory_limit=memory_limit, progress=progress)
    if plan is not None and plan.identifier != built.identifier:
        raise another_build(str(built.path))
    return Built(built.path, built.identifier, built.parts, time.monotonic() - started)


def init_build(  # noqa: PLR0913 (as `build`)
    *,
    edges: Any,
    num_parts: int,
    out: str | Path,
    method: str = "range",
    node_features: Mapping[Any, Any] | None = None,
    edge_features: Mapping[Any, Any] | None = None,
    progress: Listener = False,
    **options: Unpack[BuildOptions],
) -> JobPlan | None:
    """The first stage of `build`: look at the machines and the inputs, and plan.

    Leaves the plan in `out` on every machine. Where the same plan is there already it is kept.
    Refuses what cannot be built before anything is read. Arguments, errors and cost are those of
    `build`.

    Returns:
        The plan; None where the same build is complete already.
    """
    request = request_build(
        out,
        edges=edges,
        num_parts=num_parts,
        method=method,
        node_features=node_features,
        edge_features=edge_features,
        **options,
    )
    connect()
    with event_listener(progress) as send:
        return prepare(request, Progress(send))


def partition_build(
    out: str | Path, *, memory_limit: str | int | None = None, progress: Listener = False
) -> bool:
    """The second stage of `build`: read every split of the input once, and stage it for its owners.

    A split is done by one task on a machine that has its files, one a processor that Ray may give
    away, and leaves a file a part. Splits that are staged already are left alone. Memory of a task:
    about 450 MiB, libraries included, whatever the size of the split.

    Args:
        out: The directory of the build.
        memory_limit: As in `build`.
        progress: As in `build`.

    Returns:
        Whether every split is staged now; False where all parts are built already.

    Raises:
        InputError: There is no plan, or an input is wrong, or was changed since.
        OutputDirError: Machines have different builds there, or another run stages.
        DiskRefusedError: A machine's disk refused; names the machine.
        ClusterError: As in `build`.
    """
    connect()
    with event_listener(progress) as send:
        standing = Standing.of(out)
        return standing is not None and standing.stage(_limit(memory_limit), Progress(send))


def finalise_build(
    out: str | Path, *, memory_limit: str | int | None = None, progress: Listener = False
) -> Built:
    """The last stage of `build`: every machine builds its parts of what was staged for them.

    One part after another on each machine, in a process of its own with as many threads as Ray may
    give processors away, within the memory limit. Parts that are finished are left alone, one that
    was interrupted goes on. At the end the partition is published, and nothing staged is left.

    Args:
        out: The directory of the build.
        memory_limit: As in `build`.
        progress: As in `build`.

    Returns:
        The parts, and the machines that have them.

    Raises:
        InputError: There is no plan, or not everything is staged.
        OutputDirError: Machines have different builds there, or another run builds a part.
        DiskRefusedError: A machine's disk refused; names the machine.
        NoRoomError: A part does not fit the memory that its machine may use.
        ClusterError: As in `build`.
    """
    started = time.monotonic()
    connect()
    with event_listener(progress) as send:
        standing = Standing.of(out)
        if standing is not None:
            standing.finish(_limit(memory_limit), Progress(send))
    return _built(out, started)


def _built(out: str | Path, started: float) -> Built:
    found: dict[int, BuiltPart] = {}
    identifier, count = "", 0
    for address, holding in holdings_of(out).items():
        if holding.finished is not None:
            identifier, count = holding.finished.identifier, len(holding.finished.parts)
        for index, (nodes, edges) in holding.parts.items():
            found.setdefault(index, BuiltPart(index, address, nodes, edges))
    missing = sorted(set(range(count)) - set(found))
    if missing or not count:
        raise ClusterError(
            f"the partition in {out} is not whole on the machines that are up"
            + (f": part {missing[0]} is missing" if missing else ""),
            path=str(out),
            remedy="start all machines that have parts",
        )
    path = Path.cwd() / Path(out).expanduser()
    parts = tuple(found[index] for index in range(count))
    return Built(path, identifier, parts, time.monotonic() - started)


def _limit(memory_limit: str | int | None) -> int | None:
    if memory_limit is None:
        return current_settings().memory_limit_bytes
    return size_bytes("memory_limit", plain_integer(memory_limit))
