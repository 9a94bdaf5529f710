"""All edges between the nodes of a batch, each once: by destination, then in the order of its row.

Bottleneck: every in-edge of every node of the batch is read. Memory: the edges that are kept, and
at most 24 bytes an edge of `candidates.MOST_EDGES` of those that are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import overspill.graph.sampling.candidates as whole_rows
from overspill.graph.sampling.candidates import Candidates
from overspill.graph.sampling.hops import HopEdges
from overspill.graph.sampling.in_edges import InEdges
from overspill.graph.sampling.node_lists import NodeList
from overspill.graph.sampling.ranked import Frontier
from overspill.kernels.relabel import keep_known
from overspill.kernels.sample_ranked import cut_group

_NO_TREES = np.empty(0, np.int32)


def induce(
    edges: InEdges,
    frontier: Frontier,
    lists: tuple[NodeList, NodeList],
    found: HopEdges,
    *,
    held: Candidates,
    admit: Callable[[int], None],
) -> None:
    """Find the edges of one type between nodes of a batch.

    Args:
        edges: The type.
        frontier: All destinations, those that are repeats with no extent.
        lists: Nodes of the source and of the target type.
        found: Gets the edges; any earlier ones go.
        held: Buffers for what is read.
        admit: Called with the number of edges; raises where that is too many.

    Raises:
        FormatError: A source is no node.
        NoRoomError: More edges than were planned for.
    """
    sources, targets = lists
    table, shift = sources.table.with_room(0, 0)
    found.count = 0
    for part in _parts(frontier):
        places = held.places(part.extents)
        times = held.times(edges, places)
        values = held.sources(edges, places)
        first = part.first_local
        trees = targets.trees(first, first + len(part.extents)) if targets.in_trees else _NO_TREES
        count = found.count
        done = keep_known(
            table,
            shift,
            (part.extents, first, trees, sources.num_nodes),
            (values, times, part.limits),
            found.all_room(count + places.size, keep=count),
            count,
        )
        if done < 0:
            raise edges.damaged_source(int(values[-1 - done]))
        found.count = done
        admit(done)


def _parts(frontier: Frontier) -> Iterator[Frontier]:
    """The destinations in groups of a bounded number of edges, hubs cut into pieces."""
    first = 0
    extents = frontier.extents
    while first < len(extents):
        end = cut_group(extents, first, 0, False, whole_rows.MOST_EDGES)
        group = frontier.part(first, end)
        start, stop = group.extents[0].tolist()
        if end > first + 1 or stop - start <= whole_rows.MOST_EDGES:
            yield group
        else:
            for low in range(start, stop, whole_rows.MOST_EDGES):
                piece = np.array([[low, min(low + whole_rows.MOST_EDGES, stop)]], np.int64)
                yield Frontier(
                    extents=piece, first_local=group.first_local, limits=group.limits, key=group.key
                )
        first = end
