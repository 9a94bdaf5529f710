"""A power-law trace of batches, cold, in 1 GiB of memory: alone, together, with hot rows, packed.

Each contender is a process of its own in a memory group, the caches of its files dropped before it;
fio, past the cache, says how many random pages the device gives. Seconds are the contender's own.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fio
from benchmarks.command import main
from benchmarks.harness import Case, Contender, Figures, SpeedTarget
from benchmarks.job import run_job
from benchmarks.lookahead_job import BATCHES, LOOKAHEAD
from benchmarks.place import place_for
from overspill.linux.cache import drop_cache
from overspill.storage.arrays import ArrayWriter
from overspill.storage.manifest import Manifest, NodeTypeRecord, publish_manifest
from overspill.units import format_bytes

DEFAULT_BYTES = 4 << 30
LIMIT_BYTES = 1 << 30
ROW_BYTES = 512
LIMIT = "fio, depth 256"
ALONE, TOGETHER = "one after the other", f"lookahead={LOOKAHEAD}"
PACKED = "packed, read again"
_WAYS = {
    ALONE: "gather",
    f"{ALONE}, hot rows": "gather_hot",
    TOGETHER: "lookahead",
    f"{TOGETHER}, hot rows": "lookahead_hot",
    PACKED: "packed",
}
_SECONDS = 4
_ROWS = 100_000
_CHUNK_BYTES = 16 << 20


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case, over a dataset that is written first, and its pack.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the features; 4 GiB by default.

    Yields:
        The case.
    """
    size = max((nbytes or DEFAULT_BYTES) // _CHUNK_BYTES, 1) * _CHUNK_BYTES
    with place_for(directory, 2 * size) as place:
        _write(place / "dataset", size)
        told = _job("pack", place)
        rate = told["rows"] / told["seconds"]
        note = f"made at {rate:,.0f} rows a second, {BATCHES} batches"
        if fio.is_installed():
            fio.settled_rate(place / "dataset" / "x")
        yield [_case(place, size, note)]


def _case(place: Path, size: int, packing: str) -> Case:
    contenders = [
        Contender(
            name=name,
            before=partial(_make_cold, place),
            act=partial(_acted, way, place),
            timed=lambda found: found["seconds"] * _ROWS / found["rows"],
            after=_told,
            nbytes=_ROWS * ROW_BYTES,
            note=packing if name == PACKED else "",
        )
        for name, way in _WAYS.items()
    ]
    targets = []
    if fio.is_installed():
        path = place / "dataset" / "x"
        contenders.append(
            Contender(
                name=LIMIT,
                act=lambda _: fio.random_read_rate(path, seconds=4),
                timed=lambda rate: _ROWS / rate,
                nbytes=_ROWS * ROW_BYTES,
                note="reads of 4 KiB past the page cache, a row each",
            )
        )
        targets = [
            SpeedTarget(of=TOGETHER, against=LIMIT, at_least=2.0),
            SpeedTarget(of=PACKED, against=LIMIT, at_least=10.0),
        ]
    return Case(
        name=f"{ROW_BYTES} B rows of a power-law trace, {format_bytes(size)}, cold, 1 GiB",
        contenders=contenders,
        baseline=TOGETHER,
        limit=LIMIT if fio.is_installed() else None,
        targets=targets,
        absent=[] if fio.is_installed() else [f"fio ({fio.REMEDY})"],
    )


def _acted(way: str, place: Path, _given: object) -> dict[str, Any]:
    return _job(way, place)


def _job(way: str, place: Path) -> dict[str, Any]:
    told = way, place / "dataset", place / "pack", _SECONDS
    return run_job("benchmarks.lookahead_job", *told, limit_bytes=LIMIT_BYTES)


def _told(found: dict[str, Any] | None) -> Figures:
    if found is None:
        return {}
    figures = {
        "rows a second": found["rows"] / found["seconds"],
        "bytes read a row": found["read_bytes"] / found["rows"],
    }
    if found.get("hot_rate"):
        figures["share of hot rows"] = found["hot_rate"]
    return figures


def _make_cold(place: Path) -> None:
    for path in place.rglob("*"):
        if path.is_file():
            drop_cache(path)


def _write(directory: Path, nbytes: int) -> None:
    directory.mkdir()
    chunk = np.random.default_rng(0).integers(0, 256, _CHUNK_BYTES, dtype=np.uint8)
    shape = (nbytes // ROW_BYTES, ROW_BYTES)
    with ArrayWriter(directory / "x", dtype="uint8", shape=shape) as writer:
        for _ in range(nbytes // _CHUNK_BYTES):
            writer.append(chunk)
    node = NodeTypeRecord("node", shape[0], {"x": writer.result})
    publish_manifest(directory, Manifest(uuid.uuid4().hex, {"node": node}, {}))


if __name__ == "__main__":
    sys.exit(main([opened]))
