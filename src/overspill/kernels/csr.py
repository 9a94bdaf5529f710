"""Build the rows of one bucket: count, place, sort within the row.

Bottleneck: random access to the counters and the output, which a bucket's size keeps in the cache.
Algorithm: counting sort over one array that holds first the counts, then each row's next place and
at the end each row's end; short rows by insertion, others by quicksort. Limits: a bucket's edges
and rows fit memory; rows longer than `LONG_ROW` are left to numpy's vectorised sort.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]
_SHORT_ROW = 24
LONG_ROW = 2048


@kernel
def place_edges(pairs: npt.NDArray[Any], base: int, ends: Ids, indices: npt.NDArray[Any]) -> None:
    """Counting sort of (source, target) pairs by target.

    Args:
        pairs: (n, 2) source and target ids, every target in [base, base + rows).
        base: The first row's id.
        ends: (rows,) filled with where each row ends; whatever it held before is overwritten.
        indices: (n,) filled with the sources, row after row, in the order of the input.
    """
    ends[:] = 0
    for position in range(pairs.shape[0]):
        ends[pairs[position, 1] - base] += 1
    before = 0
    for row in range(ends.shape[0]):
        count = ends[row]
        ends[row] = before
        before += count
    for position in range(pairs.shape[0]):
        row = pairs[position, 1] - base
        at = ends[row]
        indices[at] = pairs[position, 0]
        ends[row] = at + 1


@kernel
def sort_rows(ends: Ids, indices: npt.NDArray[Any], long_rows: Ids) -> int:
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
