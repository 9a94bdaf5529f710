"""Several machines on one: builds in parts, rows of another machine, rows of the own.

Nodes of a Ray cluster stand on loopback addresses of this machine and share its processors and its
disk, so that a build on two of them has what one process has: what differs is the work that parts
cost. Between such nodes nothing travels by a network: a remote gather is held against a plain call
of Ray that moves the same bytes between the same nodes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch

import overspill as ov
from benchmarks.build import PLAIN as LIMIT
from benchmarks.build import move_plainly, moved_bytes
from benchmarks.command import main
from benchmarks.harness import Case, Contender, SpeedTarget
from benchmarks.local_cluster import local_cluster, on_node
from benchmarks.place import place_for
from overspill import cluster
from overspill.linux.cache import drop_cache
from overspill.linux.cgroups import usable_cpus

DEFAULT_BYTES = 1600 << 20
EDGE_BYTES, EDGES_A_NODE = 16, 20
ROWS, ROW_BYTES = 100_000, 512
ONE, TWO, SPLIT = "one process", "two nodes", "one process, then partitioned"
OURS, PLAIN, PICKED = "remote gather", "plain Ray call", "plain Ray call that picks the rows"
HERE, ALONE = "rows of the own part", "the part opened alone"
_CHUNK_EDGES = 1 << 22
_FEWEST_NODES = 4 * ROWS
Rows = npt.NDArray[np.uint8]


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[Iterable[Case]]:
    """The cases, over files that are written first.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the edges, int64 pairs; 1.6 GB by default, a hundred million of them.

    Yields:
        The cases.
    """
    edges = max(1000, (nbytes or DEFAULT_BYTES) // EDGE_BYTES)
    rows_bytes = _FEWEST_NODES * ROW_BYTES
    with (
        place_for(directory, 2 * edges * EDGE_BYTES + 3 * rows_bytes) as place,
        local_cluster(2, num_cpus=max(1, usable_cpus() // 2)),
    ):
        yield _cases(place, edges)


def _cases(place: Path, edges: int) -> Iterator[Case]:
    nodes = max(2, edges // EDGES_A_NODE)
    yield _building(place, write_edges(place / "edges.npy", edges, nodes), edges, nodes)
    (place / "edges.npy").unlink()
    yield from _reading(place)


def _building(place: Path, path: Path, edges: int, nodes: int) -> Case:
    def before() -> Path:
        drop_cache(path)
        return place / "built"

    def after(_result: object) -> None:
        shutil.rmtree(place / "built", ignore_errors=True)
        shutil.rmtree(place / "whole", ignore_errors=True)

    def whole(out: Path) -> None:
        ov.build_dataset(out, edges=path, num_nodes=nodes)

    def in_parts(out: Path) -> None:
        cluster.build(edges=path, num_parts=2, out=out, num_nodes=nodes)

    def then_split(out: Path) -> None:
        built = ov.build_dataset(place / "whole", edges=path, num_nodes=nodes)
        ov.partition_dataset(built, 2, out=out)

    def plainly(out: Path) -> None:
        out.mkdir()
        move_plainly(path, out, *moved_bytes(edges, nodes))

    ways = {ONE: whole, TWO: in_parts, SPLIT: then_split, LIMIT: plainly}
    return Case(
        name=f"{edges:,} edges of {nodes:,} nodes, built into two parts",
        contenders=[
            Contender(name=name, before=before, act=act, after=after, nbytes=EDGE_BYTES * edges)
            for name, act in ways.items()
        ],
        baseline=ONE,
        limit=LIMIT,
        targets=[SpeedTarget(of=TWO, against=ONE, at_least=1 / 1.5)],
    )


def _reading(place: Path) -> Iterator[Case]:
    rows = np.random.default_rng(0).integers(0, 256, (_FEWEST_NODES, ROW_BYTES), np.uint8)
    features = place / "x.npy"
    np.save(features, rows)
    few = write_edges(place / "few.npy", 10 * _FEWEST_NODES, _FEWEST_NODES)
    whole = ov.build_dataset(place / "whole", edges=few, node_features={"x": features})
    ov.partition_dataset(whole, 2, out=place / "parts")
    shutil.rmtree(whole.path)
    with cluster.open_dataset(place / "parts") as dataset:
        yield _remote(dataset, rows)
        yield _local(dataset, place / "parts")


def _remote(dataset: cluster.ClusterDataset, rows: Rows) -> Case:
    """Rows of the other node's part, warm there."""
    first, last = _ids_of(dataset, here=False)
    out = torch.zeros((ROWS, ROW_BYTES), dtype=torch.uint8)
    holder = _holder(rows[first:last])
    random = np.random.default_rng(1)

    def ids() -> torch.Tensor:
        return torch.from_numpy(random.integers(first, last, ROWS))

    def gather(wanted: torch.Tensor) -> object:
        return dataset.gather("x", wanted, out=out)

    def plain(wanted: torch.Tensor) -> object:
        return ray.get(holder.give.remote(wanted.numpy()))

    def picked(wanted: torch.Tensor) -> object:
        return ray.get(holder.pick.remote(wanted.numpy() - first))

    gather(torch.arange(first, last)[:ROWS])
    ways = {OURS: gather, PLAIN: plain, PICKED: picked}
    return Case(
        name=f"{ROWS:,} rows of {ROW_BYTES} B from another node, warm",
        contenders=[
            Contender(name=name, before=ids, act=act, repeats=3, nbytes=out.nbytes)
            for name, act in ways.items()
        ],
        baseline=PLAIN,
        limit=PLAIN,
        scales=False,
        targets=[SpeedTarget(of=OURS, against=PLAIN, at_least=0.5)],
    )


