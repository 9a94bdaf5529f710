"""Neighbour sampling: in memory beside torch-sparse, and over a topology on disk beside fio.

In memory everybody has one core, the same graph, seeds and fan-outs, and gives nodes and edges.
On disk the caches of the topology are dropped before each round; what counts is the distinct pages
of topology that the batches need, a second, against the rate at which fio reads single pages.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import fio
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures, SpeedTarget
from benchmarks.place import place_for
from benchmarks.torch_sparse_peer import NAME as TORCH_SPARSE
from benchmarks.torch_sparse_peer import Sample, neighbor_sample
from overspill.errors import UnavailableError
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.paged import PagedArray
from overspill.graph.sampling import NeighborSampler, SamplingSpec
from overspill.graph.sampling.warm import warm_sampling
from overspill.graph.streams import stream_key
from overspill.linux.cache import drop_cache
from overspill.linux.device_reads import device_bytes_read
from overspill.linux.fetch import PAGE_BYTES
from overspill.storage.arrays import ArrayWriter
from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord, publish_manifest
from overspill.storage.records import FileRecord
from overspill.units import format_bytes

DEFAULT_BYTES = 2 << 30
# Of the topology on disk: what is sampled in memory.
WARM_SHARE = 12
OURS, LIMIT = "overspill", "fio, depth 256"
READS = "as many reads at random"
UNASKED = "the same, pages touched unasked"
FAN_OUTS, BATCH_SIZE = (15, 10, 5), 1024
AT_LEAST_IN_MEMORY, AT_LEAST_COLD, MOST_EXCESS = 5.0, 0.8, 1.1
_EXCESS = "bytes read / bytes of the pages needed"
# What seconds are scaled to, so that runs of different length can be compared.
_EDGES, _PAGES = 1_000_000, 100_000
_EDGES_A_NODE = 20
_WARM_BATCHES = 4
_FIO_SECONDS = 4
_CHUNK = 1 << 22
_LATEST = 1 << 15
_EDGE_TYPE = ("node", "to", "node")
_Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """A random graph on disk: the sources of each node's in-edges are any, its degree is skewed."""

    path: Path
    num_nodes: int
    num_edges: int

    @property
    def topology(self) -> list[Path]:
        """The files of its topology."""
        return [self.path / "indptr", self.path / "indices"]


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[Iterable[Case]]:
    """The cases, over topologies that are written first.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the topology on disk; 2 GiB by default. In memory it is a twelfth of it.

    Yields:
        The cases.
    """
    size = nbytes or DEFAULT_BYTES
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    with place_for(directory, size + 5 * size // WARM_SHARE + (1 << 20)) as place:
        torch.set_num_threads(1)
        os.sched_setaffinity(0, {max(cores)})
        try:
            yield _cases(place, size, cores)
        finally:
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(threads)


def _cases(place: Path, size: int, cores: set[int]) -> Iterator[Case]:
    yield _in_memory(_write(place / "warm", size // WARM_SHARE, ranked=True))
    # The reads of the device need more than the core that samples.
    os.sched_setaffinity(0, cores)
    cold = _write(place / "cold", size, ranked=False)
    if fio.is_installed():
        fio.settled_rate(cold.topology[1])
    yield _cold(cold)


def _in_memory(graph: Graph) -> Case:
    dataset = open_dataset(graph.path)
    ways: dict[str, dict[str, Any]] = {
        OURS: {},
        "overspill, with places of edges": {"edge_places": True},
        "overspill, disjoint": {"disjoint": True},
        "overspill, by weight": {"weight": "weight"},
        "overspill, most recent": {"time": "time", "temporal_strategy": "last"},
    }
    contenders = [_ours(name, dataset, options) for name, options in ways.items()]
    targets, absent = [], []
    try:
        contenders.append(_theirs(neighbor_sample(), dataset))
        targets.append(SpeedTarget(of=OURS, against=TORCH_SPARSE, at_least=AT_LEAST_IN_MEMORY))
    except UnavailableError as error:
        absent.append(f"{TORCH_SPARSE} ({error})")
    contenders.append(_bare_reads(dataset))
    return Case(
        name=f"seconds for a million edges: {_told(graph)}, in memory, one core",
        contenders=contenders,
        baseline=OURS,
        limit=READS,
        targets=targets,
        absent=absent,
    )


def _bare_reads(dataset: Dataset) -> Contender:
    """What memory gives: an element of the indices for an edge, anywhere."""
    indices = dataset.topology().indices
    wanted = torch.from_numpy(np.random.default_rng(3).integers(0, len(indices), _EDGES))
    out = torch.empty(_EDGES, dtype=indices.dtype)
    note = "torch.index_select of the indices, nothing sampled"
    return Contender(
        name=READS, act=lambda _: torch.index_select(indices, 0, wanted, out=out), note=note
    )


def _ours(name: str, dataset: Dataset, options: dict[str, Any]) -> Contender:
    sampler = dataset.sampler(SamplingSpec(num_neighbors={_EDGE_TYPE: FAN_OUTS}, **options))
    reads_rows = "weight" in options or "time" in options
    note = "reads whole rows, in no order of weight or time" if reads_rows else ""
    return _per_edge(name, lambda batch: _edges_of(sampler, dataset, batch), note)


def _theirs(sample: Sample, dataset: Dataset) -> Contender:
    topology = dataset.topology()
    indptr, indices = topology.indptr.clone(), topology.indices.long()

    def edges_of(batch: int) -> int:
        seeds = torch.from_numpy(_seeds(dataset, batch))
        _nodes, rows, *_ = sample(indptr, indices, seeds, list(FAN_OUTS), False, True)
        return int(rows.numel())

    return _per_edge(TORCH_SPARSE, edges_of, "int64 indices, and places of edges")


def _edges_of(sampler: NeighborSampler, dataset: Dataset, batch: int) -> int:
    """Sample a batch, and give nodes and edges away as a loader would; how many edges."""
    times = np.full(BATCH_SIZE, _LATEST // 2) if sampler.spec.time else None
    seeds = _seeds(dataset, batch)
    sampled = sampler.sample(seeds, key=stream_key(batch), seed_times=times)
    sampled.write_nodes(np.empty(sampled.num_nodes(), np.int64))
    sampled.write_edges(np.empty((2, sampled.num_edges()), np.int64))
    return sampled.num_edges()


def _seeds(dataset: Dataset, batch: int) -> _Ids:
    return np.random.default_rng(batch).integers(0, dataset.num_nodes, BATCH_SIZE)


def _per_edge(name: str, edges_of: Callable[[int], int], note: str) -> Contender:
    """A contender whose seconds are those of a million edges; all sample the same batches."""

    def act(_given: object) -> float:
        start = time.perf_counter()
        edges = sum(edges_of(batch) for batch in range(_WARM_BATCHES))
        return (time.perf_counter() - start) / edges * _EDGES

    act(None)  # compiles, and brings the files into memory
    return Contender(name=name, act=act, timed=lambda seconds: float(seconds), note=note)


@dataclass(frozen=True)
class ColdRun:
    """One batch from the disk: how long it took, what it needed and what was read."""

    seconds: float
    edges: int
    pages: int
    read_bytes: int | None


def _cold(graph: Graph) -> Case:
    warm_sampling(open_dataset(graph.path), _plain_spec())
    batches = itertools.count(1)
    contenders = [
        _per_page(OURS, graph, batches, PagedArray.take),
        _per_page(UNASKED, graph, batches, _take_unasked),
    ]
    targets: list[Any] = [Bound(of=OURS, figure=_EXCESS, at_most=MOST_EXCESS)]
    if fio.is_installed():
        indices = graph.topology[1]
        contenders.append(
            Contender(
                name=LIMIT,
                act=lambda _: fio.random_read_rate(indices, seconds=_FIO_SECONDS),
                timed=lambda rate: _PAGES / rate,
                note="reads of 4 KiB past the page cache, each block once",
            )
        )
        targets.insert(0, SpeedTarget(of=OURS, against=LIMIT, at_least=AT_LEAST_COLD))
    return Case(
        name=f"seconds for {_PAGES} pages of topology: {_told(graph)}, cold",
        contenders=contenders,
        baseline=OURS,
        limit=LIMIT if fio.is_installed() else None,
        targets=targets,
        absent=[] if fio.is_installed() else [f"fio ({fio.REMEDY})"],
    )


def _plain_spec() -> SamplingSpec:
    return SamplingSpec(num_neighbors={_EDGE_TYPE: FAN_OUTS})


def _per_page(
    name: str, graph: Graph, batches: Iterator[int], take: Callable[..., None]
) -> Contender:
    """A contender whose seconds are those of as many distinct pages of topology."""

    def opened_cold() -> Dataset:
        for path in graph.topology:
            # Of what somebody maps nothing is dropped: each round opens the dataset for itself.
            dropped = drop_cache(path)
            if not dropped or dropped.resident_after_bytes:
                raise UnavailableError(f"{path} cannot be made cold: {dropped}")
        return open_dataset(graph.path)

    def act(dataset: Dataset) -> ColdRun:
        sampler, batch = dataset.sampler(_plain_spec()), next(batches)
        before = device_bytes_read()
        start = time.perf_counter()
        with mock.patch.object(PagedArray, "take", take):
            edges = _edges_of(sampler, dataset, batch)
        seconds = time.perf_counter() - start
        read = None if before is None else (device_bytes_read() or before) - before
        # Once more, now that it is in memory, to see which pages it was.
        return ColdRun(seconds, edges, _pages_of(sampler, dataset, batch), read)

    return Contender(
        name=name,
        before=opened_cold,
        act=act,
        timed=lambda run: float(run.seconds / run.pages * _PAGES),
        after=_figures_of,
    )


def _figures_of(run: ColdRun | None) -> Figures | None:
    if run is None:
        return None
    held = {"edges/s": run.edges / run.seconds, "pages/s": run.pages / run.seconds}
    if run.read_bytes is not None:
        held[_EXCESS] = run.read_bytes / (run.pages * PAGE_BYTES)
    return held


def _take_unasked(array: PagedArray, ids: _Ids, out: npt.NDArray[Any]) -> None:
    """What a sampler does that simply indexes its mapping, advised for random access."""
    held = array.elements(out.dtype)
    if array.span_bytes == array.stride_bytes:
        np.take(held, ids, out=out, mode="clip")
    else:
        np.take(held, ids, out=out[:, 0], mode="clip")
        np.take(held, ids + 1, out=out[:, 1], mode="clip")


def _pages_of(sampler: NeighborSampler, dataset: Dataset, batch: int) -> int:
    """How many distinct pages a batch's topology lies on."""
    seen: dict[PagedArray, npt.NDArray[np.bool_]] = {}
    take = PagedArray.take

    def note(array: PagedArray, ids: _Ids, out: npt.NDArray[Any]) -> None:
        pages = array.mapping.nbytes // PAGE_BYTES + 1
        held = seen.setdefault(array, np.zeros(pages, np.bool_))
        starts = array.payload_offset + ids * array.stride_bytes
        held[starts // PAGE_BYTES] = True
        held[(starts + array.span_bytes - 1) // PAGE_BYTES] = True
        take(array, ids, out)

    with mock.patch.object(PagedArray, "take", note):
        _edges_of(sampler, dataset, batch)
    return int(sum(held.sum() for held in seen.values()))


def _write(path: Path, nbytes: int, *, ranked: bool) -> Graph:
    """Write a random graph whose topology has about so many bytes; `ranked`: weights and times."""
    nodes = max(nbytes // (4 * _EDGES_A_NODE + 8), BATCH_SIZE)
    path.mkdir()
    rng = np.random.default_rng(7)
    indptr = np.zeros(nodes + 1, np.int64)
    # Degrees of a power law, cut off so that no hub is most of the graph.
    degrees = np.minimum(rng.pareto(1.5, nodes) * _EDGES_A_NODE / 2, nodes / 10).astype(np.int64)
    np.cumsum(degrees, out=indptr[1:])
    edges = int(indptr[-1])

    def random(name: str, dtype: str, below: int) -> FileRecord:
        parts = (
            rng.integers(0, below, min(_CHUNK, edges - done)).astype(dtype)
            for done in range(0, edges, _CHUNK)
        )
        return _written(path / name, dtype, edges, parts)

    topology = {
        "indptr": _written(path / "indptr", "int64", nodes + 1, [indptr]),
        "indices": random("indices", "int32", nodes),
    }
    arrays = {"weight": ("float32", 100), "time": ("int64", _LATEST)} if ranked else {}
    held = {name: random(name, *kind) for name, kind in arrays.items()}
    node = NodeTypeRecord("node", nodes)
    edge = EdgeTypeRecord(*_EDGE_TYPE, edges, {"csc": topology}, {"csc": held})
    publish_manifest(path, Manifest(uuid.uuid4().hex, {"node": node}, {edge.key: edge}))
    return Graph(path, nodes, edges)


def _written(path: Path, dtype: str, count: int, parts: Iterable[npt.NDArray[Any]]) -> FileRecord:
    with ArrayWriter(path, dtype=dtype, shape=(count,)) as writer:
        for part in parts:
            writer.append(part)
    return writer.result


def _told(graph: Graph) -> str:
    size = sum(path.stat().st_size for path in graph.topology)
    fan_outs = ", ".join(map(str, FAN_OUTS))
    return (
        f"{BATCH_SIZE} seeds, fan-outs {fan_outs}, {graph.num_edges / 1e6:.3g} million edges, "
        f"{format_bytes(size)}"
    )


if __name__ == "__main__":
    sys.exit(main([opened]))
