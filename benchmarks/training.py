"""Training with features beyond the memory limit, beside the same with all in memory.

At full size they are eight times the limit; with less of them it stays where torch needs it.

The demo's GraphSAGE, two hops, an epoch of Zipf's popularity and one of uniform. Ours is a process
in a memory group, its caches cold; the peer has the same sampler and loader, features in shared
memory, the topology cached and no limit. What uniform access must read is bounded by the device:
the distinct pages that an epoch needs, of features, labels and topology, at the rate of fio.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import fio
from benchmarks.command import main
from benchmarks.harness import Case, Contender, Figures, SpeedTarget
from benchmarks.job import run_job
from benchmarks.place import place_for
from benchmarks.training_job import BATCH_SIZE
from overspill.build import describe_build, run_build
from overspill.build.sending.outgoing import Outgoing
from overspill.cli.demo.generate import CLASSES, DIMENSIONS
from overspill.linux.cache import drop_cache

DEFAULT_BYTES = 12 << 30
LIMIT_SHARE = 8
# What torch and a loader take before a batch is read.
LEAST_LIMIT_BYTES = 768 << 20
# Of the limit: what the most-used rows may take.
_HOT_SHARE = 5
ROW_BYTES = DIMENSIONS * 2
OURS, IN_MEMORY = "overspill, features on disk", "the same sampler, all in memory"
HOT = f"{OURS}, hot rows"
BOUND = "the larger of in memory and fio's reads"
_EDGES_A_NODE = 5
_BATCHES = {"Zipf": 400, "uniform": 40}
_FEWEST_BATCHES = 4
_CHUNK = 1 << 18
_ODD = 2_654_435_761  # and prime: spreads ranks over the ids
_Ids = npt.NDArray[np.int64]


@contextmanager
def zipf(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """An epoch of Zipf's popularity.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the features, 12 GiB by default; an eighth of it is the limit.

    Yields:
        The case.
    """
    with _opened("Zipf", directory, nbytes) as case:
        yield [case]


@contextmanager
def uniform(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """An epoch of uniform access; arguments as for `zipf`."""
    with _opened("uniform", directory, nbytes) as case:
        yield [case]


@contextmanager
def _opened(kind: str, directory: Path, nbytes: int | None) -> Iterator[Case]:
    nodes = max(1 << 16, (nbytes or DEFAULT_BYTES) // ROW_BYTES)
    size = nodes * ROW_BYTES
    with place_for(directory, size + nodes * _EDGES_A_NODE * 24) as place:
        case = _case(place, kind, nodes, max(size // LIMIT_SHARE, LEAST_LIMIT_BYTES))
        if fio.is_installed():
            fio.settled_rate(next((place / kind).rglob("x.safetensors")))
        yield case


def _case(place: Path, kind: str, nodes: int, limit_bytes: int) -> Case:
    dataset, seeds = place / kind, place / f"{kind}.npy"
    random = np.random.default_rng(7)
    # An epoch grows with its graph.
    batches = max(_FEWEST_BATCHES, _BATCHES[kind] * nodes * ROW_BYTES // DEFAULT_BYTES)
    np.save(seeds, _drawn(kind, random, nodes, batches * BATCH_SIZE))
    _build(place, kind, nodes)
    run = partial(_job, dataset, seeds, batches, limit_bytes // _HOT_SHARE)
    contenders = [
        _epoch(HOT, partial(run, "hot", limit_bytes)),
        _epoch(OURS, partial(run, "disk", limit_bytes)),
    ]
    if kind == "Zipf":
        contenders.append(_epoch(IN_MEMORY, partial(run, "memory", None)))
        target = SpeedTarget(of=HOT, against=IN_MEMORY, at_least=1 / 1.3)
    else:
        contenders.append(
            _bound(partial(run, "memory", None), partial(run, "pages", None), dataset)
        )
        target = SpeedTarget(of=OURS, against=BOUND, at_least=1 / 1.2)
    return Case(
        name=f"training, {kind} access, {batches} batches, {nodes:,} nodes, "
        f"limit {limit_bytes >> 20} MiB",
        contenders=contenders,
        baseline=contenders[0].name,
        targets=[target],
    )


def _epoch(name: str, run: Any) -> Contender:
    return Contender(
        name=name, act=lambda _: run(), timed=lambda found: found["seconds"], after=_told
    )


def _bound(in_memory: Any, pages: Any, dataset: Path) -> Contender:
    distinct = pages()["pages"]

    def act(_given: object) -> dict[str, Any]:
        found: dict[str, Any] = in_memory()
        rate = fio.random_read_rate(next(dataset.rglob("x.safetensors")))
        device = distinct / rate
        return found | {"seconds": max(found["seconds"], device), "device seconds": device}

    return Contender(
        name=BOUND,
        act=act,
        timed=lambda found: found["seconds"],
        after=_told,
        note=f"{distinct:,} distinct pages of features, labels and topology",
    )


def _told(found: dict[str, Any] | None) -> Figures:
    return {} if found is None else {"rows a second": found["rows"] / found["seconds"]}


def _job(
    dataset: Path, seeds: Path, batches: int, hot_bytes: int, way: str, limit_bytes: int | None
) -> Any:
    told = way, dataset, seeds, batches, hot_bytes
    return run_job("benchmarks.training_job", *told, limit_bytes=limit_bytes)


def _build(place: Path, kind: str, nodes: int) -> None:
    """Build the dataset from what is made as it is asked for."""
    streams = Outgoing()
    spec = describe_build(
        place / kind,
        edges=_edges(kind, nodes),
        num_nodes=nodes,
        node_features={"x": _features(nodes), "y": np.arange(nodes) % CLASSES},
        memory_limit="1GiB",
        streams=streams,
    )
    run_build(spec, streams=streams)
    for file in (place / kind).rglob("*.safetensors"):
        drop_cache(file)


def _edges(kind: str, nodes: int) -> Iterator[_Ids]:
    random = np.random.default_rng(1)
    for _ in range(0, nodes * _EDGES_A_NODE, _CHUNK):
        sources = _drawn(kind, random, nodes, _CHUNK)
        yield np.stack([sources, random.integers(0, nodes, _CHUNK)])


def _features(nodes: int) -> Iterator[npt.NDArray[np.float16]]:
    random = np.random.default_rng(2)
    rows = random.standard_normal((_CHUNK // 16, DIMENSIONS), np.float32).astype(np.float16)
    for start in range(0, nodes, len(rows)):
        yield rows[: nodes - start]


def _drawn(kind: str, random: np.random.Generator, nodes: int, count: int) -> _Ids:
    """Node ids: uniform, or with a popularity that falls with the rank (Zipf, exponent 1)."""
    if kind == "uniform":
        return random.integers(0, nodes, count)
    ranks = np.exp(random.random(count) * np.log(nodes)).astype(np.int64) - 1
    ids: _Ids = ranks * _ODD % nodes
    return ids


if __name__ == "__main__":
    sys.exit(main([zipf, uniform]))
