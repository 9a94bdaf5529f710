"""Choose in-edges of a frontier: uniform, with or without replacement, or all of them.

Bottleneck: the cache misses of the reads around these loops; the draws themselves cost a few
nanoseconds. Algorithm: every destination has a random stream of its own, derived from the key of
the batch and the destination's place in it, so the outcome depends neither on how the frontier is
cut nor on who samples it. Streams are splitmix64 (Steele, Lea and Flood, 2014); ranges are drawn
without bias by multiply and reject (Lemire, 2019); subsets by Floyd's method (Bentley and Floyd,
1987), which needs k draws whatever the degree. Limits: degrees below 2**32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LOW_32 = np.uint64(0xFFFFFFFF)
_RANGE_32 = np.uint64(1 << 32)
_HALF = np.uint64(32)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
# Up to this many picks a scan over those made so far beats a table of them.
SCANNED_PICKS = 32


@kernel
def mixed(value: Any) -> Any:
    """Scramble 64 bits (splitmix64's finaliser); neighbouring inputs give unrelated outputs."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@kernel
def below(state: Any, bound: Any) -> Any:
    """Draw from 0 .. bound - 1; returns the stream's next state and the draw, both uint64."""
    state += _GOLDEN
    product = (mixed(state) >> _HALF) * bound
    if (product & _LOW_32) < bound:
        # The few draws that would favour small values are thrown away.
        threshold = (_RANGE_32 - bound) % bound
        while (product & _LOW_32) < threshold:
            state += _GOLDEN
            product = (mixed(state) >> _HALF) * bound
    return state, product >> _HALF


@kernel
def count_picks(extents: npt.NDArray[np.int64], fan_out: int, replace: bool, num_edges: int) -> int:
    """Count the edges that `pick_edges` will choose.

    Args:
        extents: int64 (destinations, 2), first in-edge and end of each destination.
        fan_out: Edges wanted a destination; -1 for all.
        replace: Whether one edge may be drawn twice.
        num_edges: Edges of the graph.

    Returns:
        The count; or -1 - i where the extent of destination i is no range of edges.
    """
    total = 0
    for i in range(extents.shape[0]):
        start = extents[i, 0]
        degree = extents[i, 1] - start
        if start < 0 or degree < 0 or extents[i, 1] > num_edges or degree > 0xFFFFFFFF:
            return -1 - i
        if fan_out < 0 or (degree <= fan_out and not replace):
            total += degree
        elif degree > 0:
            total += fan_out
    return total


@kernel
def pick_edges(
    extents: npt.NDArray[np.int64],
    fan_out: int,
    replace: bool,
    stream: tuple[Any, int],
    table: npt.NDArray[np.int64],
    picks: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> None:
    """Choose in-edges for each destination.

    Without replacement a fan-out of the degree or more, and -1, give every edge once, in order.

    Args:
        extents: As `count_picks` accepted them.
        fan_out: Edges wanted a destination; -1 for all.
        replace: Whether one edge may be drawn twice.
        stream: The batch's key (uint64), and the local id of the first destination.
        table: int64 scratch of a power of two, at least twice the fan-out; any content.
        picks: Filled: int64 positions of the edges, and int64 local ids of their destinations.
    """
    key, first_local = stream
    positions, columns = picks
    done = 0
    for i in range(extents.shape[0]):
        local = first_local + i
        extent, rule = (extents[i, 0], extents[i, 1]), (fan_out, replace)
        count = _pick_row(extent, rule, (key, local), table, positions, done)
        for j in range(count):
            columns[done + j] = local
        done += count


@kernel
def pick_edges_apart(
    extents: npt.NDArray[np.int64],
    fan_out: int,
    replace: bool,
    stream: tuple[Any, npt.NDArray[np.int64]],
    table: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> None:
    """Choose as `pick_edges` does, for destinations that lie anywhere in the batch.

    Args:
        extents: As for `pick_edges`.
        fan_out: As for `pick_edges`.
        replace: As for `pick_edges`.
        stream: The batch's key (uint64), and the local id of each destination.
        table: As for `pick_edges`.
        positions: Filled: int64 positions of the edges.
    """
    key, local_ids = stream
    done = 0
    for i in range(extents.shape[0]):
        extent, rule = (extents[i, 0], extents[i, 1]), (fan_out, replace)
        done += _pick_row(extent, rule, (key, local_ids[i]), table, positions, done)


@kernel
def count_each(
    extents: npt.NDArray[np.int64], fan_out: int, replace: bool, counts: npt.NDArray[np.uint32]
) -> None:
    """Count the edges that will be chosen for each destination.

    Args:
        extents: As `count_picks` accepted them.
        fan_out: Edges wanted a destination; -1 for all.
        replace: Whether one edge may be drawn twice.
        counts: Filled, (destinations,).
    """
    for i in range(extents.shape[0]):
        degree = extents[i, 1] - extents[i, 0]
        takes_all = fan_out < 0 or degree == 0 or (degree <= fan_out and not replace)
        counts[i] = degree if takes_all else fan_out


@kernel
def _pick_row(
    extent: tuple[int, int],
    rule: tuple[int, bool],
    stream: tuple[Any, int],
    table: Any,
    positions: Any,
    done: int,
) -> int:
    """Choose among the edges of one destination, from `done` on; how many."""
    start, end = extent
    fan_out, replace = rule
    key, local = stream
    degree = end - start
    if degree == 0:
        return 0
    if fan_out < 0 or (degree <= fan_out and not replace):
        for j in range(degree):
            positions[done + j] = start + j
        return degree
    state = mixed(key + _GOLDEN * np.uint64(local + 1))
    if replace:
        _draw(positions, done, fan_out, degree, state)
    elif fan_out <= SCANNED_PICKS:
        _draw_subset(positions, done, fan_out, degree, state)
    else:
        _draw_large_subset(positions, done, fan_out, degree, state, table)
    for j in range(fan_out):
        positions[done + j] += start
    return fan_out


@kernel
def _draw(chosen: Any, first: int, count: int, degree: int, state: Any) -> None:
    for j in range(count):
        state, drawn = below(state, np.uint64(degree))
        chosen[first + j] = np.int64(drawn)


@kernel
def _draw_subset(chosen: Any, first: int, count: int, degree: int, state: Any) -> None:
    for j in range(count):
        top = degree - count + j
        state, drawn = below(state, np.uint64(top + 1))
        pick = np.int64(drawn)
        for k in range(first, first + j):
            if chosen[k] == pick:
                pick = np.int64(top)
                break
        chosen[first + j] = pick


@kernel
def _draw_large_subset(
    chosen: Any, first: int, count: int, degree: int, state: Any, table: Any
) -> None:
    mask = table.size - 1
    table[:] = -1
    for j in range(count):
        top = degree - count + j
        state, drawn = below(state, np.uint64(top + 1))
        pick = np.int64(drawn)
        slot = np.int64(mixed(drawn)) & mask
        while table[slot] >= 0 and table[slot] != pick:
            slot = (slot + 1) & mask
        if table[slot] == pick:
            # The top of the range cannot have been chosen before: all earlier draws were below it.
            pick = np.int64(top)
            slot = np.int64(mixed(np.uint64(pick))) & mask
            while table[slot] >= 0:
                slot = (slot + 1) & mask
        table[slot] = pick
        chosen[first + j] = pick
