"""What a graph takes of several machines: disk, memory, network and time, without touching one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Unpack

from overspill.cluster.planning.disk import DiskUse, disk_use
from overspill.cluster.planning.memory import MemoryUse, memory_use
from overspill.cluster.planning.neighborhood import Batch, expected_batch
from overspill.cluster.planning.rates import ASSUMED, Rates
from overspill.cluster.planning.spans import Span
from overspill.cluster.planning.times import batch_span, build_spans
from overspill.cluster.planning.traffic import Traffic, traffic
from overspill.cluster.planning.workload import PlanOptions, Workload, workload_of
from overspill.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Estimates for a graph on several machines; made by `plan`.

    Attributes:
        work: What was planned for.
        rates: What it rests on, each figure with its source.
        batch: What a batch is expected to hold.
        disk: Bytes on a machine's disk.
        memory: Bytes of its memory.
        network: Bytes between machines.
        build: Seconds of the stages of the build.
        epoch: Seconds of an epoch of sampling and gathering, without the model's own work.
    """

    work: Workload
    rates: Rates
    batch: Batch
    disk: DiskUse
    memory: MemoryUse
    network: Traffic
    build: tuple[Span, ...]
    epoch: Span

    def findings(self) -> list[str]:
        """What does not go as planned for; empty where all of it does."""
        held, work = self.memory, self.work
        found = []
        for what, needed in (("build", held.build_bytes), ("serving", held.serving_bytes)):
            if needed > held.memory_bytes:
                found.append(
                    f"{what} wants {format_bytes(needed)} of memory, and a machine has "
                    f"{format_bytes(held.memory_bytes)}"
                )
        if work.parts < work.machines:
            idle = work.machines - work.parts
            found.append(f"{idle} of {work.machines} machines have no part: there are {work.parts}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, bytes and seconds as numbers."""
        return {
            "work": asdict(self.work),
            "rates": self.rates.to_json(),
            "batch": {
                "nodes": self.batch.nodes,
                "edges": self.batch.edges,
                "hops": [asdict(hop) for hop in self.batch.hops],
            },
            "disk": asdict(self.disk) | {"peak_bytes": self.disk.peak_bytes},
            "memory": asdict(self.memory) | {"fits": self.memory.fits},
            "network": asdict(self.network)
            | {"build_bytes": self.network.build_bytes, "epoch_bytes": self.network.epoch_bytes},
            "build": [span.to_json() for span in self.build],
            "epoch": self.epoch.to_json(),
            "findings": self.findings(),
        }

    def __repr__(self) -> str:
        work = self.work
        return f"Plan({work.nodes:,} nodes, {work.edges:,} edges, {work.machines} machines)"


def plan(
    nodes: float,
    edges: float,
    *,
    feature_bytes: int,
    machines: int,
    memory: str | int,
    rates: Rates = ASSUMED,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Estimate what a graph takes of several machines, from rates; measures and touches nothing.

    A pure function of its arguments, by the model in the documentation: "The cluster's model".

    Args:
        nodes: Nodes of the graph, a whole number, such as 1e9.
        edges: Its edges.
        feature_bytes: Bytes of all node arrays, a node.
        machines: How many machines, alike.
        memory: What the work may use of the memory of each, "64GiB" or bytes.
        rates: What a machine does a second; `measure_rates` measures some of them, `Rates.having`
            sets them.
        **options: `parts`, by default one a machine. `input_edge_bytes`, 16 by default: int64
            pairs. `build_memory`, the build's `memory_limit`; None: `memory`. `num_neighbors`, one
            fan-out a hop, (15, 10, 5). `batch_size`, 1024. `seeds`, of an epoch and all machines, a
            hundredth of the nodes. `workers`, of the loader, a machine: 2. `local_share`, the share
            of neighbours on the machine of their node: one in `machines`, as where they are
            scattered. `shared_disk`: all machines see one file system. `rows_everywhere`: each has
            the files of node arrays, not one machine alone.

    Returns:
        The estimates, of the machine that has the most to do.

    Raises:
        InputError: A number is none, or out of its range; names it.
    """
    work = workload_of(
        nodes,
        edges,
        feature_bytes=feature_bytes,
        machines=machines,
        memory=memory,
        options=options,
    )
    cores = rates.cores.value
    batch, disk = expected_batch(work), disk_use(work, cores=cores)
    flow = traffic(work, batch, disk)
    held = memory_use(work, dataset_bytes=disk.dataset_bytes, cores=cores)
    of_batch = batch_span(work, batch, flow, rates, cached_share=held.cached_share)
    return Plan(
        work=work,
        rates=rates,
        batch=batch,
        disk=disk,
        memory=held,
        network=flow,
        build=build_spans(work, disk, flow, rates),
        epoch=Span(stage="epoch", **of_batch.times(flow.batches).parts),
    )
