"""What becomes of self loops, and of edges of an undirected graph, chunk by chunk.

Edges of an undirected graph are added both ways, a self loop once, in the order of the input, so
that which of two parallel edges comes first never depends on the sizes of buffers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


class Edges(NamedTuple):
    """Edges of one chunk, as node ids, and the input row of each where those are kept."""

    sources: Ids
    targets: Ids
    rows: Ids | None


def with_policies(edges: Edges, *, drop_loops: bool, both_ways: bool) -> tuple[Edges, int]:
    """Drop self loops, or run edges both ways, or both.

    Args:
        edges: A chunk, whose ends are of one type.
        drop_loops: Whether self loops go.
        both_ways: Whether each edge, but no self loop, also runs the other way.

    Returns:
        The edges, and how many self loops there were.
    """
    loops = edges.sources == edges.targets
    found = int(np.count_nonzero(loops))
    if found and drop_loops:
        edges = _chosen(edges, ~loops)
        loops = np.zeros(len(edges.sources), np.bool_)
    return (_both_ways(edges, loops) if both_ways else edges), found


def _chosen(edges: Edges, keep: npt.NDArray[np.bool_]) -> Edges:
    return Edges(
        edges.sources[keep], edges.targets[keep], None if edges.rows is None else edges.rows[keep]
    )


def _both_ways(edges: Edges, loops: npt.NDArray[np.bool_]) -> Edges:
    """Each edge and its reverse, one after the other; a self loop once."""
    count = len(edges.sources)
    sources, targets = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    sources[::2], sources[1::2] = edges.sources, edges.targets
    targets[::2], targets[1::2] = edges.targets, edges.sources
    both = Edges(sources, targets, None if edges.rows is None else np.repeat(edges.rows, 2))
    if not loops.any():
        return both
    keep = np.ones(2 * count, np.bool_)
    keep[1::2] = ~loops
    return _chosen(both, keep)
