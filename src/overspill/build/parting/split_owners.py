"""Which part owns each node: by ranges of ids, or by a hash of the id.

Both answer alike: how many nodes each part owns, how many edges it has in a layout, and, as the
nodes go by, the part of each. Ranges are cut by counting nodes, or by the prefix sum of what the
nodes' rows hold, which the row ends of the layouts already are: a few binary searches find the cuts
without a pass. Bottleneck: none; memory: 8 bytes a part, and the pieces of a pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle

import numpy as np
import numpy.typing as npt

from overspill.build.moving.row_ends import RowEnds
from overspill.build.moving.row_sources import ended
from overspill.kernels.route import add_lengths, hash_nodes

Ids = npt.NDArray[np.int64]
Runs = tuple[npt.NDArray[np.uint32], Ids]
NODES_A_PIECE = 1 << 16
_BUFFERS = 3


@dataclass(frozen=True)
class RangeOwners:
    """Parts of consecutive nodes each.

    Attributes:
        bounds: int64 (parts + 1,): part i has the nodes from bounds[i] to bounds[i + 1], exclusive.
    """

    bounds: Ids

    @property
    def count(self) -> int:
        """Number of nodes."""
        return int(self.bounds[-1])

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.bounds) - 1

    @cached_property
    def nodes(self) -> list[int]:
        """Nodes of each part."""
        return [int(count) for count in np.diff(self.bounds)]

    def cuts(self, ends: RowEnds | None) -> list[int]:
        """Where each part begins among the rows, or among what the rows hold; and where all end."""
        if ends is None:
            return [int(bound) for bound in self.bounds]
        with ends.opened() as places:
            found = [places.at(row) for row in self.bounds.tolist()]
        if sorted(found) != found or found[0] or found[-1] != ends.total:
            raise ends.damaged()
        return found

    def edges(self, ends: RowEnds) -> list[int]:
        """What the rows of each part hold."""
        return [int(count) for count in np.diff(self.cuts(ends))]


@dataclass(frozen=True)
class HashOwners:
    """Parts of nodes scattered by a hash.

    Attributes:
        count: Number of nodes.
        num_parts: Number of parts.
    """

    count: int
    num_parts: int

    @cached_property
    def nodes(self) -> list[int]:
        """Nodes of each part; hashes all ids once, about 3 ns each."""
        found = np.zeros(self.num_parts, np.int64)
        for parts, _ in self.runs(None, 1):
            found += np.bincount(parts, minlength=self.num_parts)
        return [int(count) for count in found]

    def edges(self, ends: RowEnds) -> list[int]:
        """What the rows of each part hold; reads the row ends once."""
        found = np.zeros(self.num_parts, np.int64)
        with ended(self.runs(ends, 1)) as runs:
            for parts, lengths in runs:
                add_lengths(parts, lengths, found)
        return [int(count) for count in found]

    def runs(self, ends: RowEnds | None, words: int) -> Iterator[Runs]:
        """Yield the part of each node, and how many words belong to it, as the nodes go by.

        Args:
            ends: Where the nodes' rows end; None: each node has one.
            words: Words a row, or a thing that a row holds.

        Yields:
            Pieces of nodes, valid until the third after.
        """
        size = min(NODES_A_PIECE, max(1, self.count))
        buffers = cycle([np.empty(size, np.uint32) for _ in range(_BUFFERS)])
        first = 0
        with ended(
            _lengths(self.count, size, words) if ends is None else ends.lengths(8 * size)
        ) as all_lengths:
            for lengths in all_lengths:
                parts = next(buffers)[: len(lengths)]
                hash_nodes(first, self.num_parts, parts)
                if ends is not None and words != 1:
                    lengths *= words
                yield parts, lengths
                first += len(lengths)


Owners = RangeOwners | HashOwners


def equal_ranges(count: int, num_parts: int) -> RangeOwners:
    """Ranges of equal numbers of nodes, to one; the later ones have it."""
    return RangeOwners(np.array([part * count // num_parts for part in range(num_parts + 1)]))


def balanced_ranges(count: int, num_parts: int, layouts: Sequence[RowEnds]) -> RangeOwners:
    """Ranges that hold equal shares of nodes and edges, as near as whole nodes allow.

    A node weighs 1 and what its rows hold. A range is at most the largest weight of a node off its
    share; where one node is more than a share, ranges beside it are empty.

    Args:
        count: Number of nodes.
        num_parts: Number of ranges.
        layouts: The row ends of each layout that counts.

    Raises:
        FormatError: Row ends are damaged.
        StaleFileError: A file was cut or cannot be read.
    """
    with ExitStack() as stack:
        places = [stack.enter_context(ends.opened()) for ends in layouts]

        def weight(node: int) -> int:
            """Of all nodes before this one."""
            return node + sum(ends.at(node) for ends in places)

        total = count + sum(ends.total for ends in layouts)
        bounds = [0]
        for part in range(1, num_parts):
            share = part * total
            cut = (
                bisect_left(
                    range(bounds[-1], count), share, key=lambda node: num_parts * weight(node)
                )
                + bounds[-1]
            )
            if cut > bounds[-1]:
                over, under = num_parts * weight(cut) - share, share - num_parts * weight(cut - 1)
                cut -= under <= over
            bounds.append(cut)
    return RangeOwners(np.array([*bounds, count]))


def _lengths(count: int, size: int, words: int) -> Iterator[Ids]:
    held = np.full(size, words, np.int64)
    for first in range(0, count, size):
        yield held[: count - first]
