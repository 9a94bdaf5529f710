"""What memory a machine needs, and how much of its parts then fits the page cache.

The loader's memory is what `overspill.placement.loader` projects: its bound, not what batches are
expected to hold. With less, it lowers how many batches are in flight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from overspill.build.parting.stage_split import staging_bytes
from overspill.cluster.part_server import CONCURRENCY
from overspill.cluster.parted_arrays import PIECE_BYTES, REMOTE_COST, WINDOW_BYTES
from overspill.cluster.planning.workload import Workload
from overspill.graph import paged
from overspill.placement.loader import LoaderDemand, ReadingCost, RowsOfType
from overspill.placement.neighborhood import GraphSize, bound_neighborhood

_MIB = 1 << 20
# Measured with Ray 2.60: its processes of a node; a server with torch, before its first request.
RAY_BYTES, SERVER_BYTES = 400 * _MIB, 300 * _MIB
BUILDER_BYTES = 300 * _MIB  # a build's process with its largest buffers
_EDGE_TYPE = ("node", "to", "node")
_PREFETCH = 2  # torch's own, a worker
_LOOK_BYTES, _TAKEN_ITEM_BYTES = 4 << 20, 32  # as `pyg.projection` counts them
_BYTES_A_PRESENCE_BYTE = 8 * 4096


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of memory on a machine.

    Attributes:
        build_bytes: Of a build: the tasks that split, or after them the process that builds; Ray.
        serving_bytes: Of Ray, the server of parts, answers under way, and the loader with its
            workers.
        cached_share: Share of its parts that the rest holds as page cache while it trains.
        memory_bytes: What there is.
    """

    build_bytes: int
    serving_bytes: int
    cached_share: float
    memory_bytes: int

    @property
    def fits(self) -> bool:
        """Whether both fit."""
        return max(self.build_bytes, self.serving_bytes) <= self.memory_bytes


def memory_use(work: Workload, *, dataset_bytes: int, cores: float) -> MemoryUse:
    """Memory a machine."""
    staging = tasks_at_a_time(work, cores=cores) * staging_bytes(work.parts, 1)
    limit = work.build_memory_bytes or BUILDER_BYTES
    answers = (work.workers * WINDOW_BYTES + CONCURRENCY * PIECE_BYTES) * (work.machines > 1)
    serving = RAY_BYTES + SERVER_BYTES + answers + loader_bytes(work, dataset_bytes)
    left = max(0, work.memory_bytes - serving)
    return MemoryUse(
        build_bytes=RAY_BYTES + max(staging, min(limit, BUILDER_BYTES)),
        serving_bytes=serving,
        cached_share=min(1.0, left / max(1, dataset_bytes)),
        memory_bytes=work.memory_bytes,
    )


def tasks_at_a_time(work: Workload, *, cores: float) -> int:
    """Splits that a machine stages at a time: one a processor, as many as its memory holds."""
    limit = work.build_memory_bytes or work.memory_bytes
    return max(1, min(math.floor(cores), limit // staging_bytes(work.parts, 1)))


def loader_bytes(work: Workload, dataset_bytes: int) -> int:
    """What a loader with spawned workers projects."""
    seeds = min(work.batch_size, work.seeds)
    bound = bound_neighborhood(
        {"node": seeds},
        {_EDGE_TYPE: work.num_neighbors},
        graph=GraphSize({"node": work.nodes}, {_EDGE_TYPE: work.edges}),
        replace=False,
        distinct=True,
    )
    reading = ReadingCost(
        block_items=paged.BLOCK_ITEMS,
        item_bytes=_TAKEN_ITEM_BYTES,
        id_bytes=REMOTE_COST.item_bytes,
        fixed_bytes=paged.WINDOW_BYTES
        + _LOOK_BYTES
        + REMOTE_COST.fixed_bytes
        + dataset_bytes // _BYTES_A_PRESENCE_BYTE,
    )
    demand = LoaderDemand(
        workers=work.workers,
        spawned=True,
        prefetch_factor=_PREFETCH,
        pinned=False,
        nodes=bound.num_nodes,
        edges=bound.num_edges,
        seeds=seeds,
        reading=reading,
        node_rows=(RowsOfType(bound.num_nodes, work.feature_bytes),),
        id_bytes=work.id_bytes,
        connection_bytes=REMOTE_COST.process_bytes,
    )
    return demand.extra_bytes
