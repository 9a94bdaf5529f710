"""Choose in-edges by weight or by time: rows are read as they lie, whole or in pieces.

Bottleneck: the reads of weights and times around these loops; an edge costs a hash, with weights a
logarithm too. Algorithm, without replacement: each edge of a row has a rank, and the lowest k stay
in a heap. Ranks are exponential variates over weights (Efraimidis and Spirakis, 2006), which gives
what successive draws in proportion to weight give; plain random bits where all weigh the same; or
the time itself, for the most recent. With replacement: one pass sums, a second one finds the sorted
draws in the running sum. An edge's random bits come from the batch's key, the destination's place
and the edge's place in its row, and sums run in row order, so that the outcome depends neither on
grouping nor on where a row was cut.

Edges of weight 0 are taken only where all that may be followed are. Limits: 2**53 edges a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel
from overspill.kernels.sample import below, mixed

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S1, _S11 = np.uint64(1), np.uint64(11)
_UNIT = 2.0**-53
LEAST_WEIGHT = 1e-300
_NEVER = np.int64(2**63 - 1)  # the rank of weight 0, behind every other
_Ids = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
WeightsAndTimes = tuple[_Floats, _Ids]
Picks = tuple[_Ids, _Ids]
# What a row's tally counts.
HELD, ALLOWED, NEXT, LAST = 0, 1, 2, 3
TALLY = 4


@kernel
def cut_group(extents: _Ids, first: int, fan_out: int, replace: bool, most: int) -> int:
    """Where a group of destinations ends whose edges, read or taken, are at most `most`.

    Args:
        extents: int64 (destinations, 2), checked.
        first: Where it begins.
        fan_out: Edges wanted a destination.
        replace: Whether one edge may be drawn twice.
        most: Edges of the group; a destination with more is a group by itself.

    Returns:
        The end, above `first`.
    """
    total = 0
    for i in range(first, extents.shape[0]):
        degree = extents[i, 1] - extents[i, 0]
        total += max(degree, fan_out) if replace and degree > 0 else degree
        if total > most and i > first:
            return i
    return int(extents.shape[0])


@kernel
def list_candidates(extents: _Ids, skipped: int, out: _Ids) -> int:
    """List the places of all edges of some rows, one after the other.

    Args:
        extents: int64 (destinations, 2), checked.
        skipped: Leave out rows of up to so many edges; -1 for none.
        out: Filled: int64, with room for them all.

    Returns:
        How many there are.
    """
    count = 0
    for i in range(extents.shape[0]):
        if extents[i, 1] - extents[i, 0] > skipped:
            for place in range(extents[i, 0], extents[i, 1]):
                out[count] = place
                count += 1
    return count


@kernel
def first_bad_weight(weights: _Floats) -> int:
    """The position of the first weight that is negative, too small or not finite; -1: none is."""
    for i in range(weights.size):
        # By smaller ones a race could not be told: its arrivals would be infinite.
        if not (weights[i] == 0.0 or LEAST_WEIGHT <= weights[i] < np.inf):
            return i
    return -1


@kernel
def row_state(key: Any, local: int) -> Any:
    """The random stream of a destination's row, by its local id."""
    return mixed(key + _GOLDEN * np.uint64(local + 1))


@kernel
def keep_allowed(
    piece: Any, limit: int, candidates: WeightsAndTimes, picks: Picks, done: int
) -> int:
    """Take every edge of a piece of a row that is not after the limit.

    Args:
        piece: First and end of its candidates, place of the first edge, local id of the row.
        limit: The latest time.
        candidates: Weights, and times; either empty where they do not count.
        picks: Filled from `done` on: places and columns.
        done: Edges that were taken before.

    Returns:
        Edges taken now.
    """
    first, end, start, local = piece
    times = candidates[1]
    for c in range(first, end):
        if times.size == 0 or times[c] <= limit:
            picks[0][done] = start + c - first
            picks[1][done] = local
            done += 1
    return done


