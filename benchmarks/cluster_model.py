"""What `overspill.cluster.plan` predicts beside what is measured, on 2, 3 and 4 nodes.

The nodes are of this machine and share its processors and its disk, so that each is planned with
its share of them; nothing lies between them but memory, so that a network takes no time. Rates are
measured anew before each round: those of the disk and the processors by the plan's own probe, what
Ray hands over by a call that moves bytes and one that moves none.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import ray

from benchmarks.cluster import DEFAULT_BYTES, EDGE_BYTES, EDGES_A_NODE, write_edges
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures
from benchmarks.local_cluster import local_cluster, on_node
from benchmarks.place import place_for
from overspill import cluster
from overspill.cluster.connection import Connection
from overspill.cluster.parted_arrays import PIECE_BYTES
from overspill.cluster.planning.probe import ROOM_BYTES
from overspill.cluster.planning.spans import Span
from overspill.graph.sampling import SamplingSpec
from overspill.graph.streams import stream_key
from overspill.linux.cache import drop_cache
from overspill.linux.cgroups import usable_cpus

NODES = (2, 3, 4)
ROW_BYTES, FAN_OUTS, BATCH, BATCHES = 256, (10, 5), 1024, 20
BUILD, LOAD = "build", "batches"
_STAGES = ("init", "partition", "finalise")
_APART = "bytes, measured / predicted - 1"
_MOST_APART = 0.03
_NO_NETWORK = 1e15
_PIECES = 12
_HANDED_BYTES, _CALLS = PIECE_BYTES, 50


@dataclass(frozen=True)
class Told:
    """What was predicted, and what came of it.

    Attributes:
        seconds: Measured.
        span: Predicted.
        nbytes: Measured.
        told_bytes: Predicted.
        stages: Seconds by stage, measured and predicted at best and at worst.
    """

    seconds: float
    span: Span
    nbytes: float
    told_bytes: float
    stages: dict[str, float]

    def figures(self) -> Figures:
        """Side by side."""
        return {
            "seconds measured": self.seconds,
            "predicted at best": self.span.least,
            "at worst": self.span.most,
            **self.stages,
            "measured / at best": self.seconds / self.span.least,
            "measured / at worst": self.seconds / self.span.most,
            _APART: abs(self.nbytes / self.told_bytes - 1),
        }


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[Iterable[Case]]:
    """The cases, over files that are written first.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the edges, int64 pairs; 0.8 GB by default.

    Yields:
        A case for each number of nodes.
    """
    edges = max(10_000, (nbytes or DEFAULT_BYTES // 2) // EDGE_BYTES)
    nodes = edges // EDGES_A_NODE
    rows = nodes * ROW_BYTES
    with place_for(directory, 2 * edges * EDGE_BYTES + 2 * rows + ROOM_BYTES) as place:
        yield _cases(place, edges, nodes)


def _cases(place: Path, edges: int, nodes: int) -> Iterator[Case]:
    write_edges(place / "edges.npy", edges, nodes)
    np.save(place / "x.npy", np.zeros((nodes, ROW_BYTES), np.uint8))
    for machines in NODES:
        with local_cluster(machines):
            yield _case(place, edges, nodes, machines)


def _case(place: Path, edges: int, nodes: int, machines: int) -> Case:
    def planned(rates: cluster.Rates) -> cluster.Plan:
        return cluster.plan(
            nodes,
            edges,
            feature_bytes=ROW_BYTES,
            machines=machines,
            memory="8GiB",  # everything is cached
            rates=rates,
            num_neighbors=FAN_OUTS,
            batch_size=BATCH,
            seeds=nodes,
            workers=1,
            shared_disk=True,
        )

    def before_build() -> cluster.Plan:
        plan = planned(_rates(place, machines))
        for name in ("edges.npy", "x.npy"):
            drop_cache(place / name)
        return plan

    def before_batches() -> cluster.Plan:
        # One node alone makes batches here, so that all processors work for them.
        rates = _rates(place, machines)
        _build(place, nodes, machines)
        return planned(rates.having("given", cores=usable_cpus()))

    def after(told: Told | None) -> Figures:
        shutil.rmtree(place / "parts", ignore_errors=True)
        return {} if told is None else told.figures()

    build, load = f"{BUILD}, {machines} nodes", f"{LOAD}, {machines} nodes"
    return Case(
        name=f"predicted and measured, {machines} nodes: {edges:,} edges of {nodes:,} nodes",
        contenders=[
            Contender(
                name=build,
                before=before_build,
                act=lambda plan: _built(plan, place, nodes, machines),
                timed=lambda told: float(told.seconds),
                after=after,
            ),
            Contender(
                name=load,
                before=before_batches,
                act=lambda plan: _loaded(plan, place),
                timed=lambda told: float(told.seconds),
                after=after,
            ),
        ],
        baseline=build,
        targets=[Bound(of=name, figure=_APART, at_most=_MOST_APART) for name in (build, load)],
    )


def _rates(place: Path, machines: int) -> cluster.Rates:
    """What each of several nodes has of this machine."""
    rates = cluster.measure_rates(place)
    return rates.having(
        "measured",
        cores=rates.cores.value / machines,
        # All of them start processes at the same time, each of which takes a processor.
        start=rates.start.value * max(1.0, machines / rates.cores.value),
        disk_read=rates.disk_read.value / machines,
        disk_write=rates.disk_write.value / machines,
        network=_NO_NETWORK,
        **_handed_over(),
    )


def _handed_over() -> dict[str, float]:
    """Bytes a second of a plain call, and seconds of one without any, between two nodes."""
    holder: Any = ray.remote(num_cpus=0, resources=on_node(1))(_Holder).remote()
    ray.get(holder.give.remote(_HANDED_BYTES))
    start = time.perf_counter()
    for _ in range(_PIECES):
        ray.get(holder.give.remote(_HANDED_BYTES))
    given = time.perf_counter()
    for _ in range(_CALLS):
        ray.get(holder.give.remote(1))
    asked = time.perf_counter()
    ray.kill(holder)
    return {
        "transport": _PIECES * _HANDED_BYTES / (given - start),
        "round_trip": (asked - given) / _CALLS,
    }


class _Holder:
    def give(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)


def _build(place: Path, nodes: int, machines: int) -> tuple[dict[str, float], int]:
    """Seconds of each stage, and the bytes staged."""
    out, seconds = place / "parts", {}
    start = time.perf_counter()
    cluster.init_build(
        edges=place / "edges.npy",
        num_parts=machines,
        out=out,
        num_nodes=nodes,
        node_features={"x": place / "x.npy"},
    )
    planned = time.perf_counter()
    cluster.partition_build(out)
    staged = time.perf_counter()
    nbytes = sum(path.stat().st_size for path in out.rglob("*.edges"))
    start_of_last = time.perf_counter()
    cluster.finalise_build(out)
    seconds = {
        "init": planned - start,
        "partition": staged - planned,
        "finalise": time.perf_counter() - start_of_last,
    }
    return seconds, nbytes


def _built(plan: cluster.Plan, place: Path, nodes: int, machines: int) -> Told:
    seconds, staged = _build(place, nodes, machines)
    parts = sum(path.stat().st_size for path in (place / "parts").glob("part-*/**/*.safetensors"))
    stages = {}
    for name in _STAGES:
        spans = [span for span in plan.build if span.stage.startswith(name)]
        stages[f"{name}: measured"] = seconds[name]
        stages[f"{name}: at best"] = sum(span.least for span in spans)
        stages[f"{name}: at worst"] = sum(span.most for span in spans)
    whole = Span(
        stage="build",
        **{name: sum(span.parts[name] for span in plan.build) for name in plan.build[0].parts},
    )
    return Told(
        seconds=sum(seconds.values()),
        span=whole,
        nbytes=staged + parts,
        told_bytes=plan.disk.all_staged_bytes + machines * plan.disk.dataset_bytes,
        stages=stages,
    )


def _loaded(plan: cluster.Plan, place: Path) -> Told:
    """Batches of the first node's own seeds, one after another."""
    with cluster.open_dataset(place / "parts") as dataset, _counted() as moved:
        (edge_type,) = dataset.edge_types
        spec = SamplingSpec(num_neighbors={edge_type: FAN_OUTS}, edge_places=True)
        sampler = dataset.sampler(spec)
        all_ids = np.arange(dataset.num_nodes)
        local = all_ids[dataset.machines_of_nodes(all_ids) == dataset.machines.index(_here())]
        random = np.random.default_rng(0)

        def batch(number: int) -> None:
            seeds = random.choice(local, BATCH, replace=False)
            sampled = sampler.sample(seeds, key=stream_key(number))
            ids = np.empty(sampled.num_nodes(), np.int64)
            sampled.write_nodes(ids)
            dataset.gather("x", ids)

        batch(-1)  # brings the files into memory
        moved.clear()
        start = time.perf_counter()
        for number in range(BATCHES):
            batch(number)
        seconds = (time.perf_counter() - start) / BATCHES
        nbytes = sum(moved) / BATCHES
    span = plan.epoch.times(1 / plan.network.batches)
    return Told(seconds, span, nbytes, plan.network.batch_bytes, {})


def _here() -> str:
    return str(ray.get_runtime_context().get_node_id())


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Bytes of the arrays that are sent to servers, and that they answer."""
    moved: list[int] = []
    send, receive = Connection.send, Connection.receive

    def sent(self: Connection, machine: int, method: str, *arguments: Any) -> Any:
        moved.append(_array_bytes(arguments))
        return send(self, machine, method, *arguments)

    def received(self: Connection, pending: Any) -> Any:
        answer = receive(self, pending)
        moved.append(_array_bytes(answer))
        return answer

    with (
        mock.patch.object(Connection, "send", sent),
        mock.patch.object(Connection, "receive", received),
    ):
        yield moved


def _array_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    held = value if isinstance(value, tuple) else getattr(value, "__dict__", {}).values()
    return sum(_array_bytes(one) for one in held)


if __name__ == "__main__":
    sys.exit(main([opened]))
