"""What memory a machine needs, and how much of its parts then fits the page cache."""

from __future__ import annotations

from dataclasses import dataclass

from overspill.cluster.planning.neighborhood import Batch
from overspill.cluster.planning.workload import Workload
from overspill.placement.loader import SPAWNED_WORKER_BYTES

_MIB = 1 << 20
# Ray's own processes of a node, and what a process that joins it has of its own.
RAY_BYTES, JOINED_BYTES = 400 * _MIB, 100 * _MIB
SERVER_BYTES = 350 * _MIB
_BATCHES_A_WORKER = 3  # made, waiting, handed over
_SAMPLED_NODE_BYTES, _SAMPLED_EDGE_BYTES = 100, 68


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of memory on a machine.

    Attributes:
        build_bytes: Of a build: the process that builds, the tasks that split, Ray.
        serving_bytes: Of Ray, the server of parts, and the loader's workers with their batches.
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


def memory_use(work: Workload, batch: Batch, *, dataset_bytes: int, cores: int) -> MemoryUse:
    """Memory a machine."""
    worker = SPAWNED_WORKER_BYTES + JOINED_BYTES + batch_bytes(work, batch) * _BATCHES_A_WORKER
    serving = RAY_BYTES + SERVER_BYTES + work.workers * worker
    left = max(0, work.memory_bytes - serving)
    return MemoryUse(
        build_bytes=RAY_BYTES + work.build_memory_bytes * (1 + cores),
        serving_bytes=serving,
        cached_share=min(1.0, left / max(1, dataset_bytes)),
        memory_bytes=work.memory_bytes,
    )


def batch_bytes(work: Workload, batch: Batch) -> int:
    """A batch with the sampler's buffers behind it."""
    rows = batch.nodes * (work.feature_bytes + _SAMPLED_NODE_BYTES)
    return int(rows + batch.edges * _SAMPLED_EDGE_BYTES)
