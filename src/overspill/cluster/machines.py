"""Which machine serves which part, and the servers: started once, found again, ended.

A part is served where its files are: by the machine that alone has them, else by the one that has
fewest bytes to serve so far. A server that only its machine can be has Ray's resource of that
machine's address, so that it comes back with the machine; where every machine sees the files,
another one may take its place.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from overspill.cluster.connection import NAMESPACE, as_raised, first_line, was_forked
from overspill.cluster.layout import Layout, Machine
from overspill.cluster.part_server import CONCURRENCY, PartServer
from overspill.cluster.survey import Node, Survey, survey
from overspill.cluster.whole import raw_ids_are_kept, whole_of
from overspill.errors import ClusterError

_Name = tuple[str, str]
_PAUSES_S = (0.1, 0.3, 1.0, 3.0)
# Tells what this process has opened from what it has found.
_OPENER = uuid.uuid4().hex
_SHARE = 0.001  # of the resource that each machine has once
_ASKED_BYTES = 1 << 20


class _Running:
    """Servers of datasets that this process has open, and how many datasets each serves.

    Ray ends an actor when nobody holds the handle it was made by: they are held here, so that one
    dataset may go while another, which found the servers by name, goes on.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handles: dict[_Name, Any] = {}
        self.users: Counter[_Name] = Counter()


_RUNNING = _Running()


def served_layout(path: str, *, deadline_s: float, detached: bool) -> Layout:
    """Find what there is at a path, and have it served.

    Args:
        path: The partition's directory, absolute.
        deadline_s: How long the machines may take to answer, and their servers to start.
        detached: Whether servers outlive this program.

    Raises:
        InputError: No partition, or several.
        ClusterError: A part is nowhere, or a machine does not answer.
        FormatError: Parts that are not of one whole.
    """
    found = survey(path, deadline_s)
    prefix = _prefix(found.partition.identifier, path, detached)
    with _RUNNING.lock:
        for pause in (*_PAUSES_S, None):
            try:
                layout = _running(prefix, deadline_s) or _layout(path, found, prefix)
                handles = {
                    _name(machine): _RUNNING.handles.get(_name(machine))
                    or _start(layout, number, detached)
                    for number, machine in enumerate(layout.machines)
                }
                held = _layouts(list(handles.values()), deadline_s)[0]
                break
            except ActorDiedError as error:
                # Servers that were just ended keep their names for a moment.
                for name in list(_RUNNING.handles):
                    if name[1].startswith(prefix):
                        del _RUNNING.handles[name]
                if pause is None:
                    raise _not_started(error, deadline_s) from error
            threading.Event().wait(pause)
        _RUNNING.handles |= handles
        _RUNNING.users.update(handles.keys())
    return held


def end_servers(layout: Layout, *, detached: bool) -> None:
    """Let go of servers: they end with the last dataset of the process that started them.

    Args:
        layout: Of a dataset that `served_layout` opened here.
        detached: Whether it was opened as detached: then they end wherever they were started.
    """
    # They have ended with the connection; or they are those of a parent that goes on.
    if was_forked() or not ray.is_initialized():
        return
    with _RUNNING.lock:
        for name in map(_name, layout.machines):
            _RUNNING.users[name] -= 1
            if _RUNNING.users[name] > 0:
                continue
            handle = _RUNNING.handles.pop(name, None)
            started = layout.opened_by == _OPENER or detached
            if handle is not None and started:
                ray.kill(handle, no_restart=True)


def _name(machine: Machine) -> _Name:
    # After ray.shutdown() and ray.init() the same job may have the same name in another cluster.
    return str(ray.get_runtime_context().get_worker_id()), machine.server


def _running(prefix: str, deadline_s: float) -> Layout | None:
    """What servers that are there already serve; None where there are none."""
    try:
        handle = ray.get_actor(f"{prefix}-0", namespace=NAMESPACE)
    except ValueError:
        return None
    return _layouts([handle], deadline_s)[0]