def _ids_of(dataset: cluster.ClusterDataset, *, here: bool) -> tuple[int, int]:
    """The first id of this node's part, or of the other's, and the one after its last."""
    all_ids = np.arange(dataset.num_nodes)
    mine = str(ray.get_runtime_context().get_node_id())
    local = dataset.machines_of_nodes(all_ids) == dataset.machines.index(mine)
    found = np.flatnonzero(local == here)
    return int(found[0]), int(found[-1]) + 1


def _holder(rows: Rows) -> Any:
    """An actor of the other node with the rows in its memory."""
    actor: Any = ray.remote(num_cpus=0, resources=on_node(1))(RowHolder)
    holder = actor.remote()
    for some in np.array_split(rows, 8):  # a piece fits the object store
        ray.get(holder.add.remote(some))
    return holder


class RowHolder:
    """What a plain actor that holds rows does."""

    def __init__(self) -> None:
        self._rows = np.empty((0, ROW_BYTES), np.uint8)

    def add(self, rows: Rows) -> None:
        """Hold some more."""
        self._rows = np.concatenate([self._rows, rows])

    def give(self, ids: npt.NDArray[np.int64]) -> Rows:
        """As many rows as there are ids, as they lie."""
        return self._rows[: ids.size]

    def pick(self, ids: npt.NDArray[np.int64]) -> Rows:
        """The rows of the ids."""
        return self._rows[ids]


def _local(dataset: cluster.ClusterDataset, parts: Path) -> Case:
    """Rows of this node's own part, beside the same rows of the part as a dataset of its own."""
    first, last = _ids_of(dataset, here=True)
    out = torch.zeros((ROWS, ROW_BYTES), dtype=torch.uint8)
    alone = ov.open_partition(parts).parts[int(first > 0)]
    random = np.random.default_rng(2)

    def ids() -> torch.Tensor:
        return torch.from_numpy(random.integers(first, last, ROWS))

    def through(wanted: torch.Tensor) -> object:
        return dataset.gather("x", wanted, out=out)

    def directly(wanted: torch.Tensor) -> object:
        return alone.gather("x", wanted - first, out=out)

    for warm, start in ((through, first), (directly, first)):
        warm(torch.arange(start, last)[:ROWS])
    return Case(
        name=f"{ROWS:,} rows of {ROW_BYTES} B from the own part, warm",
        contenders=[
            Contender(name=name, before=ids, act=act, repeats=10, nbytes=out.nbytes)
            for name, act in {HERE: through, ALONE: directly}.items()
        ],
        baseline=ALONE,
        scales=False,
        targets=[SpeedTarget(of=HERE, against=ALONE, at_least=0.9)],
    )


def write_edges(path: Path, edges: int, nodes: int) -> Path:
    """Write random edges, int64 (2, edges), to a .npy file."""
    random = np.random.default_rng(3)
    header = {"descr": "<i8", "fortran_order": False, "shape": (2, edges)}
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, 2 * edges, _CHUNK_EDGES):
            count = min(_CHUNK_EDGES, 2 * edges - first)
            file.write(random.integers(0, nodes, count).data)
    return path


if __name__ == "__main__":
    sys.exit(main([opened]))
