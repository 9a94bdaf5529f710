"""Rows read at random from a file larger than the memory they may use: cold, warm, half warm.

Cold, each contender is a process of its own, the file's cache dropped before it, with and without a
memory group of an eighth of the file around it, and runs for some seconds; fio, past the cache,
says what the device can do. Seconds are the contender's own, from its first row to its last,
without imports.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import fio
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures, SpeedTarget
from benchmarks.job import run_job
from benchmarks.place import place_for
from overspill.graph.paged import PagedArray
from overspill.linux.cache import drop_cache, release_mapped
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import FileRecord
from overspill.units import format_bytes

DEFAULT_BYTES = 8 << 30
# Of the file: the memory of the group, as far as a process can do with it.
LIMIT_SHARE, LEAST_LIMIT_BYTES = 8, 384 << 20
ROW_BYTES = 512
OURS, LIMIT = "overspill", "fio, depth 256"
_CONFINED = ", confined"
OURS_CONFINED = f"{OURS}{_CONFINED}"
RANDOM = "MADV_RANDOM indexing"
IN_MEMORY = "torch.index_select, in memory"
COPY = "as many bytes, copied"
_EXCESS = "bytes read / bytes of the pages wanted"
_WAYS = {
    OURS: "overspill",
    RANDOM: "mapped_random",
    "plain mmap indexing": "mapped",
    "pread, 32 threads": "pread",
}
# What a way may take of a round: a second a GiB, so that the device reads most of the file.
_MOST_SECONDS, _A_SECOND_BYTES = 4, 1 << 30
# What a row count is scaled to, so that contenders that ran equally long can be compared.
_ROWS = 100_000
_WARM_ROWS = 1 << 20
_STRETCH_BYTES = 1 << 20
_CHUNK_BYTES = 16 << 20
_Tensors = tuple[torch.Tensor, torch.Tensor]


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[Iterable[Case]]:
    """The cases, over a file that is written first.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the file; 8 GiB by default. An eighth of it is held in memory for the warm
            cases.

    Yields:
        The cases.
    """
    size = max((nbytes or DEFAULT_BYTES) // _STRETCH_BYTES, 16) * _STRETCH_BYTES
    with place_for(directory, size + size // 4 + (64 << 20)) as place:
        paths = [place / name for name in ("cold", "warm", "half")]
        records = [
            _write(path, size // share) for path, share in zip(paths, (1, 8, 8), strict=True)
        ]
        if fio.is_installed():
            fio.settled_rate(paths[0])
        yield _cases(paths, records)


def _cases(paths: list[Path], records: list[FileRecord]) -> Iterator[Case]:
    """One after the other: what the warm ones hold in memory would weigh on the cold one."""
    yield _cold(paths[0], records[0].nbytes)
    held = torch.from_numpy(np.fromfile(paths[1], np.uint8)[-records[1].shape[0] :])
    tensors = held.view(-1, ROW_BYTES), torch.zeros((_WARM_ROWS, ROW_BYTES), dtype=torch.uint8)
    for threads in (1, 2):
        yield _warm(paths[1], records[1], threads, tensors)
    yield _half(paths[2], records[2], tensors)


def _cold(path: Path, size: int) -> Case:
    seeds = itertools.count(1)
    limit_bytes = max(size // LIMIT_SHARE, LEAST_LIMIT_BYTES)
    seconds = seconds_for(size)
    contenders = [
        _job(f"{name}{confined}", way, path, seeds, limit_bytes=limit_bytes if confined else None)
        for name, way in _WAYS.items()
        for confined in ("", _CONFINED)
    ]
    targets: list[Any] = [
        SpeedTarget(of=OURS, against=RANDOM, at_least=3.0),
        SpeedTarget(of=OURS_CONFINED, against=f"{RANDOM}{_CONFINED}", at_least=3.0),
        SpeedTarget(of=OURS_CONFINED, against=OURS, at_least=0.9),
        Bound(of=OURS, figure=_EXCESS, at_most=1.1),
        Bound(of=OURS_CONFINED, figure=_EXCESS, at_most=1.1),
    ]
    if fio.is_installed():
        contenders.append(
            Contender(
                name=LIMIT,
                act=lambda _: fio.random_read_rate(path, seconds=seconds),
                timed=lambda rate: _ROWS / rate,
                nbytes=_ROWS * ROW_BYTES,
                note="reads of 4 KiB past the page cache, each block once",
            )
        )
        targets.insert(0, SpeedTarget(of=OURS, against=LIMIT, at_least=0.9))
    return Case(
        name=f"{ROW_BYTES} B rows at random, cold, from {format_bytes(size)}",
        contenders=contenders,
        baseline=OURS,
        limit=LIMIT if fio.is_installed() else None,
        targets=targets,
        absent=[] if fio.is_installed() else [f"fio ({fio.REMEDY})"],
    )


def seconds_for(size: int) -> int:
    """How long a way reads a file of a size."""
    return max(1, min(_MOST_SECONDS, size // _A_SECOND_BYTES))


def _job(
    name: str, way: str, path: Path, seeds: Iterator[int], *, limit_bytes: int | None
) -> Contender:
    def act(_given: object) -> dict[str, Any]:
        told = way, path, ROW_BYTES, seconds_for(path.stat().st_size), next(seeds)
        return run_job("benchmarks.gather_job", *told, limit_bytes=limit_bytes)

    def told(found: dict[str, Any] | None) -> Figures:
        if found is None:
            return {}
        return {
            "rows a second": found["rows"] / found["seconds"],
            _EXCESS: found["read_bytes"] / found["wanted_bytes"],
        }

    return Contender(
        name=name,
        before=partial(drop_cache, path),
        act=act,
        timed=lambda found: found["seconds"] * _ROWS / found["rows"],
        after=told,
        nbytes=_ROWS * ROW_BYTES,
        note="" if limit_bytes is None else f"in a memory group of {format_bytes(limit_bytes)}",
    )


def _warm(path: Path, record: FileRecord, threads: int, tensors: _Tensors) -> Case:
    array = _opened(path, record)
    array.elements(np.uint8).max()
    return Case(
        name=f"{ROW_BYTES} B rows at random, warm, threads={threads}",
        contenders=_in_memory(array, tensors, threads=threads, repeats=4),
        baseline=OURS,
        limit=COPY,
        targets=[SpeedTarget(of=OURS, against=IN_MEMORY, at_least=0.9)],
    )


def _half(path: Path, record: FileRecord, tensors: _Tensors) -> Case:
    array = _opened(path, record)
    ours, *peers = _in_memory(array, tensors, threads=1, repeats=1)

    def before() -> torch.Tensor:
        _halve(array)
        wanted: torch.Tensor = ours.before()
        return wanted

    return Case(
        name=f"{ROW_BYTES} B rows at random, every second MiB cached",
        contenders=[replace(ours, before=before), *peers],
        baseline=OURS,
        limit=COPY,
    )


def _opened(path: Path, record: FileRecord) -> PagedArray:
    return PagedArray(path, record, stride_bytes=ROW_BYTES, span_bytes=ROW_BYTES)


def _in_memory(
    array: PagedArray, tensors: _Tensors, *, threads: int, repeats: int
) -> list[Contender]:
    held, out = tensors
    random = np.random.default_rng(0)

    def ids() -> torch.Tensor:
        return torch.from_numpy(random.integers(0, len(held), len(out)))

    def select(wanted: torch.Tensor) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        torch.index_select(held, 0, wanted, out=out)
        torch.set_num_threads(before)

    def take(wanted: torch.Tensor) -> None:
        array.take(wanted.numpy(), out.numpy(), threads=threads)

    def told(_result: object) -> Figures:
        return {"pages asked for": array.pages_asked}

    def copy(_wanted: torch.Tensor) -> None:
        for start in range(0, len(out), len(held)):
            some = out[start : start + len(held)]
            some.copy_(held[: len(some)])

    moved: dict[str, Any] = {"before": ids, "repeats": repeats, "nbytes": out.nbytes}
    return [
        Contender(name=OURS, act=take, after=told, **moved),
        Contender(name=IN_MEMORY, act=select, **moved),
        Contender(name=COPY, act=copy, note="in order, from memory to memory", **moved),
    ]


def _halve(array: PagedArray) -> None:
    """Have every second stretch of a file in the page cache, and no other."""
    mapping = array.mapping
    release_mapped(mapping.address, mapping.nbytes, mapping.path)
    fd = os.open(mapping.path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for start in range(0, mapping.nbytes, 2 * _STRETCH_BYTES):
            os.pread(fd, _STRETCH_BYTES, start)
    finally:
        os.close(fd)


def _write(path: Path, nbytes: int) -> FileRecord:
    chunk = np.random.default_rng(0).integers(0, 256, _CHUNK_BYTES, dtype=np.uint8)
    with ArrayWriter(path, dtype="uint8", shape=(nbytes,)) as writer:
        for start in range(0, nbytes, _CHUNK_BYTES):
            writer.append(chunk[: nbytes - start])
    return writer.result


if __name__ == "__main__":
    sys.exit(main([opened]))
