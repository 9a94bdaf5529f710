"""Tell which part of a partition has each row, and put rows and edges of parts together again.

Bottleneck: memory bandwidth, and a few compares a row; rows that are neighbours are mostly of one
part, so the part of the row before is tried first. Positions are sorted by group by counting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel
from overspill.kernels.sample import mixed

Ids = npt.NDArray[np.int64]
Parts = npt.NDArray[np.uint32]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def find_ranges(ids: Ids, ends: Ids, parts: Parts) -> None:
    """Give the part of each row where parts are consecutive ranges.

    Args:
        ids: Rows, from 0 and below the last end.
        ends: Where each part ends, exclusive, never decreasing.
        parts: Filled, (ids,).
    """
    part, first, end = 0, np.int64(0), ends[0]
    for i in range(ids.size):
        row = ids[i]
        if row < first or row >= end:
            low, high = 0, ends.size - 1
            while low < high:
                middle = (low + high) // 2
                if ends[middle] > row:
                    high = middle
                else:
                    low = middle + 1
            part, end = low, ends[low]
            first = ends[low - 1] if low else np.int64(0)
        parts[i] = part


@kernel
def find_hashed(ids: Ids, num_parts: int, parts: Parts) -> None:
    """Give the part of each row where they are scattered: splitmix64 of it, modulo the parts.

    Args:
        ids: Rows, from 0.
        num_parts: Number of parts.
        parts: Filled, (ids,).
    """
    for i in range(ids.size):
        parts[i] = mixed(np.uint64(ids[i]) + _GOLDEN) % np.uint64(num_parts)


@kernel
def sort_by_group(parts: Parts, group_of: Ids, starts: Ids, order: Ids) -> None:
    """List positions by the group of their part, in their order within each.

    Args:
        parts: The part of each position.
        group_of: The group of each part.
        starts: (groups + 1,), zeros; filled: where each group begins in `order`, and where all end.
        order: Filled, (parts,).
    """
    for i in range(parts.size):
        starts[group_of[parts[i]] + 1] += 1
    for group in range(1, starts.size):
        starts[group] += starts[group - 1]
    for i in range(parts.size):
        group = group_of[parts[i]]
        order[starts[group]] = i
        starts[group] += 1
    for group in range(starts.size - 1, 0, -1):
        starts[group] = starts[group - 1]
    starts[0] = 0


@kernel
def scatter_rows(rows: npt.NDArray[Any], places: Ids, out: npt.NDArray[Any]) -> None:
    """Copy rows to their places.

    Args:
        rows: (n, span) words.
        places: (n,), within `out`.
        out: (more, span) words, filled in part.
    """
    for i in range(places.size):
        row = np.uint64(places[i])
        for j in range(np.uint64(out.shape[1])):
            out[row, j] = rows[i, j]


@kernel
def place_picks(
    asked: tuple[Ids, int],
    counts: npt.NDArray[Any],
    begins: Ids,
    picked: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    out: tuple[Ids, Ids, npt.NDArray[Any]],
) -> None:
    """Put the edges that were picked for some destinations where those of all belong.

    Args:
        asked: Positions of the destinations in the frontier, and the local id of its first.
        counts: Edges of each of these destinations.
        begins: (frontier,): where the edges of each destination begin in `out`.
        picked: Places and sources of the edges, destination after destination.
        out: Places, local ids of the destinations and sources, filled in part. Places may be left
            out: both of them are empty then.
    """
    positions, first_local = asked
    given_places, given_sources = picked
    places, columns, sources = out
    done = 0
    for i in range(positions.size):
        begin = begins[positions[i]]
        local = first_local + positions[i]
        for j in range(counts[i]):
            columns[begin + j] = local
            sources[begin + j] = given_sources[done + j]
        if given_places.size:
            for j in range(counts[i]):
                places[begin + j] = given_places[done + j]
        done += counts[i]
