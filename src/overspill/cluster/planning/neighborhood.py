"""How large a sampled batch is, expected in a graph whose ends are drawn at random.

In-degrees are Poisson's with the graph's mean, and each edge leads to any node. A destination then
gives E[min(fan-out, degree)] edges, which is the sum of P(degree > j) over j below the fan-out; and
m edges into N nodes of which k are known find (N - k)(1 - (1 - 1/N)**m) others. Limits: where a few
nodes have most edges, later hops meet them again and again, so that batches have fewer nodes than
this; where nodes with many in-edges are met more often, each gives up to the fan-out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from overspill.cluster.planning.workload import Workload

# So many standard deviations above the mean, a Poisson's tail is beyond float64.
_TAIL = 40.0


@dataclass(frozen=True)
class Hop:
    """One hop of a batch.

    Attributes:
        frontier: Nodes whose in-edges are drawn.
        edges: Edges that are drawn.
    """

    frontier: float
    edges: float


@dataclass(frozen=True)
class Batch:
    """A batch as it is expected.

    Attributes:
        hops: In order.
        nodes: Distinct nodes, seeds included, whose rows are gathered.
    """

    hops: tuple[Hop, ...]
    nodes: float

    @property
    def edges(self) -> float:
        """Sampled edges."""
        return sum(hop.edges for hop in self.hops)


def expected_batch(work: Workload) -> Batch:
    """The batch that distinct seeds give."""
    frontier = known = float(min(work.batch_size, work.seeds, work.nodes))
    hops = []
    for fan_out in work.num_neighbors:
        drawn = frontier * expected_picks(fan_out, work.degree)
        hops.append(Hop(frontier, drawn))
        frontier = expected_new(drawn, known, work.nodes)
        known += frontier
    return Batch(tuple(hops), known)


def expected_picks(fan_out: int, degree: float) -> float:
    """Edges that a node gives: E[min(fan_out, D)] of a Poisson D; -1 takes all."""
    if fan_out < 0 or fan_out > degree + _TAIL * (math.sqrt(degree) + 1):
        return degree
    if degree == 0:
        return 0.0
    above, total = 1.0, 0.0
    for count in range(fan_out):
        above -= math.exp(count * math.log(degree) - degree - math.lgamma(count + 1))
        total += max(0.0, above)
    return min(total, degree)


def expected_new(drawn: float, known: float, nodes: int) -> float:
    """Nodes not known before that so many ends find, each any of the nodes."""
    if nodes == 1:
        return 0.0
    return -(nodes - known) * math.expm1(drawn * math.log1p(-1 / nodes))
