"""The model against what the code writes, sends and samples: bytes exactly, or within 3 percent.

Two machines are stood for by two servers in this process, between which bytes are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overspill as ov
from overspill.build import describe_build
from overspill.build.parting.split_owners import equal_ranges
from overspill.build.parting.split_spec import OwnersSpec, SplitSpec, Window
from overspill.build.parting.stage_split import stage_split
from overspill.cluster.connection import Connection, Link
from overspill.cluster.dataset import ClusterDataset
from overspill.cluster.layout import Layout
from overspill.cluster.machines import _layout
from overspill.cluster.part_server import PartServer
from overspill.cluster.parted_arrays import Reach
from overspill.cluster.planning.disk import part_bytes, staged_split_bytes
from overspill.cluster.planning.plan import Plan, plan
from overspill.cluster.planning.traffic import gather_bytes, sample_bytes
from overspill.cluster.survey import Node, Survey
from overspill.graph.partition import Partitioned
from overspill.graph.sampling import SamplingSpec
from overspill.graph.streams import stream_key

NODES, EDGES, ROW_BYTES, PARTS = 40_000, 400_000, 64, 2
FAN_OUTS, BATCH, BATCHES = [8, 4], 256, 6
WITHIN = 0.03


@dataclass
class Case:
    plan: Plan
    edges: Path
    parts: Partitioned


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    place = tmp_path_factory.mktemp("planned")
    random = np.random.default_rng(0)
    np.save(place / "edges.npy", random.integers(0, NODES, (2, EDGES)))
    np.save(place / "x.npy", random.integers(0, 256, (NODES, ROW_BYTES), np.uint8))
    parts = ov.partition_dataset(
        place / "edges.npy",
        PARTS,
        out=place / "parts",
        num_nodes=NODES,
        node_features={"x": place / "x.npy"},
    )
    yield Case(
        plan(
            NODES,
            EDGES,
            feature_bytes=ROW_BYTES,
            machines=PARTS,
            memory="8GiB",
            num_neighbors=FAN_OUTS,
            batch_size=BATCH,
        ),
        place / "edges.npy",
        parts,
    )


def test_the_parts_have_the_bytes_that_were_told(case: Case) -> None:
    for part in case.parts.parts:
        nbytes = sum(record.nbytes for record in part.manifest.files())
        assert nbytes == part_bytes(
            part.num_nodes, part.num_edges, nodes_of_all=NODES, feature_bytes=ROW_BYTES
        )
    largest = max(sum(record.nbytes for record in one.manifest.files()) for one in case.parts.parts)
    assert case.plan.disk.dataset_bytes == pytest.approx(largest, rel=WITHIN)


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_what_is_staged_has_the_bytes_that_were_told(
    case: Case, parts: int, tmp_path: Path
) -> None:
    stat = case.edges.stat()
    bounds = tuple(equal_ranges(NODES, parts).bounds.tolist())
    owners = OwnersSpec(count=NODES, num_parts=parts, bounds=bounds)
    spec = SplitSpec(
        number=0,
        plan="",
        edge=describe_build(tmp_path, edges=case.edges, num_nodes=NODES).edges[0],
        windows=(Window(path=str(case.edges), nbytes=stat.st_size, modified_ns=stat.st_mtime_ns),),
        sources=owners,
        targets=owners,
        layouts=("csc",),
    )
    report = stage_split(spec, tmp_path)
    told = staged_split_bytes(
        plan(NODES, EDGES, feature_bytes=0, machines=1, memory=1, parts=parts).work, edges=EDGES
    )
    staged = sum(file.nbytes for file in report.files["csc"] if file is not None)
    assert staged == sum(path.stat().st_size for path in tmp_path.glob("*.edges"))
    assert staged == pytest.approx(told, rel=WITHIN)


class Counted(Connection):
    """Servers of this process; what goes to them and comes back is counted."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, 1.0)
        self._servers = [PartServer(layout, number) for number in range(len(layout.machines))]
        self.nbytes = self.requests = 0

    def send(self, machine: int, method: str, *arguments: Any) -> Any:
        self.requests += 1
        self.nbytes += held_bytes(arguments)
        return getattr(self._servers[machine], method)(*arguments)

    def receive(self, pending: Any) -> Any:
        self.nbytes += held_bytes(pending)
        return pending


def held_bytes(value: Any) -> int:
    """Bytes of all arrays in a message."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(held_bytes(one) for one in value)
    if is_dataclass(value):
        return sum(held_bytes(getattr(value, one.name)) for one in fields(value))
    return 0


def test_a_batch_is_of_the_size_and_asks_for_the_bytes_that_were_told(case: Case) -> None:
    path, manifest = str(case.parts.path), case.parts.manifest
    nodes_of_ray = [Node(str(number), f"127.0.0.{2 + number}") for number in range(PARTS)]
    holders = [[node] for node in nodes_of_ray]
    manifests = [part.manifest for part in case.parts.parts]
    layout = _layout(path, Survey(manifest, manifests, holders, nodes_of_ray), "served")
    counted = Counted(layout)
    dataset = ClusterDataset(Link(path, layout.partition, "", "", (), 1.0))
    dataset._held = Reach(layout, counted, 0)
    (edge_type,) = layout.manifest.edge_types
    sampler = dataset.sampler(SamplingSpec(num_neighbors={edge_type: FAN_OUTS}, edge_places=True))
    random, mine = np.random.default_rng(1), int(layout.node_ends["node"][0])
    nodes = edges = asked = drawn = rows = 0
    for batch in range(BATCHES):
        seeds = random.choice(mine, BATCH, replace=False)
        found = sampler.sample(seeds, key=stream_key(batch))
        ids = np.empty(found.num_nodes(), np.int64)
        found.write_nodes(ids)
        first, end = np.cumsum(found.nodes_per_hop["node"])[:2]
        columns = np.empty((2, found.num_edges()), np.int64)
        found.write_edges(columns)
        remote = np.flatnonzero(ids >= mine)
        frontier = remote[(remote >= first) & (remote < end)]
        nodes, edges = nodes + ids.size, edges + columns.shape[1]
        asked += frontier.size
        drawn += int(np.isin(columns[1], frontier).sum())
        rows += remote.size
        dataset.gather("x", ids)
    work, flow = case.plan.work, case.plan.network
    exactly = sample_bytes(work, nodes=asked, edges=drawn) + gather_bytes(work, rows=rows)
    assert counted.nbytes == exactly
    assert counted.requests == BATCHES * flow.batch_requests == 2 * BATCHES
    assert counted.nbytes / BATCHES == pytest.approx(flow.batch_bytes, rel=WITHIN)
    assert nodes / BATCHES == pytest.approx(case.plan.batch.nodes, rel=WITHIN)
    assert edges / BATCHES == pytest.approx(case.plan.batch.edges, rel=WITHIN)
