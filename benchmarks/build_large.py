"""Building 500 million edges from .npy beside sequential I/O of the same bytes.

That is plain I/O, and I/O past the page cache, which is what the device can do: of this many bytes
the cache alone makes plain I/O slower than a build. Ours runs under a hard memory limit of 1 GiB.
Nothing else is compared: of this many edges, what sorts in memory needs more of it than most
machines have.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.build import (
    DEVICE,
    EDGES_A_NODE,
    OURS,
    device_copy,
    limited_build,
    moved_bytes,
    plain_copy,
    uniform_ids,
    write_edges,
)
from benchmarks.command import main
from benchmarks.harness import Bound, Case, SpeedTarget
from benchmarks.place import require_disk

DEFAULT_BYTES = 8_000_000_000


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case, with its edges in a file; at most 29 bytes an edge are on the disk at a time.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the edges, 16 bytes each; 500 million of them by default.

    Yields:
        The case.
    """
    edges = max(EDGES_A_NODE, (DEFAULT_BYTES if nbytes is None else nbytes) // 16)
    nodes = edges // EDGES_A_NODE
    moved = moved_bytes(edges, nodes)
    require_disk(directory, 16 * edges + sum(moved))
    place = directory / "overspill-benchmark-build-large"
    place.mkdir()
    try:
        source = write_edges(place / "uniform.npy", edges, nodes, uniform_ids)
        yield [
            Case(
                name=f"build {edges:,} edges, {nodes:,} nodes from npy",
                contenders=[
                    limited_build(place, OURS, source, edges=edges, nodes=nodes),
                    plain_copy(place, source, *moved),
                    device_copy(place, source, *moved),
                ],
                baseline=OURS,
                limit=DEVICE,
                targets=[
                    SpeedTarget(of=OURS, against=DEVICE, at_least=0.75),
                    Bound(of=OURS, figure="peak anonymous MiB", at_most=400),
                ],
            )
        ]
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main([opened]))
