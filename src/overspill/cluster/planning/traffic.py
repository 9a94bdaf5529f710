"""What goes over the network: of a build, and of a batch, hop by hop and machine by machine.

A batch asks each other machine once a hop for in-edges of what it serves, and once for the rows of
each node array, in pieces where answers are large. Seeds are of the machine that samples, so the
first hop asks nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from overspill.cluster.local_parts import REPLY_EDGES
from overspill.cluster.parted_arrays import PIECE_BYTES
from overspill.cluster.planning.disk import DiskUse
from overspill.cluster.planning.neighborhood import Batch
from overspill.cluster.planning.workload import Workload

_NARROW = 2**31 - 1
LOCAL_ID_BYTES, COUNT_BYTES = 4, 4


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes between machines, of the one that gets or sends the most.

    Attributes:
        build_staged_bytes: Staged edges that a machine gets from others; it sends as many.
        build_rows_bytes: Rows of node arrays: what the machine that has their files sends.
        batch_requests: Requests of a batch.
        batch_rounds: How often a batch waits for answers.
        batch_bytes: Requests and answers of a batch, together; a machine sends others as much.
        batch_row_bytes: Of these, rows.
        batches: Batches an epoch, a machine.
    """

    build_staged_bytes: int
    build_rows_bytes: int
    batch_requests: float
    batch_rounds: int
    batch_bytes: float
    batch_row_bytes: float
    batches: int

    @property
    def build_bytes(self) -> int:
        """Of the whole build."""
        return self.build_staged_bytes + self.build_rows_bytes

    @property
    def epoch_bytes(self) -> float:
        """Of an epoch."""
        return self.batches * self.batch_bytes


def traffic(work: Workload, batch: Batch, disk: DiskUse) -> Traffic:
    """Bytes between machines; none where there is one only."""
    remote, others = 1 - work.local_share, work.machines - 1
    requests, nbytes, rounds = 0.0, 0.0, 0
    for number, hop in enumerate(batch.hops[1:] if others else (), start=1):
        asked, edges = remote * hop.frontier, remote * hop.edges
        requests += _requests(asked, others, edges / REPLY_EDGES)
        nbytes += sample_bytes(work, nodes=asked, edges=edges)
        rounds += bool(work.num_neighbors[number])
    rows = remote * (batch.nodes - batch.hops[0].frontier) if others else 0.0
    row_bytes = rows * work.feature_bytes
    if row_bytes:
        requests += _requests(rows, others, row_bytes / PIECE_BYTES)
        nbytes += gather_bytes(work, rows=rows)
        rounds += 1
    return Traffic(
        build_staged_bytes=disk.fetched_bytes,
        build_rows_bytes=_rows_sent(work),
        batch_requests=requests,
        batch_rounds=rounds,
        batch_bytes=nbytes,
        batch_row_bytes=row_bytes,
        batches=batches_a_machine(work),
    )


def sample_bytes(work: Workload, *, nodes: float, edges: float) -> float:
    """Asking for in-edges: ids and local ids there, counts, sources and places back."""
    id_bytes = 4 if work.nodes <= _NARROW else 8
    place_bytes = 4 if work.edges <= _NARROW else 8
    asked = nodes * (id_bytes + LOCAL_ID_BYTES + COUNT_BYTES)
    return asked + edges * (work.id_bytes + place_bytes)


def gather_bytes(work: Workload, *, rows: float) -> float:
    """Asking for rows: ids there, rows back."""
    return rows * ((4 if work.nodes <= _NARROW else 8) + work.feature_bytes)


def batches_a_machine(work: Workload) -> int:
    """Batches an epoch: each machine takes its own share of the seeds."""
    return math.ceil(math.ceil(work.seeds / work.machines) / work.batch_size)


def owners_asked(nodes: float, owners: int) -> float:
    """Machines of whom at least one of so many nodes is, expected: each is any one's."""
    if owners <= 1:
        return min(float(owners), nodes)
    return -owners * math.expm1(nodes * math.log1p(-1 / owners))


def _requests(nodes: float, owners: int, pieces: float) -> float:
    """Requests to machines that each have an even share of some nodes, and of the pieces."""
    return owners_asked(nodes, owners) * max(1, math.ceil(pieces / owners))


def _rows_sent(work: Workload) -> int:
    """A machine that has the files of node arrays alone sends all others their rows."""
    if work.shared_disk or work.rows_everywhere:
        return 0
    return math.ceil(work.nodes * work.feature_bytes * (1 - 1 / work.machines))
