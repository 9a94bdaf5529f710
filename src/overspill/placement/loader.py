"""How much memory a loader needs, and how many batches it may have in flight.

Pure policy: what there is was measured by the caller. The projection is an upper bound, so that a
loader that starts also finishes: every figure is the most that the code which uses the memory can
take, and the sampler refuses a batch that outgrows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from overspill.errors import NoRoomError
from overspill.units import format_bytes

# Measured with torch 2.13 and PyG 2.8: what a worker has of its own once it has made its first
# batch, not counting the batch and the sampler's buffers.
FORKED_WORKER_BYTES = 48 << 20
SPAWNED_WORKER_BYTES = 320 << 20
# The order of one block of a cold gather, and the page lists of its windows.
GATHER_BYTES = 24 << 20
_OFFSET_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class LoaderDemand:
    """What a loader is asked to do.

    Attributes:
        workers: Worker processes; 0 makes the batches in this process.
        spawned: Whether workers start afresh (spawn, forkserver) instead of by fork.
        prefetch_factor: Batches in flight a worker, at most.
        pinned: Whether each batch is copied once more, into pinned memory.
        nodes: The most nodes of a batch.
        edges: The most edges of a batch.
        seeds: Seeds of a batch.
        row_bytes: Bytes of all gathered rows of one node.
        id_bytes: Bytes of a node id in the sampler's table: 4 or 8.
    """

    workers: int
    spawned: bool
    prefetch_factor: int
    pinned: bool
    nodes: int
    edges: int
    seeds: int
    row_bytes: int
    id_bytes: int = 4

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch: ids, rows, edge index, input ids."""
        nodes = self.nodes * (self.row_bytes + _OFFSET_BYTES)
        return nodes + self.edges * 2 * _OFFSET_BYTES + self.seeds * _OFFSET_BYTES

    @property
    def sampler_bytes(self) -> int:
        """Bytes of one sampler's buffers and of a gather's, when they are at their largest."""
        # Two offsets and a value an edge; extents and fresh ids a node; and a table that is
        # a quarter full when it has just grown, beside the half as large one it grew from.
        table = 6 * 2 * self.id_bytes
        return (
            self.edges * 3 * _OFFSET_BYTES + self.nodes * (3 * _OFFSET_BYTES + table) + GATHER_BYTES
        )

    @property
    def batches(self) -> int:
        """Batches alive at a time: in flight, in the caller's hands, and being handed over."""
        return self.workers * self.prefetch_factor + 2 + self.pinned

    @property
    def extra_bytes(self) -> int:
        """Bytes on top of what the process has already."""
        worker = SPAWNED_WORKER_BYTES if self.spawned else FORKED_WORKER_BYTES
        each = self.sampler_bytes + (worker if self.workers else 0)
        return max(self.workers, 1) * each + self.batches * self.batch_bytes

    @property
    def shm_bytes(self) -> int:
        """Bytes of /dev/shm that batches on their way from the workers hold."""
        return self.batches * self.batch_bytes if self.workers else 0


@dataclass(frozen=True, kw_only=True)
class LoaderRoom:
    """What there is, as measured before the workers start.

    Attributes:
        base_bytes: Anonymous and shared memory of this process now.
        available_bytes: What can still be allocated on this machine, in this memory group.
        limit_bytes: The most anonymous and shared memory that this process and its workers may hold
            together; None for no limit beside `available_bytes`.
        reserve_bytes: Left for the model, its activations and the page cache.
        shm_bytes: Free in /dev/shm, its reserve already taken off; None where it cannot be told.
    """

    base_bytes: int
    available_bytes: int
    limit_bytes: int | None
    reserve_bytes: int
    shm_bytes: int | None

    @property
    def allowed_bytes(self) -> int:
        """The most that process and workers may come to, together."""
        most = self.base_bytes + self.available_bytes
        if self.limit_bytes is not None:
            most = min(most, self.limit_bytes)
        return max(most - self.reserve_bytes, 0)


@dataclass(frozen=True, kw_only=True)
class LoaderPlan:
    """How a loader goes about it.

    Attributes:
        prefetch_factor: Batches in flight a worker.
        projected_bytes: The most anonymous and shared memory of process and workers together.
        allowed_bytes: What they may come to.
        nodes: The most nodes of a batch that this holds for.
        edges: The most edges of a batch that this holds for.
        reason: Why this prefetch factor.
    """

    prefetch_factor: int
    projected_bytes: int
    allowed_bytes: int
    nodes: int
    edges: int
    reason: str


