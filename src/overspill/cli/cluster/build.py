"""``overspill cluster build``: a dataset in parts on several machines; its stages, one a verb."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from overspill.cli.cluster import build_options as options
from overspill.cli.cluster.build_options import asking
from overspill.cli.json_output import say_json
from overspill.cli.lines import columns_of, counted, glued, harmless, say, table
from overspill.cli.options import size

if TYPE_CHECKING:
    from overspill.cli.progress import PhaseBars
    from overspill.cluster.building.build import Built


@asking
def build(
    asked: dict[str, Any],
    memory_limit: options.MemoryLimit = None,
    address: options.Address = None,
    progress: options.ShowProgress = True,
    as_json: options.AsJson = False,
) -> None:
    """Build a dataset in parts, each on its machine's disk: init, partition, finalise.

    Files are read where they are, each edge once. What was interrupted goes on when the same
    command is given again.

    --json gives an object with path, identifier, seconds and parts (index, machine, nodes, edges).
    """
    from overspill.cluster import build as built

    with _bars(address, progress) as bars:
        found = built(**asked, memory_limit=_limit(memory_limit), progress=bars.follow_build)
    _tell(found, as_json=as_json)


@asking
def init(
    asked: dict[str, Any],
    address: options.Address = None,
    progress: options.ShowProgress = True,
) -> None:
    """Plan a build on several machines: look at them and the inputs, leave the plan on each.

    The first stage of overspill cluster build. Refuses what cannot be built before it is read.
    """
    from overspill.cluster import init_build

    with _bars(address, progress) as bars:
        plan = init_build(**asked, progress=bars.follow_build)
    if plan is None:
        say(f"{harmless(asked['out'])}: the same build is complete already")
        return
    machines = glued(counted(len(plan.machines), "machine"))
    say(
        f"{harmless(plan.out)}: {glued(counted(len(plan.splits), 'split'))} of the input, "
        f"{glued(counted(plan.num_parts, 'part'))}, {machines}"
    )


def partition(
    out: options.Begun,
    memory_limit: options.MemoryLimit = None,
    address: options.Address = None,
    progress: options.ShowProgress = True,
) -> None:
    """Read every split of the input once, and stage its edges for the machines that own them.

    The second stage of overspill cluster build; what is staged already is left alone.
    """
    from overspill.cluster import partition_build

    with _bars(address, progress) as bars:
        staged = partition_build(out, memory_limit=_limit(memory_limit), progress=bars.follow_build)
    told = "every split is staged" if staged else "all parts are built already"
    say(f"{harmless(out)}: {told}")


def finalise(
    out: options.Begun,
    memory_limit: options.MemoryLimit = None,
    address: options.Address = None,
    progress: options.ShowProgress = True,
    as_json: options.AsJson = False,
) -> None:
    """Build each part where it belongs, publish the partition, and remove what was staged.

    The last stage of overspill cluster build; parts that are finished are left alone.

    --json gives an object with path, identifier, seconds and parts (index, machine, nodes, edges).
    """
    from overspill.cluster import finalise_build

    with _bars(address, progress) as bars:
        found = finalise_build(out, memory_limit=_limit(memory_limit), progress=bars.follow_build)
    _tell(found, as_json=as_json)


@contextmanager
def _bars(address: str | None, progress: bool) -> Iterator[PhaseBars]:
    from overspill.cli.progress import PhaseBars
    from overspill.cluster.building.nodes import connect

    with PhaseBars(silent=not progress) as bars:
        connect(address)
        yield bars


def _limit(text: str | None) -> int | None:
    return None if text is None else size(text)


def _tell(found: Built, *, as_json: bool) -> None:
    if as_json:
        say_json(asdict(found) | {"path": str(found.path)})
        return
    rows: list[tuple[str, ...]] = [("part", "machine", "nodes", "edges")]
    for part in found.parts:
        rows.append((str(part.index), part.machine, f"{part.nodes:,}", f"{part.edges:,}"))
    typer.echo(table(rows, columns_of(sys.stdout), right=(0, 2, 3)))
    nodes = glued(f"{sum(part.nodes for part in found.parts):,} nodes")
    edges = glued(f"{sum(part.edges for part in found.parts):,} edges")
    parts = glued(counted(len(found.parts), "part"))
    say(f"{harmless(str(found.path))}: {parts}, {nodes}, {edges} in {found.seconds:.1f} s")