@kernel
def rank_piece(
    piece: Any, state: Any, rule: Any, candidates: WeightsAndTimes, heap: Picks, tally: _Ids
) -> None:
    """Let the edges of a piece of a row compete for the heap.

    Args:
        piece: First and end of its candidates, and place of the first within the row.
        state: `row_state`.
        rule: Fan-out, whether the most recent are wanted, and the latest time.
        candidates: As in `keep_allowed`.
        heap: int64 ranks and places, with room for as many as can stay.
        tally: int64 (TALLY,), 0 before the row's first piece.
    """
    first, end, offset = piece
    fan_out, last, limit = rule
    weights, times = candidates
    ranks, places = heap
    for c in range(first, end):
        if times.size and times[c] > limit:
            continue
        tally[ALLOWED] += 1
        place = offset + c - first
        full = tally[HELD] == fan_out
        if last:
            rank = ~times[c]  # in reverse order, for every int64
        else:
            bits = mixed(state + _GOLDEN * np.uint64(place + 1))
            if weights.size:
                if full and _is_beaten(bits, weights[c], ranks[0]):
                    continue
                rank = _race(bits, weights[c])
            else:
                rank = np.int64(bits >> _S1)
        if not full or rank <= ranks[0]:
            _offer(ranks, places, tally, fan_out, rank, place)


@kernel
def settle_row(heap: Picks, fan_out: int, weighted: bool, tally: _Ids) -> int:
    """Put what stayed in the heap in the order of the row.

    Returns:
        How many edges stayed; ``heap[1]`` begins with their places within the row.
    """
    ranks, places = heap
    held: int = tally[HELD]
    if weighted and tally[ALLOWED] > fan_out:
        kept = 0
        for j in range(held):
            if ranks[j] != _NEVER:
                places[kept] = places[j]
                kept += 1
        held = kept
    places[:held].sort()
    return held


@kernel
def sum_piece(piece: Any, limit: int, candidates: WeightsAndTimes, sums: _Floats) -> None:
    """Add up the weights of a piece of a row into ``sums[0]``; 1 each where there are none."""
    weights, times = candidates
    for c in range(piece[0], piece[1]):
        if times.size == 0 or times[c] <= limit:
            sums[0] += weights[c] if weights.size else 1.0


@kernel
def draw_sorted(state: Any, sums: _Floats, draws: _Floats) -> None:
    """Draw points of the row's sum, with replacement, in increasing order."""
    for d in range(draws.size):
        bits = mixed(state + _GOLDEN * np.uint64(d + 1))
        draws[d] = np.float64(bits >> _S11) * _UNIT * sums[0]
    draws.sort()


@kernel
def find_draws(
    piece: Any, limit: int, candidates: WeightsAndTimes, draws: Any, tally: _Ids, places: _Ids
) -> None:
    """Find the edges of a piece of a row on which the draws fall.

    Args:
        piece: As in `rank_piece`.
        limit: As in `keep_allowed`.
        candidates: As in `keep_allowed`.
        draws: float64 (2,), the row's sum, and the sum of its earlier pieces; and the sorted draws.
        tally: As in `rank_piece`.
        places: Filled: int64 (draws,), places within the row.
    """
    first, end, offset = piece
    weights, times = candidates
    sums, points = draws
    for c in range(first, end):
        if times.size and times[c] > limit:
            continue
        weight = weights[c] if weights.size else 1.0
        if weight > 0.0:
            sums[1] += weight
            tally[LAST] = offset + c - first
            while tally[NEXT] < points.size and points[tally[NEXT]] < sums[1]:
                places[tally[NEXT]] = tally[LAST]
                tally[NEXT] += 1


@kernel
def end_draws(tally: _Ids, places: _Ids) -> None:
    """Give draws that rounding put on the very end of the sum to the last edge that weighs."""
    while tally[NEXT] < places.size:
        places[tally[NEXT]] = tally[LAST]
        tally[NEXT] += 1


@kernel
def redraw(state: Any, count: int, fan_out: int, places: _Ids, out: _Ids) -> None:
    """Draw with replacement among the first `count` places."""
    for d in range(fan_out):
        state, drawn = below(state, np.uint64(count))
        out[d] = places[np.int64(drawn)]


