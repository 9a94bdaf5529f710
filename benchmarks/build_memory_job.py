"""A build that `build_memory` measures: ``python -m benchmarks.build_memory_job OUT EDGES [N]``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build import describe_build, run_build
from overspill.build.sending.outgoing import Outgoing

_CHUNK_EDGES = 1 << 18
_EDGES_A_NODE = 10


def main(out: str, edges: int, threads: int | None) -> dict[str, Any]:
    """Build from edges that are made as they are asked for; returns the build's summary."""
    nodes = edges // _EDGES_A_NODE
    streams = Outgoing()
    spec = describe_build(
        out,
        edges=made_edges(edges, nodes),
        num_nodes=nodes,
        memory_limit="1GiB",
        threads=threads,
        streams=streams,
    )
    summary = run_build(spec, streams=streams)
    if (summary["nodes"], summary["edges"]) != (nodes, edges):
        raise RuntimeError(f"{summary} where {edges} edges were made")
    return summary


def made_edges(edges: int, nodes: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield uniform edges, (2, k) at a time."""
    random = np.random.default_rng(1)
    for first in range(0, edges, _CHUNK_EDGES):
        yield random.integers(0, nodes, (2, min(_CHUNK_EDGES, edges - first)))


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[2:]]
    print(json.dumps(main(sys.argv[1], given[0], given[1] if len(given) > 1 else None)))
