"""The rates of this machine, found in a few seconds: disk, build, sampling and copying.

Each is measured on so little that it tells the order of magnitude of the machine that day, not the
last tenth: rates of virtual disks drift by a factor of two. What lies between machines cannot be
found by one of them: network, Ray's hand-over and round trips stay as they were assumed or given.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from overspill.build.child import run_build
from overspill.build.describe import describe_build
from overspill.cluster.planning.rates import ASSUMED, Rates
from overspill.errors import DiskRefusedError, SpillDirError
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.streams import stream_key
from overspill.linux.cache import drop_cache
from overspill.linux.cgroups import usable_cpus
from overspill.linux.mounts import filesystem_type, is_memory_backed
from overspill.linux.random_reads import read_randomly
from overspill.linux.sequential import read_sequentially, write_sequentially
from overspill.storage.spill_files import spare_bytes

_MIB = 1 << 20
MEASURED = (
    "cores",
    "disk_write",
    "disk_read",
    "random_reads",
    "split_edges",
    "build_edges",
    "checksum",
    "start",
    "sample_edges",
    "copy",
)
_FILE_BYTES = 128 * _MIB
# Fewer, and what is measured is how a build begins.
_EDGES, _NODES = 8_000_000, 200_000
_ROW_BYTES = 512
# What the files of the probe hold at a time: one of noise, and a graph with its input and scratch.
ROOM_BYTES = _FILE_BYTES + (16 + 8 + 4) * _EDGES + (2 * _ROW_BYTES + 16) * _NODES + 16 * _MIB
_SECONDS = 0.4
_BATCH = 1024
_CHECKSUMMED = 64
_GATHERED = 100_000
_FAN_OUTS = [10, 10]
Told = Callable[[int, int], None]


def measure_rates(
    directory: str | Path, *, rates: Rates = ASSUMED, told: Told = lambda *_: None
) -> Rates:
    """Measure what one machine can tell of itself; takes 5 to 10 s and leaves nothing.

    Writes 128 MiB past the page cache, reads them in order and at random, builds a graph of 8
    million edges with rows of 512 B, samples it and copies rows. Blocks; one thread at a time.

    Args:
        directory: An existing directory on the disk where parts will lie.
        rates: Where what is not measured comes from.
        told: Called with how many of the steps are done, and how many there are.

    Returns:
        The same rates with `cores`, `disk_write`, `disk_read`, `random_reads`, `split_edges`,
        `build_edges`, `checksum`, `start`, `sample_edges` and `copy` measured.

    Raises:
        SpillDirError: The directory cannot be used, or lies in memory.
        DiskRefusedError: Too little room (412 MiB), or the disk refused.
        NoRoomError: Too little memory for a build.
        UnavailableError: Not 64-bit Linux.
    """
    found: dict[str, float] = {"cores": usable_cpus()}
    with _place_in(Path(directory)) as work:
        for number, step in enumerate((_disk, _building, _reading)):
            told(number, 3)
            found |= step(work)
    told(3, 3)
    return rates.having("measured", **found)


def _disk(work: Path) -> dict[str, float]:
    path, noise = work / "noise.bin", np.random.default_rng(0).bytes(_MIB)
    start = time.perf_counter()
    write_sequentially(path, _FILE_BYTES, noise)
    written = time.perf_counter()
    read_sequentially(path)
    read = time.perf_counter()
    drop_cache(path)
    at_random = read_randomly(path, seconds=_SECONDS).per_second
    path.unlink()
    return {
        "disk_write": _FILE_BYTES / (written - start),
        "disk_read": _FILE_BYTES / (read - written),
        "random_reads": at_random,
        "checksum": _checksummed(noise),
    }


def _building(work: Path) -> dict[str, float]:
    """Edges a second and core: of a build in small, whose files are cached."""
    edges, rows = work / "edges.npy", work / "rows.npy"
    random = np.random.default_rng(1)
    _save(edges, random.integers(0, _NODES, (2, _EDGES)))
    _save(rows, np.zeros((_NODES, _ROW_BYTES), np.uint8))
    spec = describe_build(work / "graph", edges=edges, node_features={"x": rows}, num_nodes=_NODES)
    start = time.perf_counter()
    done = run_build(spec)
    waited = time.perf_counter() - start - done["seconds"]
    phases, each = done["phase_seconds"], _EDGES / usable_cpus()
    return {
        "split_edges": each / phases["partition"],
        "build_edges": each / phases["build rows"],
        "start": waited,
    }


def _reading(work: Path) -> dict[str, float]:
    dataset = open_dataset(work / "graph")
    _sampled(dataset, seconds=0)  # compiles, or loads from the cache
    return {
        "sample_edges": _sampled(dataset, seconds=_SECONDS),
        "copy": _copied(dataset, seconds=_SECONDS),
    }


def _sampled(dataset: Dataset, *, seconds: float) -> float:
    """Edges a second of one core, in memory."""
    sampler, random = dataset.sampler(_FAN_OUTS), np.random.default_rng(2)
    start, edges, batch = time.perf_counter(), 0, 0
    while not batch or time.perf_counter() - start < seconds:
        seeds = random.integers(0, _NODES, _BATCH)
        edges += sampler.sample(seeds, key=stream_key(batch)).num_edges()
        batch += 1
    return edges / (time.perf_counter() - start)


def _copied(dataset: Dataset, *, seconds: float) -> float:
    """Bytes a second of rows that one thread gathers in memory, into fresh memory as a batch's."""
    reader, random = dataset.row_reader("x"), np.random.default_rng(3)
    ids = random.integers(0, _NODES, min(_NODES, _GATHERED))
    reader.take(ids, np.empty((ids.size, _ROW_BYTES), np.uint8))  # from the file, if need be
    start, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - start < seconds:
        reader.take(ids, np.empty((ids.size, _ROW_BYTES), np.uint8))
        rounds += 1
    return rounds * ids.size * _ROW_BYTES / (time.perf_counter() - start)


def _checksummed(noise: bytes) -> float:
    """Bytes a second of one thread."""
    digest, start = hashlib.sha256(), time.perf_counter()
    for _ in range(_CHECKSUMMED):
        digest.update(noise)
    return _CHECKSUMMED * len(noise) / (time.perf_counter() - start)


@contextmanager
def _place_in(parent: Path) -> Iterator[Path]:
    if not parent.is_dir() or is_memory_backed(parent):
        what = f"on {filesystem_type(parent)}, which is memory" if parent.is_dir() else "absent"
        raise SpillDirError(
            f"the directory to measure is {what}",
            path=str(parent),
            remedy="name a directory on the disk where parts will lie",
        )
    room = spare_bytes(parent)
    if room < ROOM_BYTES:
        raise DiskRefusedError(
            "the probe's files do not fit this disk, of which a twentieth stays free",
            path=str(parent),
            needed_bytes=ROOM_BYTES,
            available_bytes=max(0, room),
            remedy="free some space, name another directory, or give the rates yourself",
        )
    try:
        made = tempfile.TemporaryDirectory(prefix="overspill-plan-", dir=parent)
    except OSError as error:
        raise SpillDirError(
            f"the directory to measure cannot be written: {error.strerror}",
            path=str(parent),
            errno=error.errno,
            remedy="name another directory",
        ) from error
    with made as name:
        yield Path(name)


def _save(path: Path, array: np.ndarray) -> None:
    try:
        np.save(path, array)
    except OSError as error:
        raise DiskRefusedError(
            f"cannot write {path.name}: {error.strerror}",
            path=str(path),
            errno=error.errno,
            needed_bytes=array.nbytes,
            remedy="free some space, or name another directory",
        ) from error
