"""Seconds of a build's steps and of a batch, from bytes, counts and rates.

The steps of a build follow one another on each machine: splits are staged; rows of node arrays are
brought; staged edges of other machines are fetched; the parts are built. Within a step, reading,
computing and writing overlap.
"""

from __future__ import annotations

import math

from overspill.cluster.planning.disk import DiskUse
from overspill.cluster.planning.memory import tasks_at_a_time
from overspill.cluster.planning.neighborhood import Batch
from overspill.cluster.planning.rates import Rates
from overspill.cluster.planning.spans import Span
from overspill.cluster.planning.traffic import Traffic
from overspill.cluster.planning.workload import Workload

_PAGE = 4096


def build_spans(work: Workload, disk: DiskUse, flow: Traffic, rates: Rates) -> tuple[Span, ...]:
    """The steps of a build, of the machine that has the most to do in each."""
    cores = rates.cores.value
    edges = -(-work.edges // work.machines)
    rows = work.nodes_a_machine * work.feature_bytes
    staged = math.ceil(disk.staged_bytes * work.load * work.machines)
    return (
        Span(stage="init", waiting=rates.start.value),
        Span(
            stage="partition: edges staged",
            disk=_moved(rates, read=edges * work.input_edge_bytes, written=disk.staged_bytes),
            processor=edges / (_staging_at_a_time(work, disk, cores) * rates.split_edges.value),
            waiting=rates.start.value,
        ),
        Span(
            stage="finalise: rows of node arrays",
            disk=_moved(rates, read=rows + flow.build_rows_bytes, written=rows),
            network=flow.build_rows_bytes / rates.network.value,
            processor=rows / rates.checksum.value
            + flow.build_rows_bytes / (cores * rates.transport.value),
        ),
        Span(
            stage="finalise: staged edges fetched",
            disk=_moved(rates, read=disk.fetched_bytes, written=disk.fetched_bytes),
            network=disk.fetched_bytes / rates.network.value,
            processor=disk.fetched_bytes / (cores * rates.transport.value),
        ),
        Span(
            stage="finalise: parts built",
            disk=_moved(rates, read=staged, written=disk.dataset_bytes - rows),
            processor=work.edges_a_machine / (cores * rates.build_edges.value),
            waiting=work.parts_a_machine * rates.start.value,
        ),
    )


def batch_span(
    work: Workload, batch: Batch, flow: Traffic, rates: Rates, *, cached_share: float
) -> Span:
    """A machine makes a batch for itself while it answers as much to others.

    One batch is made step by step; as many are made at a time as there are workers.
    """
    at_a_time, absent = min(rates.cores.value, float(work.workers)), 1 - cached_share
    rows = batch.nodes * work.feature_bytes
    return Span(
        stage="batch",
        disk=pages_read(work, batch) * absent / rates.random_reads.value,
        network=flow.batch_bytes / rates.network.value,
        processor=(
            batch.edges / rates.sample_edges.value
            # What comes from elsewhere is copied there, and once more to its place here.
            + (rows + flow.batch_row_bytes) / rates.copy.value
            + flow.batch_bytes / rates.transport.value
        )
        / at_a_time,
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


def _staging_at_a_time(work: Workload, disk: DiskUse, cores: float) -> float:
    """Processors that stage on a machine, as a share where fewer machines than all have a split."""
    most = min(cores, float(tasks_at_a_time(work, cores=cores)))
    return min(most, disk.splits / work.machines) if disk.splits else most


def _moved(rates: Rates, *, read: float, written: float) -> float:
    return read / rates.disk_read.value + written / rates.disk_write.value