def bound_neighborhood(
    seeds: int, fan_outs: Sequence[int], *, graph: tuple[int, int], replace: bool, distinct: bool
) -> tuple[int, int]:
    """The most nodes and edges that sampling can reach.

    Args:
        seeds: Seeds of a batch.
        fan_outs: One a hop; -1 for all neighbours.
        graph: Nodes and edges of the graph.
        replace: Whether an edge may be drawn twice.
        distinct: Whether no seed comes twice in a batch; a repeated one samples for itself.

    Returns:
        Nodes and edges of the largest batch.
    """
    num_nodes, num_edges = graph
    every = num_edges * (1 if distinct else max(seeds, 1))
    frontier, nodes, edges = seeds, 0, 0
    for fan_out in fan_outs:
        picks = every if fan_out < 0 else frontier * fan_out
        if not replace:
            picks = min(picks, every)
        edges += picks
        frontier = min(picks, num_nodes)
        nodes += frontier
        every = num_edges
    if distinct and not replace:
        edges = min(edges, num_edges)  # each node is expanded once
    return seeds + min(nodes, num_nodes), edges


def plan_loader(demand: LoaderDemand, room: LoaderRoom) -> LoaderPlan:
    """Choose the largest prefetch factor, up to the one asked for, that fits.

    Args:
        demand: What is asked.
        room: What there is.

    Returns:
        The plan; its projection is at most what is allowed.

    Raises:
        NoRoomError: Not even one batch a worker fits; names the two figures and what to change.
    """
    shm = room.shm_bytes
    for factor in range(demand.prefetch_factor, 0, -1):
        tried = replace(demand, prefetch_factor=factor)
        projected = room.base_bytes + tried.extra_bytes
        if projected <= room.allowed_bytes and (shm is None or tried.shm_bytes <= shm):
            return LoaderPlan(
                prefetch_factor=factor,
                projected_bytes=projected,
                allowed_bytes=room.allowed_bytes,
                nodes=demand.nodes,
                edges=demand.edges,
                reason=_reason(demand, tried, room),
            )
        if not demand.workers:
            break
    raise _no_room(replace(demand, prefetch_factor=1), room)


def _reason(demand: LoaderDemand, chosen: LoaderDemand, room: LoaderRoom) -> str:
    if chosen.prefetch_factor == demand.prefetch_factor:
        return f"batches of up to {format_bytes(demand.batch_bytes)} fit"
    return (
        f"prefetch_factor {demand.prefetch_factor} would take up to "
        f"{format_bytes(room.base_bytes + demand.extra_bytes)} "
        f"({format_bytes(demand.shm_bytes)} of it in /dev/shm), and there is room for "
        f"{format_bytes(room.allowed_bytes)}"
        + ("" if room.shm_bytes is None else f" ({format_bytes(room.shm_bytes)} in /dev/shm)")
    )


def _no_room(least: LoaderDemand, room: LoaderRoom) -> NoRoomError:
    projected = room.base_bytes + least.extra_bytes
    shrink = ["a smaller batch_size, smaller fan-outs, fewer features"]
    if least.workers:
        shrink.append("fewer workers (num_workers=0 needs no /dev/shm)")
    if projected > room.allowed_bytes:
        raised = f"a limit of {format_bytes(projected + room.reserve_bytes)} or more"
        # What the process holds already is Python, torch and PyG: no batch is small enough then.
        hopeless = room.base_bytes + least.sampler_bytes > room.allowed_bytes
        remedies = [raised] if hopeless else [*shrink, raised]
        what, needed, there = "memory", projected, room.allowed_bytes
    else:
        larger = "a larger /dev/shm (docker run --shm-size), or overspill.spill_batches()"
        remedies = [*shrink, larger]
        what, needed, there = "/dev/shm", least.shm_bytes, room.shm_bytes or 0
    return NoRoomError(
        f"the loader does not fit in {what}: batches of up to {least.nodes} nodes and "
        f"{least.edges} edges take {format_bytes(least.batch_bytes)} each, {least.batches} at a "
        f"time, beside {least.workers} workers and {format_bytes(room.base_bytes)} in use, with "
        f"{format_bytes(room.reserve_bytes)} kept free",
        needed_bytes=needed,
        available_bytes=there,
        remedy="; ".join(remedies),
    )
