"""Holds a batch to the size that memory was planned for."""

from __future__ import annotations

from overspill.errors import NoRoomError
from overspill.graph.sampling.spec import SampleLimit

_REMEDY = "sample fewer neighbours or smaller batches, or raise the memory limit"


class Admission:
    """Counts the edges of a batch and refuses what is too many.

    Args:
        limit: The largest neighbourhood; None for no limit.

    Attributes:
        edges: Edges of the batch that are complete.
    """

    def __init__(self, limit: SampleLimit | None) -> None:
        self._limit = limit
        self.edges = 0

    @property
    def left(self) -> int | None:
        """How many more edges there is room for; None for no limit."""
        return None if self._limit is None else self._limit.edges - self.edges

    def admit_edges(self, more: int) -> None:
        """Refuse more edges, beside those of the batch, than there is room for (NoRoomError)."""
        if self._limit is not None and self.edges + more > self._limit.edges:
            raise _outgrown(self.edges + more, "edges", self._limit.edges)

    def admit_nodes(self, count: int) -> None:
        """Refuse a batch of more nodes than there is room for (NoRoomError)."""
        if self._limit is not None and count > self._limit.nodes:
            raise _outgrown(count, "nodes", self._limit.nodes)


def _outgrown(count: int, what: str, most: int) -> NoRoomError:
    return NoRoomError(
        f"a batch reached {count} {what} where memory was planned for {most}", remedy=_REMEDY
    )
