"""Arrays of a dataset in parts, read at random: here in place, elsewhere by request.

Bottleneck: the network and Ray's copies. Algorithm: items are grouped by the machine that serves
them; each machine is asked once, for all its items, in pieces where a reply would be large, so that
a server reads the next piece while one travels and another is put in its place here, and a small
object store is enough. While machines answer, what lies here is read. Replies stand in the object
store and are copied once, from there to their places.

Memory: `REMOTE_COST`. Replies under way take at most `WINDOW_BYTES` of the object store a call, or
one piece where a row alone is larger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.cluster.connection import Connection, Pending
from overspill.cluster.layout import Ids, Layout, groups_of
from overspill.cluster.local_parts import LocalParts, Size
from overspill.cluster.warm import read_only
from overspill.kernels.parts import scatter_rows
from overspill.kernels.words import widest_word
from overspill.placement.loader import RemoteCost

PIECE_BYTES = 8 << 20
WINDOW_BYTES = 32 << 20
# What a spawned process takes to be connected; an item's id, part, place and number in its part,
# and an edge's source and place in a reply; replies under way.
REMOTE_COST = RemoteCost(process_bytes=96 << 20, fixed_bytes=WINDOW_BYTES, item_bytes=48)
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Piece:
    """Items that one machine is asked for at once: their ids, and their places in the result."""

    machine: int
    ids: Ids
    places: Ids | slice


class Reach:
    """What a process can read of a dataset: parts that lie here, and a connection to the others.

    Args:
        layout: The dataset.
        connection: Asks the other machines.
        here: Number of this machine among those that serve, where its parts can be read in place;
            else None.
    """

    def __init__(self, layout: Layout, connection: Connection, here: int | None) -> None:
        self.layout, self.connection, self.here = layout, connection, here
        self.local = LocalParts(layout, () if here is None else layout.machines[here].parts)

    def by_machine(self, owner: Any, ids: Ids) -> Iterator[tuple[int, Ids | None]]:
        """Positions of rows by the machine that serves them; None for all."""
        layout = self.layout
        part = layout.only_part(owner, ids)
        if part is not None:
            yield int(layout.homes[part]), None
            return
        parts = layout.parts_of(owner, ids)
        yield from groups_of(parts, layout.homes, len(layout.machines))


class PartedArray:
    """An array of the whole, an `ItemReader`. Threads may read at the same time.

    Args:
        reach: How to get at the parts.
        array: The array's key in the layout.
        size: Bytes from one item to the next, and of an item.
    """

    def __init__(self, reach: Reach, array: str, size: Size) -> None:
        self._reach, self._array, self._size = reach, array, size
        self.span_bytes = size[1]
        ends = reach.layout.ends_of(reach.layout.arrays[array].numbered_by)
        self._count = int(ends[-1])

    @property
    def path(self) -> str:
        """Where the partition is, and the array's name there."""
        return f"{self._reach.layout.path}: {self._array}"

    def check_unchanged(self) -> None:
        """Refuse to go on over a file here that changed; servers look at theirs themselves."""
        self._reach.local.check_unchanged(self._array, self._size)

    def present_share(self, ids: Ids) -> float:  # noqa: ARG002 - as ItemReader has it
        """0: what other machines have in memory is not asked."""
        return 0.0

    def fits_cache(self) -> bool:
        """Never: rows that several batches share are worth being fetched once."""
        return False

    def expect_reuse(self) -> None:
        """Nothing follows from it: those who read here and there read for others too."""

    def take(
        self,
        ids: Ids,
        out: npt.NDArray[Any],
        *,
        places: Ids | None = None,
        threads: int = 1,
    ) -> None:
        """Copy items; see `PagedArray.take`.

        Costs of what lies here a pass over the ids on top of `PagedArray.take`; of the rest one
        request a machine and `PIECE_BYTES`.

        Raises:
            StaleFileError: A file was cut, replaced or removed, here or there.
            MappingError: A disk refused to read.
            ClusterError: A machine did not answer in time.
        """
        if not ids.size or not self.span_bytes:
            return
        reach = self._reach
        what = reach.layout.arrays[self._array]
        mine: list[tuple[Ids, Ids | None]] = []
        asked = []
        for machine, positions in reach.by_machine(what.numbered_by, ids):
            wanted = ids if positions is None else ids[positions]
            target = _targets(positions, places)
            if machine == reach.here:
                mine.append((wanted, target))
            else:
                asked.append(self._pieces(machine, wanted, target))
        # Of each machine one after the other, so that all are busy.
        turns = [piece for turn in zip_longest(*asked) for piece in turn if piece is not None]
        fetch = _Fetch(self, turns, out)
        fetch.ask()
        for wanted, target in mine:
            reach.local.take(self._array, self._size, wanted, out, places=target, threads=threads)
        fetch.finish()

    def ask(self, piece: _Piece) -> Pending:
        """Ask for a piece."""
        return self._reach.connection.send(
            piece.machine, "gather", self._array, self._size, narrowed(piece.ids, self._count)
        )

    def receive(self, pending: Pending) -> _Bytes:
        """The rows of a piece: uint8 (items, bytes an item), which is read-only."""
        rows: _Bytes = self._reach.connection.receive(pending)
        return rows

    def _pieces(self, machine: int, ids: Ids, target: Ids | None) -> list[_Piece]:
        step = max(1, PIECE_BYTES // self.span_bytes)
        cuts = [slice(first, first + step) for first in range(0, ids.size, step)]
        return [
            _Piece(machine, ids[cut], _bounded(cut, ids.size) if target is None else target[cut])
            for cut in cuts
        ]


class _Fetch:
    """Pieces asked for, a window ahead of those that were put in their places."""

    def __init__(self, array: PartedArray, pieces: list[_Piece], out: npt.NDArray[Any]) -> None:
        self._array, self._out = array, out
        self._left = deque(pieces)
        self._waiting: deque[tuple[_Piece, Pending]] = deque()
        self._bytes = 0

    def ask(self) -> None:
        """Ask for as much as the window holds."""
        while self._left:
            nbytes = self._left[0].ids.size * self._array.span_bytes
            if self._waiting and self._bytes + nbytes > WINDOW_BYTES:
                return
            piece = self._left.popleft()
            self._waiting.append((piece, self._array.ask(piece)))
            self._bytes += nbytes

    def finish(self) -> None:
        """Put every piece in its place."""
        while self._waiting:
            piece, pending = self._waiting.popleft()
            rows = self._array.receive(pending)
            self._bytes -= rows.nbytes
            del pending
            self.ask()
            place_rows(rows, piece.places, self._out, self._array.span_bytes)


def place_rows(rows: _Bytes, places: Ids | slice, out: npt.NDArray[Any], size: int) -> None:
    """Copy rows to their places, or into a stretch.

    Args:
        rows: (n, size), contiguous.
        places: The row of `out` that each goes to.
        out: Contiguous, rows of `size` bytes.
        size: Bytes of a row.
    """
    word = widest_word(size | out.ctypes.data | rows.ctypes.data)
    target = out.reshape(-1).view(word).reshape(-1, size // word.itemsize)
    source = rows.reshape(-1).view(word).reshape(-1, size // word.itemsize)
    if isinstance(places, slice):
        target[places] = source
    else:
        scatter_rows(read_only(source), places, target)


def narrowed(ids: Ids, most: int) -> npt.NDArray[Any]:
    """Ids in as few bytes as they need, to be sent: they are below `most`."""
    return ids.astype(np.int32) if most <= np.iinfo(np.int32).max else ids


def _targets(positions: Ids | None, places: Ids | None) -> Ids | None:
    """Rows of the result that positions among the ids go to; None: in order."""
    if positions is None or places is None:
        return places if positions is None else positions
    return places[positions]


def _bounded(cut: slice, size: int) -> slice:
    return slice(cut.start, min(cut.stop, size))
