"""Ranges of nodes that hold equal shares of nodes and edges, from counts of a few places.

The same cuts as `overspill.build.parting.split_owners.balanced_ranges`, without the degree of every
node: edges are counted by ranges of nodes first, which tells in which range each cut lies, and node
by node in those ranges then. Memory: 512 KiB, and 8 bytes a node of a range a part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
_MOST_RANGES = 1 << 16


def range_shift(count: int) -> int:
    """How many low bits of a node its range leaves out."""
    return max(0, (max(1, count) - 1).bit_length() - (_MOST_RANGES.bit_length() - 1))


class Balance:
    """Where the cuts of one node type lie.

    Args:
        count: Number of nodes.
        num_parts: Number of parts.
        coarse: Edges of each range's nodes.
        shift: How many low bits of a node its range leaves out.
    """

    def __init__(self, count: int, num_parts: int, coarse: Ids, *, shift: int) -> None:
        self._count, self._parts = count, num_parts
        starts = np.minimum(np.arange(len(coarse) + 1) << shift, count)
        self._starts = starts
        self._before = np.concatenate([[0], np.cumsum(coarse)])
        self._weights = starts + self._before
        self._total = int(self._weights[-1])

    def ranges(self) -> list[int]:
        """The ranges in which cuts lie, each once; their nodes are to be counted one by one."""
        return sorted({self._range_of(part) for part in range(1, self._parts)} - {-1})

    def nodes_of(self, number: int) -> tuple[int, int]:
        """The nodes of a range: the first, and the end."""
        return int(self._starts[number]), int(self._starts[number + 1])

    def bounds(self, fine: Mapping[int, Ids]) -> tuple[int, ...]:
        """Where each part begins, and all end.

        Args:
            fine: Of each range that `ranges` names, the edges of each of its nodes.
        """
        found = [0]
        for part in range(1, self._parts):
            number = self._range_of(part)
            if number < 0:
                found.append(0)
                continue
            first, last = self.nodes_of(number)
            ends = np.concatenate([[0], np.cumsum(fine[number])])
            weights = np.arange(first, last + 1) + int(self._before[number]) + ends
            share = part * self._total
            place = int(np.searchsorted(weights * self._parts, share, side="left"))
            cut = first + place
            if cut > found[-1]:
                over = self._parts * int(weights[place]) - share
                under = share - self._parts * int(weights[place - 1])
                cut -= under <= over
            found.append(max(cut, found[-1]))
        return (*found, self._count)

    def _range_of(self, part: int) -> int:
        """The range at whose end the parts up to this one have their share, and not before."""
        if not self._count:
            return -1
        share = part * self._total
        return bisect_left(self._weights[1:] * self._parts, share)
