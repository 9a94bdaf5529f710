"""Picks by weight and by time, group by group of destinations, hubs in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import overspill.graph.sampling.candidates as whole_rows
from overspill.errors import InputError
from overspill.graph.sampling.buffers import Buffer
from overspill.graph.sampling.candidates import Candidates
from overspill.graph.sampling.hops import HopEdges
from overspill.graph.sampling.in_edges import InEdges
from overspill.kernels.sample_ranked import (
    TALLY,
    cut_group,
    draw_sorted,
    end_draws,
    find_draws,
    keep_allowed,
    pick_ranked,
    rank_piece,
    redraw,
    row_state,
    settle_row,
    sum_piece,
)

_Ids = npt.NDArray[np.int64]
_NO_WEIGHTS = np.empty(0, np.float64)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How one hop chooses among the in-edges of one type.

    Attributes:
        fan_out: Edges wanted a destination; -1 for all.
        replace: Whether one may be drawn twice.
        last: Whether the most recent are wanted.
    """

    fan_out: int
    replace: bool
    last: bool

    def takes_all(self, degree: int) -> bool:
        """Whether a row of so many edges is taken as it is, but for edges that come too late."""
        return self.fan_out < 0 or (degree <= self.fan_out and not self.replace)


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The destinations of a hop.

    Attributes:
        extents: int64 (destinations, 2), checked.
        first_local: Local id of the first.
        limits: int64 (destinations,), the latest time of each; empty where times do not count.
        key: The random stream.
    """

    extents: _Ids
    first_local: int
    limits: _Ids
    key: np.uint64

    def part(self, first: int, end: int) -> Frontier:
        """Some of the destinations."""
        return Frontier(
            extents=self.extents[first:end],
            first_local=self.first_local + first,
            limits=self.limits[first:end],
            key=self.key,
        )


class RankedPicker:
    """Chooses in-edges by weight and time.

    Args:
        held: Buffers for what it reads.
        admit: Called with the number of edges before room is made for them; raises where that is
            too many.
    """

    def __init__(self, held: Candidates, admit: Callable[[int], None]) -> None:
        self._held, self._admit = held, admit
        self._ranks, self._places = Buffer(np.int64), Buffer(np.int64)
        self._draws = Buffer(np.float64)

    def pick(self, edges: InEdges, frontier: Frontier, rule: Rule, found: HopEdges) -> None:
        """Choose for each destination, and leave the places of the edges in `found`.

        Raises:
            InputError: A weight that is none, or weights that add up to no float64.
            FormatError: A source whose time is wanted is no node.
            NoRoomError: More edges than were planned for.
        """
        found.count = 0
        first = 0
        extents = frontier.extents
        while first < len(extents):
            end = cut_group(extents, first, rule.fan_out, rule.replace, whole_rows.MOST_EDGES)
            group = frontier.part(first, end)
            if end == first + 1 and _degree(group) > whole_rows.MOST_EDGES:
                self._pick_hub(edges, group, rule, found)
            else:
                self._pick_group(edges, group, rule, found)
            self._admit(found.count)
            first = end

    def _pick_group(self, edges: InEdges, group: Frontier, rule: Rule, found: HopEdges) -> None:
        skipped = -1 if edges.timed or rule.replace else rule.fan_out
        places = self._held.places(group.extents, skipped=skipped)
        weights = self._held.weights(edges, places)
        times = self._held.times(edges, places)
        degrees = group.extents[:, 1] - group.extents[:, 0]
        most = _most_picks(degrees, rule)
        if not edges.timed:  # without times nobody comes too late: this is what it comes to
            self._admit(found.count + most)
        picks = found.room(found.count + most, keep=found.count)
        done = pick_ranked(
            group.extents,
            (rule.fan_out, rule.replace, rule.last, skipped, group.limits),
            (group.key, group.first_local, found.count),
            (weights, times),
            (*self._heap(rule, int(degrees.max())), self._draws.array(_most_draws(rule))),
            picks,
        )
        if done < 0:
            raise _overflowing(edges, group.first_local - 1 - done)
        found.count = done

    def _pick_hub(self, edges: InEdges, hub: Frontier, rule: Rule, found: HopEdges) -> None:
        if rule.takes_all(_degree(hub)):
            self._keep_allowed(edges, hub, found)
            return
        if rule.replace and not rule.last:
            count = self._draw_from_hub(edges, hub, rule)
        else:
            count = self._rank_hub(edges, hub, rule)
        start = int(hub.extents[0, 0])
        self._admit(found.count + count)
        places, columns = found.room(found.count + count, keep=found.count)
        places[found.count :] = self._places.array(count)
        places[found.count :] += start
        columns[found.count :] = hub.first_local
        found.count += count

    def _keep_allowed(self, edges: InEdges, hub: Frontier, found: HopEdges) -> None:
        for places in self._pieces(hub):
            times = self._held.times(edges, places)
            picks = found.room(found.count + places.size, keep=found.count)
            piece = (0, places.size, int(places[0]), hub.first_local)
            held = (_NO_WEIGHTS, times)
            found.count = keep_allowed(piece, _limit(hub), held, picks, found.count)
            self._admit(found.count)

    def _rank_hub(self, edges: InEdges, hub: Frontier, rule: Rule) -> int:
        heap = self._heap(rule, _degree(hub))
        tally = np.zeros(TALLY, np.int64)
        state, choice = _state(hub), (rule.fan_out, rule.last, _limit(hub))
        for piece, held in self._candidates(edges, hub):
            rank_piece(piece, state, choice, held, heap, tally)
        count = settle_row(heap, rule.fan_out, edges.weights is not None, tally)
        if rule.replace and count:
            recent = heap[1][:count].copy()
            redraw(state, count, rule.fan_out, recent, self._places.array(rule.fan_out))
            count = rule.fan_out
        return count

    def _draw_from_hub(self, edges: InEdges, hub: Frontier, rule: Rule) -> int:
        sums, tally = np.zeros(2, np.float64), np.zeros(TALLY, np.int64)
        for piece, held in self._candidates(edges, hub):
            sum_piece(piece, _limit(hub), held, sums)
        if not sums[0] < np.inf:
            raise _overflowing(edges, hub.first_local)
        if sums[0] == 0:
            return 0
        points, places = self._draws.array(rule.fan_out), self._places.array(rule.fan_out)
        draw_sorted(_state(hub), sums, points)
        for piece, held in self._candidates(edges, hub):
            find_draws(piece, _limit(hub), held, (sums, points), tally, places)
        end_draws(tally, places)
        return rule.fan_out

    def _candidates(
        self, edges: InEdges, hub: Frontier
    ) -> Iterator[tuple[tuple[int, int, int], tuple[npt.NDArray[np.float64], _Ids]]]:
        """A hub's edges in pieces: first and end, place within the row; weights and times."""
        start = int(hub.extents[0, 0])
        for places in self._pieces(hub):
            piece = (0, places.size, int(places[0]) - start)
            yield piece, (self._held.weights(edges, places), self._held.times(edges, places))

    def _pieces(self, hub: Frontier) -> Iterator[_Ids]:
        """Places of a hub's edges, so many at a time."""
        start, end = hub.extents[0].tolist()
        for first in range(start, end, whole_rows.MOST_EDGES):
            last = min(first + whole_rows.MOST_EDGES, end)
            yield self._held.places(np.array([[first, last]], np.int64))

    def _heap(self, rule: Rule, degree: int) -> tuple[_Ids, _Ids]:
        size = max(min(rule.fan_out, degree), 0)
        return self._ranks.array(size), self._places.array(size)


def _degree(hub: Frontier) -> int:
    return int(hub.extents[0, 1] - hub.extents[0, 0])


def _state(hub: Frontier) -> np.uint64:
    # A kernel gives a plain number back, which the next one would take for a signed one.
    return np.uint64(row_state(hub.key, hub.first_local))


def _limit(hub: Frontier) -> int:
    return int(hub.limits[0]) if hub.limits.size else 0


def _most_draws(rule: Rule) -> int:
    return max(rule.fan_out, 0) if rule.replace else 0


def _most_picks(degrees: _Ids, rule: Rule) -> int:
    if rule.replace and rule.fan_out >= 0:
        return int((degrees > 0).sum()) * rule.fan_out
    return int((degrees if rule.fan_out < 0 else np.minimum(degrees, rule.fan_out)).sum())


def _overflowing(edges: InEdges, local: int) -> InputError:
    assert edges.weights is not None
    return InputError(
        f"the weights of edges of type {edges.key} into one node (number {local} of its type in "
        "this batch) add up to more than float64 holds",
        path=edges.weights.array.path,
        remedy="scale the weights down: only their proportions count",
    )
