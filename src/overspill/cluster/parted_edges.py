"""Edges of a dataset in parts: chosen where they lie, one request to each machine and hop.

A destination draws from a random stream of its own, told by its place in the batch, so that who
chooses its edges does not matter: the result is the whole dataset's, edge for edge.

Memory: what the machines answer, 8 to 16 bytes an edge, until all have answered; then it is copied
once, to its place in the batch. A machine answers `REPLY_EDGES` at a time, unless one destination
has more; where fan-outs tell how many edges there are at most, the requests are made that size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from overspill.cluster.connection import Pending
from overspill.cluster.layout import Ids
from overspill.cluster.local_parts import REPLY_EDGES, Picked
from overspill.cluster.parted_arrays import Reach, narrowed
from overspill.cluster.warm import read_only
from overspill.graph.dataset import EdgeType
from overspill.graph.sampling.picks import Room, Wish
from overspill.kernels.parts import place_picks

# Requests of one call that are under way at a time.
_WINDOW = 4


@dataclass(frozen=True)
class _Asked:
    """Destinations that one machine chooses edges for: their positions in the frontier, and ids."""

    machine: int
    positions: Ids
    ids: Ids

    def after(self, done: int) -> _Asked:
        """Those that are left once the first are done."""
        return _Asked(self.machine, self.positions[done:], self.ids[done:])


class PartedPicks:
    """Chooses in-edges of one type wherever they lie: a `Picks`. One thread at a time.

    Args:
        reach: How to get at the parts.
        edge_type: The type.
    """

    def __init__(self, reach: Reach, edge_type: EdgeType) -> None:
        self._reach, self._type = reach, edge_type
        self._num_targets = reach.layout.manifest.node_types[edge_type[2]].count

    def pick(self, ids: Ids, wish: Wish, room: Room) -> int:
        """Choose for each destination; see `Picks.pick`.

        Raises:
            FormatError: The topology is damaged.
            NoRoomError: More edges than `room` gives room for.
            StaleFileError: A file was cut, replaced or removed, here or there.
            MappingError: A disk refused to read.
            ClusterError: A machine did not answer in time.
        """
        counts = np.zeros(ids.size, np.int64)
        answers: list[tuple[Ids, Picked]] = []
        total = 0
        for positions, picked in self._answers(ids, wish):
            if picked.refused:
                room(total + picked.refused)  # raises
            counts[positions] = picked.counts
            total += picked.sources.size
            answers.append((positions, picked))
        begins = np.cumsum(counts) - counts
        places, columns, sources = room(total)
        for positions, picked in answers:
            place_picks(
                (positions, wish.first_local),
                read_only(picked.counts),
                begins,
                (read_only(picked.places), read_only(picked.sources)),
                (places, columns, sources),
            )
        return total

    def _answers(self, ids: Ids, wish: Wish) -> Iterator[tuple[Ids, Picked]]:
        """What all machines answer: positions in the frontier, and what was chosen for them."""
        reach, mine = self._reach, []
        left: deque[_Asked] = deque()
        for machine, positions in reach.by_machine(self._type[2], ids):
            held = np.arange(ids.size) if positions is None else positions
            asked = _Asked(machine, held, ids[held])
            if machine == reach.here:
                mine.append(asked)
            else:
                left.extend(_cut(asked, wish))
        waiting: deque[tuple[_Asked, Pending]] = deque()
        self._ask(left, waiting, wish)
        for asked in mine:
            yield from self._pick_here(asked, wish)
        while waiting:
            asked, pending = waiting.popleft()
            picked: Picked = reach.connection.receive(pending)
            done = picked.counts.size
            if done < asked.ids.size and not picked.refused:
                left.appendleft(asked.after(done))
            self._ask(left, waiting, wish)
            yield asked.positions[:done], picked

    def _ask(self, left: deque[_Asked], waiting: deque[tuple[_Asked, Pending]], wish: Wish) -> None:
        while left and len(waiting) < max(_WINDOW, len(self._reach.layout.machines)):
            asked = left.popleft()
            local_ids = narrowed(asked.positions + wish.first_local, np.iinfo(np.int32).max)
            ids = narrowed(asked.ids, self._num_targets)
            pending = self._reach.connection.send(
                asked.machine, "sample", self._type, ids, local_ids, wish
            )
            waiting.append((asked, pending))

    def _pick_here(self, asked: _Asked, wish: Wish) -> Iterator[tuple[Ids, Picked]]:
        while asked.ids.size:
            local_ids = asked.positions + wish.first_local
            picked = self._reach.local.pick(self._type, asked.ids, local_ids, wish)
            done = picked.counts.size
            yield asked.positions[:done], picked
            asked = asked.after(done)


class PartedEnds:
    """The ends of edges by their places, wherever they lie: an `Ends`.

    Args:
        reach: How to get at the parts.
        edge_type: The type.
    """

    def __init__(self, reach: Reach, edge_type: EdgeType) -> None:
        self._reach, self._type = reach, edge_type

    def at(self, places: Ids) -> Ids:
        """Sources and targets of edges: int64 (2, edges); one request to each machine.

        Raises:
            StaleFileError: A file was cut, replaced or removed, here or there.
            MappingError: A disk refused to read.
            ClusterError: A machine did not answer in time.
        """
        reach, found = self._reach, np.empty((2, places.size), np.int64)
        mine, waiting = [], []
        for machine, positions in reach.by_machine(self._type, places):
            held = slice(None) if positions is None else positions
            if machine == reach.here:
                mine.append(held)
            else:
                pending = reach.connection.send(machine, "edge_ends", self._type, places[held])
                waiting.append((held, pending))
        for held in mine:
            found[:, held] = reach.local.edge_ends(self._type, np.ascontiguousarray(places[held]))
        for held, pending in waiting:
            found[:, held] = reach.connection.receive(pending)
        return found


def _cut(asked: _Asked, wish: Wish) -> Iterator[_Asked]:
    """Requests whose replies are not too large, as far as the fan-out tells."""
    step = asked.ids.size if wish.fan_out <= 0 else max(1, REPLY_EDGES // wish.fan_out)
    for first in range(0, asked.ids.size, max(step, 1)):
        cut = slice(first, first + step)
        yield _Asked(asked.machine, asked.positions[cut], asked.ids[cut])
