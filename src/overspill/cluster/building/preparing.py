"""The stage "init": from what was asked for and what the machines see to a plan on all of them.

Bottleneck: the headers of the files, each read by one machine; where nothing tells how many nodes
there are, or edges keep ids and a format does not tell how many there are, one reading of all
edges; for parts of equal degrees, two more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from overspill import __version__
from overspill.build.construct import options_of
from overspill.build.progress import Progress
from overspill.build.spec import BuildSpec
from overspill.cluster.building import looking
from overspill.cluster.building.counting import Counting
from overspill.cluster.building.headers import Files, read_headers
from overspill.cluster.building.job import JobPlan
from overspill.cluster.building.looking import Sight
from overspill.cluster.building.nodes import alive_machines
from overspill.cluster.building.request import Request
from overspill.cluster.building.seeing import Lookout, resolved
from overspill.cluster.building.tasks import Task, run_tasks
from overspill.errors import OutputDirError, OverspillError


def prepare(request: Request, progress: Progress) -> JobPlan | None:
    """Plan a build and leave the plan on every machine, or take the plan that is there already.

    Returns:
        The plan; None where the same build is complete already.

    Raises:
        InputError: A file is missing, wrong, or of what no build in stages can take.
        OutputDirError: A machine's output directory holds something else.
        DiskRefusedError: It cannot be written.
        ClusterError: A machine was lost.
    """
    lookout = Lookout(request.spec.out, alive_machines())
    try:
        progress.begin("look at the machines", len(lookout.machines), "machines")
        plan = _planned(request, lookout, progress)
    except BaseException:
        with suppress(OverspillError):  # why the build is refused is what is to be told
            lookout.leave()
        raise
    if plan is None:
        lookout.leave()
    else:
        lookout.settle(plan)
    progress.end()
    return plan


def _planned(request: Request, lookout: Lookout, progress: Progress) -> JobPlan | None:
    patterns = request.patterns()
    sights, disks = lookout.look(patterns)
    files = resolved(patterns, sights)
    spec = _with_paths(request, files)
    identifier = _identifier(request, spec, files)
    kept = _kept(sights, lookout, spec.out, identifier)
    if kept is not None or any(sight.finished for sight in sights):
        return kept
    headers = read_headers(request, spec, files, lookout.addresses)
    counting = Counting(request, spec, headers, lookout, progress)
    nodes = counting.nodes()
    machines = len(lookout.machines)
    return JobPlan(
        identifier=identifier,
        out=spec.out,
        num_parts=request.num_parts,
        method=request.method,
        spec=spec,
        machines=lookout.addresses,
        disks=disks,
        owners=tuple(part * machines // request.num_parts for part in range(request.num_parts))
        if request.num_parts >= machines
        else tuple(range(request.num_parts)),
        nodes=nodes,
        node_arrays=headers.node_arrays,
        splits=counting.splits(nodes, identifier),
        sources=tuple(
            {"path": _address_of(seen.window.path, given.address), "nbytes": seen.window.nbytes}
            for given, some in files.items()
            for seen in some
        ),
    )


def _with_paths(request: Request, files: Files) -> BuildSpec:
    """The spec with the files of its edges: as a build on one machine would be told of them."""
    edges = []
    for edge in request.spec.edges:
        paths = tuple(
            _address_of(seen.window.path, given.address)
            for given in request.edges[edge.type]
            for seen in files[given]
        )
        edges.append(replace(edge, paths=paths))
    return replace(request.spec, edges=tuple(edges))


def _address_of(path: str, address: str | None) -> str:
    return path if address is None else f"{address}:{path}"


def _identifier(request: Request, spec: BuildSpec, files: Files) -> str:
    told = {
        "options": options_of(spec),
        "files": [
            [str(given), [(s.window.path, s.window.nbytes, s.window.modified_ns) for s in some]]
            for given, some in files.items()
        ],
        "parts": request.num_parts,
        "method": request.method,
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def _kept(sights: Sequence[Sight], lookout: Lookout, out: str, identifier: str) -> JobPlan | None:
    """The plan that a machine has already, of the same build; other builds are refused."""
    found: JobPlan | None = None
    for sight, address in zip(sights, lookout.addresses, strict=True):
        for held, what in ((sight.plan, "an unfinished build"), (sight.finished, "a partition")):
            if held and held != identifier:
                raise OutputDirError(
                    f"machine {address}: {out} holds {what} of other inputs or options",
                    path=out,
                    remedy="give the same ones, remove the directory on every machine, or choose "
                    "another",
                )
        if sight.plan and found is None:
            (held,) = run_tasks([Task(looking.held, (out,), (address,), cpus=0)])
            found = held.plan
    return found
