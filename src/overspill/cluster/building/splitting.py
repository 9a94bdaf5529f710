"""The input cut into splits: about equal bytes each, each of files that one machine has.

Many small files make one split together, a large one makes several: rows of .npy, row groups of
Parquet; other files are read whole. Files that several machines see are shared out among them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from overspill.build.parting.split_spec import Window

_LEAST_BYTES, _MOST_BYTES = 32 << 20, 1 << 30
_MOST_SPLITS = 500


@dataclass(frozen=True)
class InputFile:
    """A file of edges.

    Attributes:
        window: The file.
        machines: Numbers of the machines that have it.
        rows: Edges, where the header tells.
        units: Edges of each part that can be read alone; None: see `by_row`.
        by_row: Whether any range of edges can be read alone.
    """

    window: Window
    machines: tuple[int, ...]
    rows: int | None
    units: tuple[int, ...] | None
    by_row: bool


@dataclass(frozen=True)
class Piece:
    """A file, or a part of it, as a split reads it.

    Attributes:
        window: What is read.
        file: The number of the file among those of its edge type.
        rows: Edges, where that is known.
        nbytes: Bytes that are read.
    """

    window: Window
    file: int
    rows: int | None
    nbytes: int


@dataclass(frozen=True)
class Cut:
    """A split as it is cut.

    Attributes:
        pieces: What is read, in order.
        machines: Numbers of the machines that have it all, that which should read it first.
    """

    pieces: tuple[Piece, ...]
    machines: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are read."""
        return sum(piece.nbytes for piece in self.pieces)


def split_bytes(total: int, cpus: int) -> int:
    """How much a split reads: each processor as many as every other, few, none of them tiny."""
    rounds = max(1, -(-total // (cpus * _MOST_BYTES)))
    rounds = min(rounds, max(1, _MOST_SPLITS // cpus))
    return max(_LEAST_BYTES, -(-total // (cpus * rounds)))


def cut_input(
    files: Sequence[InputFile], most_bytes: int, shares: Sequence[float], *, in_order: bool
) -> list[Cut]:
    """Cut files into splits.

    Args:
        files: In the order of the input.
        most_bytes: What a split is to read.
        shares: What each machine is to read of all, in any unit.
        in_order: Whether splits must follow one another as the input does; else each machine's
            files may come together.

    Returns:
        The splits. Every edge is in one of them.
    """
    cutting = _Cutting(most_bytes, shares)
    for number, file in enumerate(files):
        for piece in _pieces(number, file, most_bytes):
            cutting.add(piece, file.machines, in_order=in_order)
    return cutting.finish()


class _Cutting:
    def __init__(self, most_bytes: int, shares: Sequence[float]) -> None:
        self._most, self._shares = most_bytes, shares
        self._loads = [0.0] * len(shares)
        self._open: dict[tuple[int, ...], Cut] = {}
        self._found: list[Cut] = []

    def add(self, piece: Piece, machines: tuple[int, ...], *, in_order: bool) -> None:
        if in_order and machines not in self._open:
            self._close_all()
        held = self._open.pop(machines, Cut((), machines))
        if held.pieces and held.nbytes + piece.nbytes > self._most + self._most // 8:
            self._close(held)
            held = Cut((), machines)
        self._open[machines] = Cut((*held.pieces, piece), machines)

    def _close(self, cut: Cut) -> None:
        """Give a split to the machine, of those that have it, that has least of its share."""
        best = min(
            cut.machines,
            key=lambda one: (self._loads[one] + cut.nbytes) / max(self._shares[one], 1e-9),
        )
        self._loads[best] += cut.nbytes
        others = tuple(one for one in cut.machines if one != best)
        self._found.append(replace(cut, machines=(best, *others)))

    def _close_all(self) -> None:
        for cut in self._open.values():
            self._close(cut)
        self._open = {}

    def finish(self) -> list[Cut]:
        self._close_all()
        return self._found


def _pieces(number: int, file: InputFile, most_bytes: int) -> Iterator[Piece]:
    """Windows of a file that are about as large as a split, or the whole file."""
    window, nbytes = file.window, max(1, file.window.nbytes)
    count = -(-nbytes // most_bytes)
    if count == 1 or not (file.by_row or file.units) or not file.rows:
        yield Piece(window, number, file.rows, nbytes)
        return
    goals = [file.rows * place // count for place in range(count + 1)]
    if file.by_row:
        cuts, ends = goals, None
    else:
        ends = [0, *accumulate(file.units or ())]
        cuts = sorted({*(bisect_left(ends, goal) for goal in goals[:-1]), len(ends) - 1})
    for first, last in pairwise(cuts):
        rows = last - first if ends is None else ends[last] - ends[first]
        part = replace(window, first=first, last=last)
        yield Piece(part, number, rows, nbytes * rows // file.rows)