@kernel
def pick_ranked(
    extents: _Ids,
    rule: Any,
    stream: Any,
    candidates: WeightsAndTimes,
    scratch: tuple[_Ids, _Ids, _Floats],
    picks: Picks,
) -> int:
    """Choose in-edges for each destination of a group.

    Args:
        extents: int64 (destinations, 2), checked.
        rule: Fan-out, whether with replacement, whether the most recent are wanted, up to how many
            edges a row is taken whole and has no candidates (-1: none), and int64
            (destinations,), the latest time of each, or empty.
        stream: The batch's key (uint64), local id of the first destination, edges taken before.
        candidates: As `list_candidates` lists them.
        scratch: int64 ranks and places, and float64 draws, with room for the fan-out or the largest
            row, whichever is less; draws for the fan-out.
        picks: Filled: int64 places and columns, after those taken before.

    Returns:
        Edges taken now; or -1 - i where the weights of row i add up to more than float64 holds.
    """
    fan_out, replace, last, skipped, limits = rule
    key, first_local, before = stream
    done: int = before
    tally, sums = np.zeros(TALLY, np.int64), np.zeros(2, np.float64)
    at = 0
    for i in range(extents.shape[0]):
        start = extents[i, 0]
        degree = extents[i, 1] - start
        local = first_local + i
        limit = limits[i] if limits.size else 0
        if degree <= skipped:
            for j in range(degree):
                picks[0][done + j] = start + j
                picks[1][done + j] = local
            done += degree
            continue
        piece = (at, at + degree, 0)
        at += degree
        if fan_out < 0 or (degree <= fan_out and not replace):
            whole = (piece[0], piece[1], start, local)
            done = keep_allowed(whole, limit, candidates, picks, done)
            continue
        state = row_state(key, local)
        found = picks[0][done:]
        tally[:] = 0
        if replace and not last:
            sums[:] = 0.0
            row = (piece, limit, fan_out)
            count = _draw_row(row, state, candidates, (sums, scratch[2]), tally, found)
            if count < 0:
                return -1 - i
        else:
            row_rule = (fan_out, replace, last, limit)
            count = _rank_row(piece, state, row_rule, candidates, (scratch[:2], tally), found)
        for j in range(done, done + count):
            picks[0][j] += start
            picks[1][j] = local
        done += count
    return done


@kernel
def _draw_row(row: Any, state: Any, candidates: Any, draws: Any, tally: Any, found: Any) -> Any:
    """Draw from a whole row with replacement; returns how many, or -1 for too large a sum."""
    piece, limit, fan_out = row
    sums, points = draws[0], draws[1][:fan_out]
    sum_piece(piece, limit, candidates, sums)
    if not sums[0] < np.inf:
        return -1
    if sums[0] == 0.0:
        return 0
    draw_sorted(state, sums, points)
    find_draws(piece, limit, candidates, (sums, points), tally, found[:fan_out])
    end_draws(tally, found[:fan_out])
    return fan_out


@kernel
def _rank_row(piece: Any, state: Any, rule: Any, candidates: Any, held: Any, found: Any) -> Any:
    """Choose from a whole row by rank; returns how many."""
    fan_out, replace, last, limit = rule
    heap, tally = held
    rank_piece(piece, state, (fan_out, last, limit), candidates, heap, tally)
    count = settle_row(heap, fan_out, candidates[0].size > 0, tally)
    if replace and count > 0:
        redraw(state, count, fan_out, heap[1], found)
        return fan_out
    found[:count] = heap[1][:count]
    return count


@kernel
def _race(bits: Any, weight: float) -> Any:
    """When an edge arrives, in a race that each wins in proportion to its weight."""
    if weight == 0.0:
        return _NEVER
    unit = (np.float64(bits >> _S11) + 0.5) * _UNIT
    # The bits of a positive float64 are in the order of its values.
    return np.float64(-np.log(unit) / weight).view(np.int64)


@kernel
def _is_beaten(bits: Any, weight: float, worst: Any) -> bool:
    """Whether an edge surely arrives after the worst that stays: told without a logarithm."""
    if worst == _NEVER:
        return False
    # -log(u) is at least 1 - u.
    late = 1.0 - (np.float64(bits >> _S11) + 0.5) * _UNIT
    return bool(late > np.int64(worst).view(np.float64) * weight)


@kernel
def _is_worse(rank: Any, place: int, other_rank: Any, other_place: int) -> bool:
    """Whether the first goes before the second; of equal ranks the later place stays."""
    return bool(rank > other_rank or (rank == other_rank and place < other_place))


@kernel
def _offer(ranks: Any, places: Any, tally: Any, most: int, rank: Any, place: int) -> None:
    """Enter an edge into the heap of the `most` best, its worst on top."""
    if tally[HELD] < most:
        at = tally[HELD]
        tally[HELD] += 1
        while at > 0:
            above = (at - 1) >> 1
            if not _is_worse(rank, place, ranks[above], places[above]):
                break
            ranks[at], places[at] = ranks[above], places[above]
            at = above
    elif not _is_worse(ranks[0], places[0], rank, place):
        return
    else:
        at = 0
        while 2 * at + 1 < most:
            below_it = 2 * at + 1
            right = below_it + 1
            if right < most and _is_worse(
                ranks[right], places[right], ranks[below_it], places[below_it]
            ):
                below_it = right
            if not _is_worse(ranks[below_it], places[below_it], rank, place):
                break
            ranks[at], places[at] = ranks[below_it], places[below_it]
            at = below_it
    ranks[at], places[at] = rank, place
