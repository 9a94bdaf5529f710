"""Partition edges by ranges of rows, then order each range's edges within the cache.

Bottleneck: memory bandwidth and address translation. Algorithm: a table leads from a row to its
bucket; an edge goes to its bucket's staged line, which is written to its place when it is full
(software write combining), so that a pass over the edges makes whole-line writes to a few hundred
streams. A bucket's edges then fit the second-level cache: they are ordered by counting sort, by
row alone, or, where each has something beside it, by least significant digits of the column first;
else packed records are sorted as they are. Everything is stable.

Limits: some thousand buckets; columns below 2**32 where records are packed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]
Records = npt.NDArray[np.uint64]
# Each level of the table below the first tells so many bits of a row's number.
LEVEL_BITS = 8
# Edges a staged line, a power of two: four cache lines of int32 ids.
LINE_EDGES = 64
# Shift; entry of each cell; nodes (n, 2**LEVEL_BITS): an entry below zero leads to a node.
Levels = tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]]


@kernel
def _descend(entry: int, row: int, shift: int, nodes: npt.NDArray[np.int32]) -> int:
    while entry < 0:
        below = max(0, shift - LEVEL_BITS)
        entry = nodes[-1 - entry, (row >> below) & ((1 << (shift - below)) - 1)]
        shift = below
    return entry


@kernel
def count_leaves(rows: Ids, levels: Levels, counts: Ids) -> None:
    """Count rows by the leaf that the table leads to.

    Args:
        rows: (n,) within the table's rows.
        levels: The table; entries of zero and more are leaves.
        counts: (leaves,), added to.
    """
    shift, top, nodes = levels
    for position in range(rows.shape[0]):
        row = rows[position]
        counts[_descend(top[row >> shift], row, shift, nodes)] += 1


@kernel
def group_leaves(
    counts: Ids, widths: Ids, limits: tuple[int, int], groups: npt.NDArray[np.int32]
) -> int:
    """Join neighbouring leaves to buckets, as many as the limits allow.

    Args:
        counts: (leaves,) edges of each, in the order of their rows.
        widths: (leaves,) rows of each.
        limits: Edges and rows of a bucket; a leaf beyond them is a bucket of its own.
        groups: (leaves,) filled with each leaf's bucket.

    Returns:
        The number of buckets.
    """
    most_edges, most_rows = limits
    group = -1
    edges, rows = most_edges, most_rows
    for leaf in range(counts.shape[0]):
        edges += counts[leaf]
        rows += widths[leaf]
        if group < 0 or edges > most_edges or rows > most_rows:
            group += 1
            edges, rows = counts[leaf], widths[leaf]
        groups[leaf] = group
    return group + 1


@kernel
def partition_edges(
    edges: tuple[Ids, Ids],
    levels: Levels,
    buckets: tuple[Ids, Ids, Ids],
    staged: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    out: tuple[npt.NDArray[Any], npt.NDArray[Any]],
) -> None:
    """Append edges to their buckets, through lines that `drain_lines` empties at the end.

    Args:
        edges: Rows and columns, (n,) each.
        levels: The table that leads from a row to its bucket.
        buckets: First row of each; its first place in `out`; its next place, updated.
        staged: (buckets, LINE_EDGES) columns, and rows counted from the bucket's first.
        out: Columns and rows, of the same dtypes: the buckets, one after another.
    """
    rows, columns = edges
    shift, top, nodes = levels
    firsts, starts, nexts = buckets
    staged_columns, staged_rows = staged
    out_columns, out_rows = out
    # Unsigned: an index that could be negative costs a comparison each.
    mask = np.uint64(LINE_EDGES - 1)
    for position in range(np.uint64(rows.shape[0])):
        row = rows[position]
        entry = top[np.uint64(row) >> np.uint64(shift)]
        if entry < 0:
            entry = _descend(entry, row, shift, nodes)
        bucket = np.uint64(entry)
        at = np.uint64(nexts[bucket])
        slot = at & mask
        staged_columns[bucket, slot] = columns[position]
        staged_rows[bucket, slot] = row - firsts[bucket]
        nexts[bucket] = at + np.uint64(1)
        if slot == mask:
            line = np.int64(at) + 1 - LINE_EDGES
            skip = max(0, starts[bucket] - line)
            end = line + LINE_EDGES
            # Views, because an index that could be negative would keep the loops from vectorising.
            source, target = staged_columns[bucket, skip:], out_columns[line + skip : end]
            for k in range(source.shape[0]):
                target[k] = source[k]
            low_source, low_target = staged_rows[bucket, skip:], out_rows[line + skip : end]
            for k in range(low_source.shape[0]):
                low_target[k] = low_source[k]


@kernel
def drain_lines(
    buckets: tuple[Ids, Ids, Ids],
    staged: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    out: tuple[npt.NDArray[Any], npt.NDArray[Any]],
) -> None:
    """Write what `partition_edges` left in lines that are not full; arguments as there."""
    _firsts, starts, nexts = buckets
    for bucket in range(nexts.shape[0]):
        end = nexts[bucket]
        line = end - end % LINE_EDGES
        for place in range(max(line, starts[bucket]), end):
            out[0][place] = staged[0][bucket, place - line]
            out[1][place] = staged[1][bucket, place - line]


@kernel
def partition_items(
    rows: Ids, levels: Levels, nexts: Ids, items: npt.NDArray[Any], out: npt.NDArray[Any]
) -> None:
    """Append each edge's item to its row's bucket.

    Args:
        rows: (n,) rows.
        levels: The table that leads from a row to its bucket.
        nexts: (buckets,) each one's next place, updated.
        items: (n, words).
        out: (edges, words): the buckets, one after another.
    """
    shift, top, nodes = levels
    span = items.shape[1]
    for position in range(rows.shape[0]):
        row = rows[position]
        bucket = _descend(top[row >> shift], row, shift, nodes)
        at = nexts[bucket]
        nexts[bucket] = at + 1
        for word in range(span):
            out[at, word] = items[position, word]


@kernel
def start_rows(rows: npt.NDArray[Any], ends: Ids) -> None:
    """Count a bucket's rows and turn the counts into where each row starts.

    Args:
        rows: (n,) rows counted from the bucket's first.
        ends: (rows,) overwritten.
    """
    ends[:] = 0
    for position in range(rows.shape[0]):
        ends[rows[position]] += 1
    before = 0
    for row in range(ends.shape[0]):
        count = ends[row]
        ends[row] = before
        before += count


@kernel
def place_columns(
    rows: npt.NDArray[Any], columns: npt.NDArray[Any], ends: Ids, out: npt.NDArray[Any]
) -> None:
    """Counting sort of a bucket by row.

    Args:
        rows: (n,) rows counted from the bucket's first.
        columns: (n,) columns.
        ends: (rows,) where each row starts; where it ends, afterwards.
        out: (n,) filled with the columns.
    """
    for position in range(rows.shape[0]):
        row = rows[position]
        at = ends[row]
        out[at] = columns[position]
        ends[row] = at + 1


@kernel
def pack_records(rows: npt.NDArray[Any], columns: npt.NDArray[Any], records: Records) -> None:
    """Pack each row, below 2**32, above its column, below 2**32."""
    for position in range(columns.shape[0]):
        high = np.uint64(rows[position]) << np.uint64(32)
        records[position] = high | np.uint64(columns[position])


@kernel
def number_records(columns: npt.NDArray[Any], records: Records) -> None:
    """Pack each column, below 2**32, above its position."""
    for position in range(columns.shape[0]):
        high = np.uint64(columns[position]) << np.uint64(32)
        records[position] = high | np.uint64(position)


@kernel
def sort_by_digit(records: Records, shift: int, counts: Ids, out: Records) -> None:
    """One pass of a least significant digit radix sort.

    Args:
        records: (n,).
        shift: Bits below the digit.
        counts: (2**bits of the digit,) overwritten.
        out: (n,) filled.
    """
    counts[:] = 0
    mask = np.uint64(counts.shape[0] - 1)
    low = np.uint64(shift)
    for position in range(records.shape[0]):
        counts[(records[position] >> low) & mask] += 1
    before = 0
    for digit in range(counts.shape[0]):
        count = counts[digit]
        counts[digit] = before
        before += count
    for position in range(records.shape[0]):
        record = records[position]
        digit = (record >> low) & mask
        at = counts[digit]
        out[at] = record
        counts[digit] = at + 1


@kernel
def unpack_columns(records: Records, out: npt.NDArray[Any]) -> None:
    """Take the low half of each record."""
    mask = np.uint64(0xFFFFFFFF)
    for position in range(records.shape[0]):
        out[position] = records[position] & mask


@kernel
def place_numbered(
    records: Records, rows: npt.NDArray[Any], ends: Ids, out: npt.NDArray[Any], order: Ids
) -> None:
    """Counting sort of records of column and position by row.

    Args:
        records: (n,).
        rows: (n,) the row of each position.
        ends: As in `place_columns`.
        out: (n,) filled with the columns.
        order: (n,) filled with the positions.
    """
    mask = np.uint64(0xFFFFFFFF)
    for number in range(records.shape[0]):
        record = records[number]
        position = record & mask
        row = rows[position]
        at = ends[row]
        out[at] = record >> np.uint64(32)
        order[at] = np.int64(position)
        ends[row] = at + 1


@kernel
def unpack_records(records: Records, out: npt.NDArray[Any], order: Ids) -> None:
    """Take records of column and position apart.

    Args:
        records: (n,).
        out: (n,) filled with the columns.
        order: (n,) filled with the positions.
    """
    mask = np.uint64(0xFFFFFFFF)
    for number in range(records.shape[0]):
        record = records[number]
        out[number] = record >> np.uint64(32)
        order[number] = np.int64(record & mask)
