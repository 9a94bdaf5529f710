"""Edges that are chosen where they lie, for a graph that does not lie here alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_Ids = npt.NDArray[np.int64]
# Makes room for so many edges: their places (none where they are not wanted), the local ids of
# their destinations, and their sources as they are stored. Raises where they are too many.
Room = Callable[[int], tuple[_Ids, _Ids, npt.NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What one hop wants of the in-edges of one type, without weights and times.

    Attributes:
        fan_out: Edges wanted a destination; -1 for all.
        replace: Whether one may be drawn twice.
        key: The random stream (uint64).
        first_local: Local id of the first destination.
        with_places: Whether the places of the edges are wanted.
        most: The most edges there may be; None for no limit. More need not be fetched.
    """

    fan_out: int
    replace: bool
    key: np.uint64
    first_local: int
    with_places: bool
    most: int | None


class Picks(Protocol):
    """Chooses in-edges of one type, and tells their sources, by one request to each who has some.

    The same as extents read, `overspill.kernels.sample.pick_edges`, and sources read.
    """

    def pick(self, ids: _Ids, wish: Wish, room: Room) -> int:
        """Choose for each destination, in their order; how many edges.

        Args:
            ids: int64 (destinations,), within the graph.
            wish: What is wanted.
            room: Called once, with the number of edges.

        Raises:
            FormatError: The topology is damaged.
            NoRoomError: More edges than `room` gives room for.
        """
        ...
