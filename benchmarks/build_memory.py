"""How much memory a build takes for 20, 200 and 1,000 million edges, and with one and 8 threads.

The edges are made chunk by chunk and never stored as input; each build is a process of its own and
the one that makes them another, both in a memory group of 1 GiB. What is compared is the peak of
anonymous memory that the build's process measures of itself, imports included.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.build import EDGES_A_NODE, LIMIT_BYTES, moved_bytes
from benchmarks.command import main
from benchmarks.harness import Alike, Case, Contender, Figures
from benchmarks.job import run_job
from benchmarks.place import require_disk

DEFAULT_BYTES = 16_000_000_000
PEAK = "peak anonymous MiB"
# Of the largest number of edges: 20 and 200 of 1,000 million.
_SHARES = (50, 5, 1)
_THREADS = (1, 8)


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case; at most 13 bytes an edge are on the disk at a time.

    Args:
        directory: On the disk to build on.
        nbytes: Size of the largest graph's edges, 16 bytes each; 1,000 million of them by default.

    Yields:
        The case.
    """
    most = max(EDGES_A_NODE * _SHARES[0], (DEFAULT_BYTES if nbytes is None else nbytes) // 16)
    require_disk(directory, sum(moved_bytes(most, most // EDGES_A_NODE)))
    place = directory / "overspill-benchmark-build-memory"
    place.mkdir()
    try:
        sizes = [_contender(place, most // share) for share in _SHARES]
        threads = [_contender(place, most // _SHARES[0], threads=count) for count in _THREADS]
        yield [
            Case(
                name=f"peak memory of builds of up to {most:,} edges",
                contenders=[*sizes, *threads],
                baseline=sizes[0].name,
                targets=[
                    Alike(of=tuple(one.name for one in sizes), figure=PEAK, within=0.1),
                    Alike(of=tuple(one.name for one in threads), figure=PEAK, within=0.2),
                ],
            )
        ]
    finally:
        shutil.rmtree(place)


def _contender(place: Path, edges: int, *, threads: int | None = None) -> Contender:
    out = place / "out"
    threaded = "" if threads is None else f", {threads} threads" if threads > 1 else ", one thread"
    return Contender(
        name=f"{edges:,} edges{threaded}",
        act=lambda _: _built(out, edges, threads),
        after=partial(_removed, out),
        nbytes=16 * edges,
        point=("overspill", 16 * edges) if threads is None else None,
    )


def _built(out: Path, edges: int, threads: int | None) -> dict[str, Any]:
    told = (out, edges) if threads is None else (out, edges, threads)
    return run_job("benchmarks.build_memory_job", *told, limit_bytes=LIMIT_BYTES)


def _removed(out: Path, summary: dict[str, Any] | None) -> Figures:
    shutil.rmtree(out, ignore_errors=True)
    if summary is None:
        return {}
    return {
        PEAK: summary["peak_anon_bytes"] / (1 << 20),
        "MiB planned": summary["projected_bytes"] / (1 << 20),
        "million edges a second": summary["edges_per_second"] / 1e6,
    }


if __name__ == "__main__":
    sys.exit(main([opened]))
