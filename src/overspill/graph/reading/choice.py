"""Which rows to hold within a budget: those of the most uses a byte.

Bottleneck: the passes over the counts, two for each type. Algorithm: a histogram of the counts
first, with the bins of all types sorted by uses a byte, down to where the budget ends; then the ids
of these bins are collected, in order, so that they come sorted. Memory: 13 MiB a type at most, and
8 bytes a chosen row, whatever the graph.

Limits: counts above 65,535 are told apart to 16 bits. Of the last bin, the first ids are taken.
Rows without a use are not held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from overspill.graph.reading.array_keys import Owner

Ids = npt.NDArray[np.int64]
_EXACT_BITS = 16


class Uses(Protocol):
    """How often each row of a type is used, or is likely to be."""

    def pieces(self) -> Iterator[Ids]:
        """Yield int64 counts of consecutive rows, none negative; again for each call."""

    def forget(self) -> None:
        """Let go of the memory that is kept from one call to the next."""


def share_budget(
    uses: Mapping[Owner, Uses], costs: Mapping[Owner, int], budget_bytes: int
) -> dict[Owner, Ids]:
    """Choose rows of several types.

    Args:
        uses: By type.
        costs: Bytes that holding one row of a type takes.
        budget_bytes: What all may take together.

    Returns:
        Sorted ids, int64, by type.
    """
    histograms = {owner: _histogram(held) for owner, held in uses.items()}
    taken = _bins_within(histograms, costs, budget_bytes)
    chosen = {}
    for owner, held in uses.items():
        chosen[owner] = _collected(held, *taken[owner])
        held.forget()
    return chosen


def _histogram(uses: Uses) -> Ids:
    """Rows by bin."""
    total = np.zeros(0, np.int64)
    for counts in uses.pieces():
        found = np.bincount(_bins(counts))
        if found.size > total.size:
            total, found = found.astype(np.int64), total
        total[: found.size] += found
    return total


def _bins(counts: Ids) -> Ids:
    """Counts to bins, in their order: exact ones first, then 2**15 for each power of two."""
    shifts = np.maximum(np.frexp(counts.astype(np.float64))[1] - _EXACT_BITS, 0).astype(np.int64)
    bins: Ids = (shifts << (_EXACT_BITS - 1)) + (counts >> shifts)
    return bins


def _counts(bins: Ids) -> npt.NDArray[np.float64]:
    """The smallest count of each bin."""
    shifts = np.maximum((bins >> (_EXACT_BITS - 1)) - 1, 0)
    leading = (bins - (shifts << (_EXACT_BITS - 1))).astype(np.float64)
    counts: npt.NDArray[np.float64] = np.ldexp(leading, shifts)
    return counts


def _bins_within(
    histograms: Mapping[Owner, Ids], costs: Mapping[Owner, int], budget_bytes: int
) -> dict[Owner, tuple[int, int, int]]:
    """Of each type the lowest bin that is taken, how many rows of it, and how many in all."""
    owners = list(histograms)
    bins = [np.flatnonzero(histograms[owner])[::-1] for owner in owners]
    bins = [found[found > 0] for found in bins]
    which = np.repeat(np.arange(len(owners)), [found.size for found in bins])
    flat = np.concatenate(bins) if bins else np.zeros(0, np.int64)
    rows = np.concatenate([histograms[owners[i]][found] for i, found in enumerate(bins)] or [flat])
    cost = np.array([max(1, costs[owner]) for owner in owners], np.int64)[which]
    order = np.argsort(-_counts(flat) / cost, kind="stable")
    before = np.cumsum((rows * cost)[order]) - (rows * cost)[order]
    fitting = np.clip((budget_bytes - before) // cost[order], 0, rows[order])
    taken = {}
    for place, owner in enumerate(owners):
        mine = order[(which[order] == place) & (fitting > 0)]
        counts = fitting[(which[order] == place) & (fitting > 0)]
        if mine.size:
            taken[owner] = int(flat[mine[-1]]), int(counts[-1]), int(counts.sum())
        else:
            taken[owner] = 0, 0, 0
    return taken


def _collected(uses: Uses, lowest: int, of_lowest: int, total: int) -> Ids:
    """The ids of the bins above the lowest, and the first ones of it."""
    ids, found, first = np.empty(total, np.int64), 0, 0
    for counts in uses.pieces() if total else ():
        bins = _bins(counts)
        wanted = bins > lowest
        edge = np.flatnonzero(bins == lowest)[:of_lowest]
        of_lowest -= edge.size
        wanted[edge] = True
        places = np.flatnonzero(wanted)
        ids[found : found + places.size] = first + places
        found, first = found + places.size, first + counts.size
    return ids[:found]
