"""How much memory a loader needs, and how many batches it may have in flight.

Pure policy: what there is was measured by the caller. The projection is an upper bound, so that a
loader that starts also finishes: every figure is the most that the code which uses the memory can
take, and the sampler refuses a batch that outgrows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from overspill.errors import NoRoomError
from overspill.units import format_bytes

# Measured with torch 2.13 and PyG 2.8: what a worker has of its own once it has made its first
# batch, not counting the batch and the sampler's buffers.
FORKED_WORKER_BYTES = 48 << 20
SPAWNED_WORKER_BYTES = 320 << 20
# What sampling by weight, by time or of induced edges reads of whole rows at a time.
RANKED_BYTES = 24 << 20
# The passes of packing, and what they start with.
PACKING_BYTES = 320 << 20
_OFFSET_BYTES = 8
# Of the sampler's buffers, which are a quarter larger than what they hold: an edge's ends and place
# and, in the largest hop, its source, and its number in the input as it is stored; a node's id,
# extent and slots of the table.
_EDGE_BYTES = 44
_NODE_BYTES = {4: 88, 8: 136}
_TREE_BYTES = 20
# PyG's coalescing of edges that are made to go both ways, an edge.
_BOTH_WAYS_BYTES = 224
# Two groups share the room while each has this part of what a group's rows might take: batches
# share rows, and hot ones are not read. An epoch of Zipf's popularity took 14 s so, else 19.
_SMALLEST_SHARE = 8


@dataclass(frozen=True)
class RowsOfType:
    """Rows of one node or edge type that a batch may hold.

    Attributes:
        most: The most rows.
        row_bytes: Bytes of all gathered arrays of one row.
    """

    most: int
    row_bytes: int


@dataclass(frozen=True, kw_only=True)
class RemoteCost:
    """What a dataset takes whose rows may come from other machines, beside `ReadingCost`.

    Attributes:
        process_bytes: Of a process, to be connected.
        fixed_bytes: What is under way at a time.
        item_bytes: Of each item of a request.
    """

    process_bytes: int = 0
    fixed_bytes: int = 0
    item_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ReadingCost:
    """What a process takes to read items at random, beside the items themselves.

    Attributes:
        block_items: How many items are put in order at a time.
        item_bytes: Memory of each of these.
        id_bytes: Memory of each item of a gather, however many there are.
        fixed_bytes: What it takes in any case.
    """

    block_items: int
    item_bytes: int
    id_bytes: int
    fixed_bytes: int

    def most_bytes(self, items: int) -> int:
        """The most that reading so many items at once takes."""
        block = min(items, self.block_items) * self.item_bytes
        return block + items * self.id_bytes + self.fixed_bytes


@dataclass(frozen=True, kw_only=True)
class LoaderDemand:
    """What a loader is asked to do.

    Attributes:
        workers: Worker processes; 0 makes the batches in this process.
        spawned: Whether workers start afresh (spawn, forkserver) instead of by fork.
        prefetch_factor: Batches in flight a worker, at most; without workers, batches that a thread
            makes ahead, 0 for no thread.
        pinned: Whether each batch is copied once more, into pinned memory.
        nodes: The most nodes of a batch, of all types together.
        edges: The most edges of a batch, of all types together.
        seeds: Seeds of a batch, negatives included.
        reading: What reading nodes or edges at random takes, a process.
        node_rows: What is gathered for nodes, by type.
        edge_rows: What is gathered for edges, by type.
        id_bytes: Bytes of a node id in the sampler's table: 4 or 8.
        seed_bytes: Bytes that a batch holds for a seed beside it as a node.
        trees: Whether each seed is a tree of its own.
        ranked: Whether whole rows are read, for weights, times or induced edges.
        both_ways: Whether edges are made to go both ways.
        lookahead: Batches that are sampled and read together; 1 for none.
        read_together_bytes: Buffer for the rows of such a group, a process; what does not fit is
            read in several goes.
        read_floor_bytes: What that buffer has in any case.
        groups: Groups of such batches that a process holds at most: two, where one is sampled and
            read while the batches of the other are taken.
        packs: Whether batches may have to be packed before the first one.
        hot_bytes: Hot rows, which are held already.
        connection_bytes: What a worker takes to be connected to other machines.
    """

    workers: int
    spawned: bool
    prefetch_factor: int
    pinned: bool
    nodes: int
    edges: int
    seeds: int
    reading: ReadingCost
    node_rows: tuple[RowsOfType, ...]
    edge_rows: tuple[RowsOfType, ...] = ()
    id_bytes: int = 4
    seed_bytes: int = _OFFSET_BYTES
    trees: bool = False
    ranked: bool = False
    both_ways: bool = False
    lookahead: int = 1
    read_together_bytes: int = 0
    read_floor_bytes: int = 0
    groups: int = 1
    packs: bool = False
    hot_bytes: int = 0
    connection_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        """The most bytes of gathered rows of a batch."""
        ways = 2 if self.both_ways else 1
        edges = _most_bytes(self.edge_rows, self.edges)
        return _most_bytes(self.node_rows, self.nodes) + ways * edges

    @property
    def sample_bytes(self) -> int:
        """Bytes of what is sampled of the largest batch: ids, trees, edge index, edge ids."""
        nodes = self.nodes * _OFFSET_BYTES * (2 if self.trees else 1)
        return nodes + self.edges * 3 * _OFFSET_BYTES * (2 if self.both_ways else 1)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch: what was sampled, rows, what is told of the inputs."""
        return self.row_bytes + self.sample_bytes + self.seeds * self.seed_bytes

    @property
    def sampler_bytes(self) -> int:
        """Bytes of one sampler's buffers and of a gather's, when they are at their largest."""
        node = _NODE_BYTES[8 if self.trees else self.id_bytes] + _TREE_BYTES * self.trees
        edge = _EDGE_BYTES * (2 if self.ranked else 1)
        edge += _BOTH_WAYS_BYTES if self.both_ways else 0
        # Nodes are gathered, the edges of a hop are read: one after the other.
        fixed = self.reading.most_bytes(max(self.nodes, self.edges))
        fixed += RANKED_BYTES if self.ranked else 0
        return self.edges * edge + self.nodes * node + self.seeds * self.seed_bytes + fixed

    @property
    def group_bytes(self) -> int:
        """Bytes of the groups of batches that are read together, a process."""
        if self.lookahead <= 1:
            return 0
        sampled = self.sample_bytes + self.seeds * self.seed_bytes
        each = self.read_together_bytes + self.read_floor_bytes + self.lookahead * sampled
        return self.groups * each

    @property
    def batches(self) -> int:
        """Batches alive at a time: in flight, in the caller's hands, and being handed over."""
        return max(self.workers, 1) * self.prefetch_factor + 2 + self.pinned

    @property
    def extra_bytes(self) -> int:
        """Bytes on top of what the process has already."""
        worker = SPAWNED_WORKER_BYTES if self.spawned else FORKED_WORKER_BYTES
        worker += self.connection_bytes
        samplers = self.groups * self.sampler_bytes
        each = samplers + self.group_bytes + (worker if self.workers else 0)
        making = max(self.workers, 1) * each + self.batches * self.batch_bytes
        return max(making, self.packing_bytes)

    @property
    def packing_bytes(self) -> int:
        """Bytes of packing, which this process does before there are workers."""
        if not self.packs:
            return 0
        return self.sampler_bytes + 2 * self.sample_bytes + PACKING_BYTES

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
        read_together_bytes: Buffer of a process for rows that are read together.
        groups: Groups of batches that a process holds; see `LoaderDemand`.
    """

    prefetch_factor: int
    projected_bytes: int
    allowed_bytes: int
    nodes: int
    edges: int
    reason: str
    read_together_bytes: int = 0
    groups: int = 1


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
    if not _fits(_least(demand), room):
        raise _no_room(_least(demand), room)
    chosen = _largest(demand, room)
    return LoaderPlan(
        prefetch_factor=chosen.prefetch_factor,
        projected_bytes=room.base_bytes + chosen.extra_bytes,
        allowed_bytes=room.allowed_bytes,
        nodes=demand.nodes,
        edges=demand.edges,
        reason=_reason(demand, chosen, room),
        read_together_bytes=chosen.read_together_bytes,
        groups=chosen.groups,
    )


def _least(demand: LoaderDemand) -> LoaderDemand:
    together = min(demand.read_together_bytes, demand.row_bytes)
    factor = min(demand.prefetch_factor, 1 if demand.workers else 0)
    return replace(demand, prefetch_factor=factor, read_together_bytes=together, groups=1)


def _largest(demand: LoaderDemand, room: LoaderRoom) -> LoaderDemand:
    """What fits: a smaller buffer to read together, then one group, then fewer batches ahead."""
    least = _least(demand)
    low, high = least.prefetch_factor, demand.prefetch_factor
    while low < high:
        middle = (low + high + 1) // 2
        fits = _fits(replace(least, prefetch_factor=middle), room)
        low, high = (middle, high) if fits else (low, middle - 1)
    ahead = replace(demand, prefetch_factor=low)
    smallest = demand.read_together_bytes // _SMALLEST_SHARE
    for groups in range(demand.groups, 0, -1):
        together = demand.read_together_bytes
        floor = max(least.read_together_bytes + 1, smallest if groups > 1 else 0)
        while together >= floor:
            tried = replace(ahead, read_together_bytes=together, groups=groups)
            if _fits(tried, room):
                return tried
            together //= 2
    return replace(least, prefetch_factor=low)


def _fits(demand: LoaderDemand, room: LoaderRoom) -> bool:
    shm = room.shm_bytes
    within = room.base_bytes + demand.extra_bytes <= room.allowed_bytes
    return within and (shm is None or demand.shm_bytes <= shm)


def _most_bytes(rows: Iterable[RowsOfType], total: int) -> int:
    """The most bytes of rows of several types that are `total` together."""
    nbytes = 0
    for held in sorted(rows, key=lambda held: -held.row_bytes):
        count = min(held.most, total)
        nbytes, total = nbytes + count * held.row_bytes, total - count
    return nbytes


def _reason(demand: LoaderDemand, chosen: LoaderDemand, room: LoaderRoom) -> str:
    if chosen.prefetch_factor == demand.prefetch_factor:
        return f"batches of up to {format_bytes(demand.batch_bytes)} fit"
    wanted = format_bytes(room.base_bytes + demand.extra_bytes)
    there = format_bytes(room.allowed_bytes)
    if demand.shm_bytes and room.shm_bytes is not None:
        wanted += f" ({format_bytes(demand.shm_bytes)} of it in /dev/shm)"
        there += f" ({format_bytes(room.shm_bytes)} in /dev/shm)"
    ahead = f"prefetch_factor {demand.prefetch_factor} would take up to {wanted}"
    return f"{ahead}, and there is room for {there}"


def _no_room(least: LoaderDemand, room: LoaderRoom) -> NoRoomError:
    projected = room.base_bytes + least.extra_bytes
    shrink = ["a smaller batch_size, smaller fan-outs, fewer features"]
    if least.workers:
        shrink.append("fewer workers (num_workers=0 needs no /dev/shm)")
    wishes = {
        "hot_rows": least.hot_bytes > 0,
        "lookahead": least.lookahead > 1,
        "pack": least.extra_bytes == least.packing_bytes,
    }
    fewer = [name for name, is_on in wishes.items() if is_on]
    if fewer:
        shrink.append(f"less {' or '.join(fewer)}, or none")
    if projected > room.allowed_bytes:
        raised = f"a limit of {format_bytes(projected + room.reserve_bytes)} or more"
        # What the process holds already is Python, torch and PyG: no batch is small enough then.
        bare = room.base_bytes - least.hot_bytes
        hopeless = not fewer and bare + least.sampler_bytes > room.allowed_bytes
        remedies = [raised] if hopeless else [*shrink, raised]
        what, needed, there = "memory", projected, room.allowed_bytes
    else:
        larger = (
            "a larger /dev/shm (docker run --shm-size); or files instead: OVERSPILL_DIR set to a "
            "directory on a disk, and overspill.spill_batches()"
        )
        remedies = [*shrink, larger]
        what, needed, there = "/dev/shm", least.shm_bytes, room.shm_bytes or 0
    beside = (
        f", beside {least.workers} workers, {format_bytes(least.hot_bytes)} of hot rows and "
        f"{format_bytes(room.base_bytes - least.hot_bytes)} in use, with "
        f"{format_bytes(room.reserve_bytes)} kept free"
    )
    return NoRoomError(
        f"the loader does not fit in {what}: batches of up to {least.nodes} nodes and "
        f"{least.edges} edges take {format_bytes(least.batch_bytes)} each, {least.batches} at a "
        f"time{beside if what == 'memory' else ''}",
        needed_bytes=needed,
        available_bytes=there,
        remedy="; ".join(remedies),
    )
