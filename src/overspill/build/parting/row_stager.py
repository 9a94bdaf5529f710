"""Rows of edge arrays staged for the parts that get their edges: a file a part and array.

Bottleneck: the device. Each chunk's rows are brought into the order of their parts, keeping that of
the input, and appended. Memory: a chunk's rows twice. Limits: a descriptor a part and array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from overspill.build.parting.split_owners import Owners
from overspill.build.parting.staged_edges import StageSizes, parts_table
from overspill.build.passes.spool import ScratchFile
from overspill.kernels.stage import find_parts

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]


class RowStager:
    """Stages the rows of edges, and the edges' ids; a context manager that undoes what is not done.

    Args:
        path: Gives the place of the file of an array's rows for a part; of "" that of the ids.
        owners: Which part has which nodes.
        names: The arrays.
    """

    def __init__(
        self, path: Callable[[str, int], Path], owners: Owners, names: tuple[str, ...]
    ) -> None:
        self._path, self._names = path, ("", *names)
        self._num_parts = owners.num_parts
        self._table = parts_table(owners, StageSizes.of(owners.num_parts))
        self._files: dict[tuple[str, int], ScratchFile] = {}
        self._counts = np.zeros(owners.num_parts, np.int64)
        self._kept = False

    def add(self, ends: tuple[Ids, Ids | None], ids: Ids, rows: Mapping[str, Rows]) -> None:
        """Stage the rows of some edges.

        Args:
            ends: The nodes whose parts get the edges; the other ends too where edges run both ways.
            ids: The edges' ids.
            rows: Array -> a row an edge.
        """
        places, cuts = self._by_part(*ends)
        for name in self._names:
            moved = np.ascontiguousarray((ids if name == "" else rows[name])[places])
            for part, (first, last) in enumerate(pairwise(cuts.tolist())):
                if last > first:
                    piece = moved[first:last].reshape(-1).view(np.uint8)
                    self._file(name, part).append(piece.data)
        self._counts += np.diff(cuts)

    def finish(self) -> list[int]:
        """Make all files durable; returns how many rows each part got."""
        for file in self._files.values():
            file.seal()
            file.keep()
        self._kept = True
        return [int(count) for count in self._counts]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values() if not self._kept else ():
            file.remove()

    def _by_part(self, nodes: Ids, others: Ids | None) -> tuple[Ids, Ids]:
        """Places of the edges in the order of their parts, and where each part begins and ends."""
        parts = np.empty(len(nodes), np.int64)
        find_parts(nodes, self._table, parts)
        places = np.arange(len(nodes))
        if others is not None:
            back = np.empty(len(others), np.int64)
            find_parts(others, self._table, back)
            # One part that gets both ways has the row once.
            keep = np.stack([np.ones(len(nodes), np.bool_), parts != back], 1).reshape(-1)
            parts = np.stack([parts, back], 1).reshape(-1)[keep]
            places = np.repeat(places, 2)[keep]
        order = np.argsort(parts, kind="stable")
        cuts = np.searchsorted(parts[order], np.arange(self._num_parts + 1))
        return places[order], cuts

    def _file(self, name: str, part: int) -> ScratchFile:
        if (name, part) not in self._files:
            path = self._path(name, part)
            path.unlink(missing_ok=True)  # of an attempt that was killed
            self._files[name, part] = ScratchFile(path)
        return self._files[name, part]


class RowCursor:
    """Rows that come in pieces of any size, taken in pieces of another.

    Args:
        pieces: Each valid until the third after it.
    """

    def __init__(self, pieces: Iterator[Rows]) -> None:
        self._pieces = pieces
        self._held: Rows | None = None

    def take(self, count: int) -> Rows | None:
        """The next rows, as a copy; None where there are fewer."""
        found: list[Rows] = []
        while count:
            if self._held is None or not len(self._held):
                self._held = next(self._pieces, None)
                if self._held is None:
                    return None
            some = self._held[:count]
            found.append(some.copy())
            count -= len(some)
            self._held = self._held[len(some) :]
        return found[0] if len(found) == 1 else np.concatenate(found) if found else np.empty(0)

    def close(self) -> None:
        """Close what the rows come from."""
        getattr(self._pieces, "close", lambda: None)()
