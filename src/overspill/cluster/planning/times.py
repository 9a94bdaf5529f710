"""Seconds of a build's stages and of an epoch, from bytes, counts and rates."""

from __future__ import annotations

import math

from overspill.cluster.planning.disk import DiskUse
from overspill.cluster.planning.neighborhood import Batch
from overspill.cluster.planning.rates import Rates
from overspill.cluster.planning.spans import Span
from overspill.cluster.planning.traffic import Traffic
from overspill.cluster.planning.workload import Workload

_PAGE = 4096


def build_spans(work: Workload, disk: DiskUse, flow: Traffic, rates: Rates) -> tuple[Span, ...]:
    """The two stages of a build that take time; `init` reads headers alone."""
    edges = -(-work.edges // work.machines)
    input_edges = edges * work.input_edge_bytes
    rows = disk.input_bytes - input_edges
    cores = rates.cores.value
    return (
        Span(
            stage="partition",
            disk=_moved(rates, read=input_edges, written=disk.staged_bytes),
            processor=edges / (cores * rates.split_edges.value),
        ),
        Span(
            stage="finalise",
            disk=_moved(rates, read=disk.staged_bytes + rows, written=disk.dataset_bytes),
            network=flow.build_bytes / rates.network.value,
            processor=work.edges_a_machine / (cores * rates.build_edges.value)
            + flow.build_bytes / (cores * rates.transport.value),
        ),
    )


def batch_span(
    work: Workload, batch: Batch, flow: Traffic, rates: Rates, *, cached_share: float
) -> Span:
    """A machine makes a batch for itself while it answers as much to others."""
    cores, absent = rates.cores.value, 1 - cached_share
    reads = pages_read(work, batch) * absent
    return Span(
        stage="batch",
        disk=reads / rates.random_reads.value,
        network=flow.batch_bytes / rates.network.value,
        processor=(
            batch.edges / rates.sample_edges.value
            + batch.nodes * work.feature_bytes / rates.copy.value
            + flow.batch_bytes / rates.transport.value
        )
        / cores,
        waiting=flow.batch_rounds * rates.round_trip.value / work.workers,
    )


def pages_read(work: Workload, batch: Batch) -> float:
    """Pages that a batch touches: of row pointers one a node, of its neighbours, of its rows."""
    neighbours = 1 + max(0.0, work.degree - 1) * work.id_bytes / _PAGE
    pages = 0.0
    for hop in batch.hops:
        drawn = hop.edges / hop.frontier if hop.frontier else 0.0
        pages += hop.frontier * (1 + min(drawn, neighbours))
    return pages + batch.nodes * pages_of_row(work.feature_bytes)


def pages_of_row(row_bytes: int) -> float:
    """Pages that a row lies on, on average: rows start at multiples of their size."""
    if not row_bytes:
        return 0.0
    return 1 + (row_bytes - math.gcd(row_bytes, _PAGE)) / _PAGE


def _moved(rates: Rates, *, read: float, written: float) -> float:
    return read / rates.disk_read.value + written / rates.disk_write.value
