"""Building a graph from an edge file: the whole process, start to finish, inputs not cached.

Ours runs under a hard memory limit of 1 GiB; the peers run without one. The limit to compare with
is sequential I/O of the same bytes, plain and past the page cache: the input read, what is set
aside written and read, the rows written.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from benchmarks.build_peers import PEERS
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures, SpeedTarget
from benchmarks.peers import peer
from benchmarks.place import require_disk
from overspill.linux.cache import drop_cache
from overspill.linux.confine import MemoryGroup
from overspill.linux.sequential import read_sequentially, write_sequentially

DEFAULT_BYTES = 3_200_000_000
OURS = "overspill"
PLAIN = "the same bytes by plain sequential I/O"
DEVICE = "the same bytes past the page cache"
LIMIT_BYTES = 1 << 30
EDGES_A_NODE = 10
# Of fewer, starting a process is most of a build, whoever builds: no speed is aimed at.
JUDGED_EDGES = 100_000_000
_PIECE = 1 << 20
_PATTERN = bytes(range(256))
_CHUNK_EDGES = 1 << 22
_SCHEMA = pa.schema([("src", pa.int64()), ("dst", pa.int64())])
# What ``overspill build`` does, and prints the build's own measurement of its peak.
_CALL = (
    "import sys; from overspill.build import describe_build, run_build; print(run_build("
    "describe_build(sys.argv[2], edges=sys.argv[1], num_nodes=int(sys.argv[3]), "
    "memory_limit='1GiB', sort_within_row={sort}))['peak_anon_bytes'])"
)


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """Uniform and power-law edges from .npy, and the uniform ones from Parquet and CSV.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the edges, 16 bytes each; 200 million of them by default.

    Yields:
        The cases.
    """
    edges = max(EDGES_A_NODE, (nbytes or DEFAULT_BYTES) // 16)
    nodes = max(1, edges // EDGES_A_NODE)
    place = directory / "overspill-benchmark-build"
    require_disk(directory, 110 * edges)
    place.mkdir()
    try:
        uniform = write_edges(place / "uniform.npy", edges, nodes, uniform_ids)
        skewed = write_edges(place / "skewed.npy", edges, nodes, _skewed)
        parquet = _write_parquet(place / "uniform.parquet", uniform)
        text = _write_csv(place / "uniform.csv", uniform)
        yield [
            _case(place, "npy", uniform, (edges, nodes), skewed=skewed),
            _case(place, "Parquet", parquet, (edges, nodes)),
            _case(place, "CSV", text, (edges, nodes)),
        ]
    finally:
        shutil.rmtree(place)


def _case(
    place: Path, kind: str, source: Path, size: tuple[int, int], *, skewed: Path | None = None
) -> Case:
    edges, nodes = size
    ours = partial(limited_build, place, edges=edges, nodes=nodes)
    contenders = [ours(OURS, source), ours("overspill, input order in rows", source, sort=False)]
    targets: list[SpeedTarget | Bound] = [Bound(of=OURS, figure="peak anonymous MiB", at_most=400)]
    if skewed is not None:
        name = "overspill, power law and a hub of a fifth"
        contenders.append(ours(name, skewed))
        targets.append(SpeedTarget(of=name, against=OURS, at_least=1 / 1.3))
    absent = []
    for name in PEERS:
        if peer(name) is None:
            absent.append(name)
            continue
        contenders.append(_peer(place, name, source, nodes))
        targets.append(SpeedTarget(of=OURS, against=name, at_least=3 if kind == "npy" else 2))
    moved = moved_bytes(edges, nodes)
    contenders += [plain_copy(place, source, *moved), device_copy(place, source, *moved)]
    targets.append(SpeedTarget(of=OURS, against=PLAIN, at_least=1 / 1.6))
    return Case(
        name=f"build {edges:,} edges, {nodes:,} nodes from {kind}",
        contenders=contenders,
        baseline=OURS,
        limit=DEVICE,
        targets=[one for one in targets if isinstance(one, Bound) or edges >= JUDGED_EDGES],
        absent=absent,
    )


def moved_bytes(edges: int, nodes: int) -> tuple[int, int]:
    """What a build sets aside, two ids an edge, and its rows: an id an edge, a number a node."""
    return 8 * edges, 4 * edges + 8 * (nodes + 1)


def limited_build(
    place: Path, name: str, source: Path, *, edges: int, nodes: int, sort: bool = True
) -> Contender:
    """A build of ours in a group of 1 GiB, of an edge file that is not cached."""
    out = place / "out"
    script = _CALL.format(sort=sort)

    def act(_: object) -> Figures:
        with MemoryGroup.create(LIMIT_BYTES, name_hint="overspill-benchmark") as group:
            argv = [sys.executable, "-c", script, str(source), str(out), str(nodes)]
            done = subprocess.run(group.command(argv), check=True, stdout=subprocess.PIPE)
        return {"peak anonymous MiB": int(done.stdout) / (1 << 20)}

    return Contender(
        name=name,
        before=partial(_cold, source),
        act=act,
        after=partial(_removed, out),
        nbytes=16 * edges,
        note="under a hard limit of 1 GiB; the peak is the build's process's, imports included",
    )


def _peer(place: Path, name: str, source: Path, nodes: int) -> Contender:
    out = place / "out"

    def act(_: object) -> Figures:
        out.mkdir()
        argv = [
            sys.executable,
            "-m",
            "benchmarks.build_peers",
            name,
            str(source),
            str(nodes),
            str(out),
        ]
        with subprocess.Popen(argv) as child:
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, argv)
        _sync(out)
        return {"peak resident MiB": _resident(used)}

    return Contender(
        name=name, before=partial(_cold, source), act=act, after=partial(_removed, out)
    )


def _resident(used: resource.struct_rusage) -> float:
    return used.ru_maxrss / 1024


def plain_copy(place: Path, source: Path, spool: int, rows: int) -> Contender:
    """The source read, so many bytes set aside, read again, and as many as the rows written."""
    out = place / "out"

    def act(_: object) -> None:
        out.mkdir()
        move_plainly(source, out, spool, rows)

    return Contender(
        name=PLAIN, before=partial(_cold, source), act=act, after=partial(_removed, out)
    )


def move_plainly(source: Path, out: Path, spool: int, rows: int) -> None:
    """Move as many bytes as a build does, with sequential I/O, into a directory."""
    aside = out / "aside"
    _read(source)
    _write(aside, spool)
    drop_cache(aside)
    _read(aside)
    _write(out / "rows", rows)


def device_copy(place: Path, source: Path, spool: int, rows: int) -> Contender:
    """The same bytes past the page cache, several requests in flight: what the device can do."""
    out = place / "out"
    aside = out / "aside"

    def act(_: object) -> None:
        out.mkdir()
        read_sequentially(source)
        write_sequentially(aside, spool, _PATTERN)
        read_sequentially(aside)
        write_sequentially(out / "rows", rows, _PATTERN)

    return Contender(
        name=DEVICE, before=partial(_cold, source), act=act, after=partial(_removed, out)
    )


def _read(path: Path) -> None:
    buffer = bytearray(_PIECE)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _write(path: Path, nbytes: int) -> None:
    piece = np.random.default_rng(0).bytes(_PIECE)
    with path.open("wb", buffering=0) as file:
        for start in range(0, nbytes, _PIECE):
            file.write(piece[: min(_PIECE, nbytes - start)])
        os.fsync(file.fileno())


def _cold(source: Path) -> None:
    drop_cache(source)


def _removed(out: Path, figures: Any) -> Figures | None:
    shutil.rmtree(out, ignore_errors=True)
    return figures if isinstance(figures, dict) else None


def _sync(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


Draw = Callable[[np.random.Generator, int, int], Any]


def uniform_ids(random: np.random.Generator, count: int, nodes: int) -> Any:
    """Ids of which each is as likely."""
    return random.integers(0, nodes, count)


def _skewed(random: np.random.Generator, count: int, nodes: int) -> Any:
    """A power law of exponent 2.1 by inverse transform, spread over the ids, and one hub."""
    ranks = ((1 - random.random(count)) ** (-1 / 1.1)).astype(np.int64)
    targets = (np.minimum(ranks, nodes) * 2_654_435_761) % nodes
    targets[random.random(count) < 0.2] = nodes // 3
    return targets


def write_edges(path: Path, edges: int, nodes: int, draw: Draw) -> Path:
    """A (2, E) file of int64: uniform sources, and targets by a rule."""
    random = np.random.default_rng(1)
    held = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(2, edges))
    for row, rule in enumerate((uniform_ids, draw)):
        for first in range(0, edges, _CHUNK_EDGES):
            part = held[row, first : first + _CHUNK_EDGES]
            part[:] = rule(random, len(part), nodes)
    held.flush()
    return path


def _write_parquet(path: Path, edges: Path) -> Path:
    with parquet.ParquetWriter(path, _SCHEMA) as writer:
        for table in _tables(edges):
            writer.write_table(table)
    return path


def _write_csv(path: Path, edges: Path) -> Path:
    with csv.CSVWriter(path, _SCHEMA) as writer:
        for table in _tables(edges):
            writer.write_table(table)
    return path


def _tables(edges: Path) -> Iterator[pa.Table]:
    held = np.load(edges, mmap_mode="r")
    for first in range(0, held.shape[1], _CHUNK_EDGES):
        part = np.asarray(held[:, first : first + _CHUNK_EDGES])
        yield pa.table({"src": part[0], "dst": part[1]})


if __name__ == "__main__":
    sys.exit(main([opened]))
