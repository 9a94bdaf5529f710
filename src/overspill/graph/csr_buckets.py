"""Cut rows into buckets of so many edges, however unevenly the edges lie.

Algorithm: count the edges of some thousand cells of equal width; a cell that holds more than a
bucket is divided, level by level, down to single rows; neighbouring leaves are then joined. A hub
of more edges than a bucket becomes a bucket of its own: it has one row, so nothing is to be placed.
Bottleneck: a pass over the rows for each level, one where no cell is too heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overspill.kernels.radix import LEVEL_BITS, Levels, group_leaves

Ids = npt.NDArray[np.int64]
Table = npt.NDArray[np.int32]
# As many cells as a table has entries in the first-level cache.
_CELL_BITS = 14
_NODE = 1 << LEVEL_BITS


@dataclass(frozen=True)
class Buckets:
    """Consecutive ranges of rows.

    Attributes:
        levels: The table that leads from a row to its bucket.
        firsts: (buckets + 1,) the first row of each, and the number of rows.
        starts: (buckets + 1,) the edges before each, and the number of edges.
    """

    levels: Levels
    firsts: Ids
    starts: Ids

    def __len__(self) -> int:
        return len(self.firsts) - 1

    @property
    def most_rows(self) -> int:
        """Rows of the widest bucket."""
        return int(np.diff(self.firsts).max(initial=0))


@dataclass(frozen=True)
class _Leaves:
    """The ranges that are counted, in the order of their rows, and their places in the table."""

    firsts: Ids
    widths: Ids
    slots: Ids


def cut_buckets(
    count: Callable[[Levels, Ids], None], num_rows: int, *, most_edges: int, most_rows: int
) -> Buckets:
    """Cut rows into buckets.

    Args:
        count: Adds all edges to the counts of the leaves that a table leads to; called once for
            each level.
        num_rows: The number of rows, at least 1.
        most_edges: Edges of a bucket, unless a single row has more.
        most_rows: Rows of a bucket, at least a cell's.

    Returns:
        The buckets.
    """
    shift = max(0, (num_rows - 1).bit_length() - _CELL_BITS)
    cells = ((num_rows - 1) >> shift) + 1
    table = np.zeros(cells, np.int32)
    leaves = _children(0, num_rows, shift, np.arange(cells))
    below = shift
    while True:
        table[leaves.slots] = np.arange(len(leaves.slots))
        counts = np.zeros(len(leaves.slots), np.int64)
        count(_levels(shift, table, cells), counts)
        heavy = np.flatnonzero((counts > most_edges) & (leaves.widths > 1))
        if not heavy.size:
            break
        below = max(0, below - LEVEL_BITS)
        table, leaves = _divided(table, leaves, heavy, below, cells)
    groups = np.empty(len(counts), np.int32)
    buckets = group_leaves(counts, leaves.widths, (most_edges, most_rows), groups)
    table[leaves.slots] = groups
    begins = np.searchsorted(groups, np.arange(buckets))
    return Buckets(
        _levels(shift, table, cells),
        np.append(leaves.firsts[begins], num_rows),
        np.append(0, np.cumsum(np.add.reduceat(counts, begins))),
    )


def _children(first: int, end: int, shift: int, slots: Ids) -> _Leaves:
    """Leaves of equal width, the last one cut off at the end."""
    # Counted from the first: near the end of int64, a sum would overflow.
    offsets = np.arange(len(slots), dtype=np.int64) << shift
    widths = np.minimum(1 << shift, end - first - offsets)
    return _Leaves(first + offsets, widths, slots)


def _divided(
    table: Table, leaves: _Leaves, heavy: Ids, below: int, cells: int
) -> tuple[Table, _Leaves]:
    """Give each heavy leaf a node of its own, whose entries take its place among the leaves."""
    parts: list[_Leaves] = []
    done = 0
    size = len(table)
    table = np.append(table, np.zeros(len(heavy) * _NODE, np.int32))
    for number, leaf in enumerate(heavy.tolist()):
        base = size + number * _NODE
        table[leaves.slots[leaf]] = -1 - (base - cells) // _NODE
        first, width = int(leaves.firsts[leaf]), int(leaves.widths[leaf])
        children = ((width - 1) >> below) + 1
        parts.append(_some(leaves, slice(done, leaf)))
        parts.append(_children(first, first + width, below, base + np.arange(children)))
        done = leaf + 1
    parts.append(_some(leaves, slice(done, None)))
    names = ("firsts", "widths", "slots")
    joined = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return table, _Leaves(*joined)


def _some(leaves: _Leaves, which: slice) -> _Leaves:
    return _Leaves(leaves.firsts[which], leaves.widths[which], leaves.slots[which])


def _levels(shift: int, table: Table, cells: int) -> Levels:
    return shift, table[:cells], table[cells:].reshape(-1, _NODE)