def _layouts(handles: Sequence[Any], deadline_s: float) -> list[Layout]:
    """Wait for servers to be up; ActorDiedError where one has ended, or could not be made."""
    try:
        found = ray.get([handle.layout.remote() for handle in handles], timeout=deadline_s)
    except RayTaskError as error:
        raise as_raised(error, "a machine") from None
    except ActorDiedError:
        raise
    except RayError as error:
        raise _not_started(error, deadline_s) from error
    assert all(isinstance(layout, Layout) for layout in found)
    return list(found)


def _not_started(error: RayError, deadline_s: float) -> ClusterError:
    return ClusterError(
        f"the servers of a dataset did not start within {deadline_s:g} s: "
        f"{type(error).__name__}: {first_line(error)}",
        remedy="see whether the machines are up, and have memory for a process each (ray status); "
        "the servers' logs are in Ray's session directories",
    )


def _prefix(partition: str, path: str, detached: bool) -> str:
    """What the servers of a partition are called: those of a copy of it elsewhere are others."""
    job = "detached" if detached else str(ray.get_runtime_context().get_job_id())
    place = hashlib.sha256(path.encode()).hexdigest()[:8]
    return f"parts-{partition[:16]}-{place}-{job}"


def _start(layout: Layout, number: int, detached: bool) -> Any:
    machine = layout.machines[number]
    placed: dict[str, Any]
    if machine.pinned:
        placed = {"resources": {f"node:{machine.address}": _SHARE}}
    else:
        wish = NodeAffinitySchedulingStrategy(machine.node_id, soft=True)
        # Ray drops the wish of an actor that asks for nothing.
        placed = {"scheduling_strategy": wish, "memory": _ASKED_BYTES}
    # No processors are asked for: those are for the training, and a server mostly waits.
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(PartServer)
    return actor.options(
        name=machine.server,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached" if detached else None,
        max_concurrency=CONCURRENCY,
        **placed,
    ).remote(layout, number)


def _layout(path: str, found: Survey, prefix: str) -> Layout:
    whole = whole_of(found.partition.identifier, found.manifests, path)
    sizes = [sum(record.nbytes for record in part.files()) for part in found.manifests]
    served = _shared_out(found.holders, sizes)
    return Layout(
        path=path,
        partition=found.partition.identifier,
        manifest=whole.manifest,
        arrays=whole.arrays,
        node_ends=whole.node_ends,
        edge_ends=whole.edge_ends,
        hashed=found.partition.method == "hash",
        raw_ids=raw_ids_are_kept(found.manifests),
        directories=tuple(part.path for part in found.partition.parts),
        identifiers=tuple(part.identifier for part in found.partition.parts),
        opened_by=_OPENER,
        machines=tuple(
            Machine(
                node_id=node.node_id,
                address=node.address,
                server=f"{prefix}-{number}",
                parts=parts,
                pinned=not _everywhere(parts, found),
            )
            for number, (node, parts) in enumerate(served.items())
        ),
    )


def _shared_out(
    holders: Sequence[Sequence[Node]], sizes: Sequence[int]
) -> dict[Node, tuple[int, ...]]:
    """Give each part to one of the machines that have it, the fewest first, the largest first."""
    load: Counter[Node] = Counter()
    given: dict[Node, list[int]] = {}
    for part in sorted(
        range(len(sizes)), key=lambda part: (len(holders[part]), -sizes[part], part)
    ):
        node = min(holders[part], key=lambda held: (load[held], len(given.get(held, []))))
        load[node] += sizes[part]
        given.setdefault(node, []).append(part)
    serving = sorted(given, key=lambda node: (node.address, node.node_id))
    return {node: tuple(sorted(given[node])) for node in serving}


def _everywhere(parts: Sequence[int], found: Survey) -> bool:
    """Whether every machine of several has all of some parts."""
    nodes = len(found.nodes)
    return nodes > 1 and all(len(found.holders[part]) == nodes for part in parts)
