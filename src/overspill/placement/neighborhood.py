"""The most nodes and edges of each type that sampling can reach: arithmetic over fan-outs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class GraphSize:
    """How large a graph, or a batch of it, is.

    Attributes:
        nodes: By node type.
        edges: By edge type.
    """

    nodes: Mapping[str, int]
    edges: Mapping[EdgeType, int]

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(self.edges.values())


def bound_neighborhood(
    seeds: Mapping[str, int],
    fan_outs: Mapping[EdgeType, Sequence[int]],
    *,
    graph: GraphSize,
    replace: bool,
    distinct: bool,
    trees: bool = False,
) -> GraphSize:
    """The most nodes and edges that sampling can reach.

    Args:
        seeds: Seeds of a batch, by node type.
        fan_outs: By edge type one a hop; -1 for all neighbours.
        graph: Nodes and edges of the graph.
        replace: Whether an edge may be drawn twice.
        distinct: Whether no seed comes twice in a batch; a repeated one samples for itself.
        trees: Whether each seed is a tree of its own, in which every node and edge may come again.

    Returns:
        Nodes and edges of the largest batch.
    """
    copies = max(sum(seeds.values()), 1) if trees else 1
    most = {type: count * copies for type, count in graph.nodes.items()}
    frontier = {type: seeds.get(type, 0) for type in most}
    found, edges = dict.fromkeys(most, 0), dict.fromkeys(fan_outs, 0)
    repeats = 1 if distinct or trees else max(sum(seeds.values()), 1)
    for hop in range(max((len(held) for held in fan_outs.values()), default=0)):
        fresh = dict.fromkeys(most, 0)
        for key, held in fan_outs.items():
            every = graph.edges[key] * (copies if trees else repeats)
            picks = every if held[hop] < 0 else frontier[key[2]] * held[hop]
            if frontier[key[2]] == 0:
                picks = 0
            if not replace:
                picks = min(picks, every)
            edges[key] += picks
            fresh[key[0]] += picks
        frontier = {type: min(count, most[type]) for type, count in fresh.items()}
        found = {type: min(count + frontier[type], most[type]) for type, count in found.items()}
        repeats = 1
    if not replace and (distinct or trees):
        # Each node is expanded once.
        edges = {key: min(count, graph.edges[key] * copies) for key, count in edges.items()}
    return GraphSize({type: seeds.get(type, 0) + count for type, count in found.items()}, edges)
