"""Build the rows of one bucket: count, place, sort within the row, drop what repeats.

Bottleneck: random access to the counters and the output, which a bucket's size keeps in the cache.
Algorithm: counting sort over one array that holds first the counts, then each row's next place and
at the end each row's end; short rows by insertion, others by quicksort. Pairs of 32-bit ids that
are wanted sorted do better: read as one integer, target above source, numpy's vectorised sort
places and sorts them at once, and a scan takes them apart. Limits: a bucket's edges and rows fit
memory; rows longer than `LONG_ROW` are left to numpy's sort.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]
_SHORT_ROW = 24
LONG_ROW = 2048


@kernel
def place_edges(pairs: Numbers, base: int, ends: Ids, indices: Numbers) -> None:
    """Counting sort of (source, target) pairs by target.

    Args:
        pairs: (n, 2) source and target ids, every target in [base, base + rows).
        base: The first row's id.
        ends: (rows,) filled with where each row ends; whatever it held before is overwritten.
        indices: (n,) filled with the sources, row after row, in the order of the input.
    """
    _start_rows(pairs, base, ends)
    for position in range(pairs.shape[0]):
        row = pairs[position, 1] - base
        at = ends[row]
        indices[at] = pairs[position, 0]
        ends[row] = at + 1


@kernel
def place_keys(records: Numbers, base: int, ends: Ids, keys: Ids) -> None:
    """The same of (source, target, edge id) below 2**31: source above edge id, in one integer."""
    _start_rows(records, base, ends)
    for position in range(records.shape[0]):
        row = records[position, 1] - base
        at = ends[row]
        keys[at] = np.int64(records[position, 0]) << 32 | np.int64(records[position, 2])
        ends[row] = at + 1


@kernel
def place_records(records: Numbers, base: int, ends: Ids, sources: Ids, edge_ids: Ids) -> None:
    """The same of (source, target, edge id) of any size, into two arrays."""
    _start_rows(records, base, ends)
    for position in range(records.shape[0]):
        row = records[position, 1] - base
        at = ends[row]
        sources[at] = records[position, 0]
        edge_ids[at] = records[position, 2]
        ends[row] = at + 1


@kernel
def _start_rows(records: Numbers, base: int, ends: Ids) -> None:
    ends[:] = 0
    for position in range(records.shape[0]):
        ends[records[position, 1] - base] += 1
    before = 0
    for row in range(ends.shape[0]):
        count = ends[row]
        ends[row] = before
        before += count


@kernel
def sort_rows(ends: Ids, indices: Numbers, long_rows: Ids) -> int:
    """Sort each row in place, except the long ones, which it lists.

    Args:
        ends: (rows,) where each row ends.
        indices: The rows, one after another.
        long_rows: Filled with the numbers of rows longer than `LONG_ROW`; room for
            ``len(indices) // LONG_ROW + 1``.

    Returns:
        How many long rows there are.
    """
    found = 0
    start = 0
    for row in range(ends.shape[0]):
        end = ends[row]
        length = end - start
        if length > LONG_ROW:
            long_rows[found] = row
            found += 1
        elif length > _SHORT_ROW:
            indices[start:end].sort()
        else:
            for position in range(start + 1, end):
                value = indices[position]
                at = position
                while at > start and indices[at - 1] > value:
                    indices[at] = indices[at - 1]
                    at -= 1
                indices[at] = value
        start = end
    return found


@kernel
def sort_rows_with_ids(ends: Ids, sources: Ids, edge_ids: Ids, long_rows: Ids) -> int:
    """The same of two arrays: by source, then by edge id; only short rows, the others are listed.

    Args:
        ends: (rows,) where each row ends.
        sources: The rows, one after another.
        edge_ids: Beside them.
        long_rows: Filled with the rows that are not short; room for ``len(sources) // 25 + 1``.

    Returns:
        How many of these there are.
    """
    found = 0
    start = 0
    for row in range(ends.shape[0]):
        end = ends[row]
        if end - start > _SHORT_ROW:
            long_rows[found] = row
            found += 1
            start = end
            continue
        for position in range(start + 1, end):
            source, edge = sources[position], edge_ids[position]
            at = position
            while at > start and (
                sources[at - 1] > source or (sources[at - 1] == source and edge_ids[at - 1] > edge)
            ):
                sources[at], edge_ids[at] = sources[at - 1], edge_ids[at - 1]
                at -= 1
            sources[at], edge_ids[at] = source, edge
        start = end
    return found


@kernel
def split_keys(keys: Ids, sources: Numbers, edge_ids: Numbers) -> None:
    """Take the keys of `place_keys` apart."""
    for position in range(keys.shape[0]):
        key = keys[position]
        sources[position] = key >> 32
        edge_ids[position] = key & 0x7FFFFFFF


@kernel
def unpack_pairs(
    ids: Numbers, place: tuple[int, int, int], base: int, ends: Ids, counts: Ids, drop: bool
) -> int:
    """Turn sorted pairs into rows, within the array that holds them.

    Args:
        ids: Source, target, source, target, ...; the sources are moved towards its start.
        place: Where the first pair stands, how many pairs there are, and where the first source
            goes; that is not behind the first pair.
        base: The first row's id.
        ends: (rows,) filled with where each row ends.
        counts: Filled, where it is not empty, with how often each pair was there.
        drop: Whether a pair is kept once.

    Returns:
        How many pairs repeat the one before.
    """
    first, pairs, at = place
    before = at
    repeats = 0
    previous_source, previous_target = -1, -1
    ends[:] = -1
    for number in range(pairs):
        source, target = ids[first + 2 * number], ids[first + 2 * number + 1]
        if source == previous_source and target == previous_target:
            repeats += 1
            if drop:
                if counts.shape[0] > 0:
                    counts[at - 1] += 1
                continue
        previous_source, previous_target = source, target
        ids[at] = source
        if counts.shape[0] > 0:
            counts[at] = 1
        at += 1
        # For each edge and without a branch: where a new row begins cannot be predicted.
        ends[target - base] = at
    for row in range(ends.shape[0]):
        before = max(before, ends[row])
        ends[row] = before
    return repeats


@kernel
def drop_repeats(ends: Ids, sources: Numbers, edge_ids: Numbers, counts: Ids, drop: bool) -> int:
    """Keep the first of equal sources in each sorted row, moving the rows together.

    Args:
        ends: (rows,) where each row ends; changed with the rows.
        sources: The rows, one after another, each sorted.
        edge_ids: Beside them, or empty.
        counts: Filled, where it is not empty, with how often each source was there.
        drop: False only counts, and changes nothing.

    Returns:
        How many were dropped, or would have been.
    """
    kept = 0
    repeats = 0
    start = 0
    previous = sources[0] if sources.shape[0] > 0 else sources.shape[0]
    for row in range(ends.shape[0]):
        end = ends[row]
        for position in range(start, end):
            source = sources[position]
            if position > start and source == previous:
                repeats += 1
                if drop:
                    if counts.shape[0] > 0:
                        counts[kept - 1] += 1
                    continue
            previous = source
            if drop:
                sources[kept] = source
                if edge_ids.shape[0] > 0:
                    edge_ids[kept] = edge_ids[position]
                if counts.shape[0] > 0:
                    counts[kept] = 1
                kept += 1
        if drop:
            ends[row] = kept
        start = end
    return repeats


@kernel
def drop_scattered_repeats(
    ends: Ids, sources: Numbers, edge_ids: Numbers, counts: Ids, table: npt.NDArray[np.int32]
) -> int:
    """The same where rows are not sorted: the first of equal sources stays where it is.

    Args:
        ends: (rows,) where each row ends; changed with the rows.
        sources: The rows, one after another.
        edge_ids: Beside them, or empty.
        counts: Filled, where it is not empty, with how often each source was there.
        table: A power of two long, at least twice the longest row; overwritten.

    Returns:
        How many were dropped.
    """
    table[:] = -1
    mask = table.shape[0] - 1
    kept = 0
    start = 0
    for row in range(ends.shape[0]):
        end, first = ends[row], kept
        for position in range(start, end):
            source = sources[position]
            folded = (np.int64(source) ^ (np.int64(source) >> 28)) & 0xFFFFFFF
            slot = (folded * 0x9E3779B1 >> 11) & mask
            # What earlier rows left lies before this row's first and counts as empty.
            while table[slot] >= first and sources[table[slot]] != source:
                slot = (slot + 1) & mask
            if table[slot] >= first:
                if counts.shape[0] > 0:
                    counts[table[slot]] += 1
                continue
            table[slot] = kept
            sources[kept] = source
            if edge_ids.shape[0] > 0:
                edge_ids[kept] = edge_ids[position]
            if counts.shape[0] > 0:
                counts[kept] = 1
            kept += 1
        ends[row] = kept
        start = end
    return start - kept
