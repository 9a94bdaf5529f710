"""What goes over the network: of a build, and of a batch, hop by hop and owner by owner.

A batch asks each other machine once a hop for the neighbours of what it owns, and once for the rows
of each node array. Seeds are those of the machine that samples, so the first hop asks nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from overspill.cluster.planning.neighborhood import Batch
from overspill.cluster.planning.workload import Workload

# What a request says of a node (its id, its place in the batch) and what the answer does (how many
# edges it has), and of each edge.
ASKED_NODE_BYTES, TOLD_NODE_BYTES, TOLD_EDGE_BYTES = 16, 8, 8
ASKED_ROW_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a machine gets from the others; it sends them as much.

    Attributes:
        build_bytes: Staged edges, and rows of node arrays, of the whole build.
        batch_requests: Requests of a batch.
        batch_rounds: How often it waits for answers.
        batch_bytes: Requests and answers of a batch, together.
        batch_rows: Rows of a batch that other machines have.
        batches: Batches an epoch, a machine.
    """

    build_bytes: int
    batch_requests: float
    batch_rounds: int
    batch_bytes: float
    batch_rows: float
    batches: int

    @property
    def epoch_bytes(self) -> float:
        """Of an epoch."""
        return self.batches * self.batch_bytes


def traffic(work: Workload, batch: Batch, *, staged_bytes: int) -> Traffic:
    """What the machine that has the most gets; nothing where there is one only."""
    remote, others = 1 - work.local_share, work.machines - 1
    requests, nbytes, rounds = 0.0, 0.0, 0
    for hop in batch.hops[1:] if others else ():
        asked = remote * hop.frontier
        requests += owners_asked(asked, others)
        nbytes += asked * (ASKED_NODE_BYTES + TOLD_NODE_BYTES)
        nbytes += remote * hop.edges * TOLD_EDGE_BYTES
        rounds += 1
    rows = remote * (batch.nodes - batch.hops[0].frontier) if others else 0.0
    if rows and work.feature_bytes:
        requests += owners_asked(rows, others)
        nbytes += rows * (ASKED_ROW_BYTES + work.feature_bytes)
        rounds += 1
    return Traffic(
        build_bytes=_build_bytes(work, staged_bytes),
        batch_requests=requests,
        batch_rounds=rounds,
        batch_bytes=nbytes,
        batch_rows=rows,
        batches=batches_a_machine(work),
    )


def batches_a_machine(work: Workload) -> int:
    """Batches an epoch: each machine takes its own share of the seeds."""
    seeds = math.ceil(work.seeds / work.machines)
    return math.ceil(seeds / work.batch_size)


def owners_asked(nodes: float, owners: int) -> float:
    """Owners of whom at least one of so many nodes is, expected: each is any owner's."""
    if owners <= 1:
        return min(float(owners), nodes)
    return -owners * math.expm1(nodes * math.log1p(-1 / owners))


def _build_bytes(work: Workload, staged_bytes: int) -> int:
    """A shared disk is reached over its own network, which nobody here knows."""
    if work.shared_disk:
        return 0
    rows = work.nodes_a_machine * work.feature_bytes
    return (staged_bytes + rows) * (work.machines - 1) // work.machines
