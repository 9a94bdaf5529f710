"""Edges from .npy: (2, E) or (E, 2), any integer type, byte order and memory order.

Bottleneck: the device. Two chunks are read ahead, past the page cache, each column by a thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.readers.edges import EdgeChunk, InputRows, no_columns
from overspill.build.readers.npy import NpyFile, NpyReader, read_npy_header
from overspill.build.readers.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError
from overspill.linux.direct import aligned_bytes

Columns = tuple[npt.NDArray[Any], npt.NDArray[Any]]
_ALIVE = 3
_AHEAD = 2  # chunks that are being read, beside those


class NpyEdges:
    """A reader of one .npy file; rows are counted from 0, as numpy does."""

    text = (False, False)

    def __init__(
        self, file: NpyFile, *, edge_axis: int, window: tuple[int, int] | None = None
    ) -> None:
        self.path, self._file, self._axis = file.path, file, edge_axis
        self._all = file.shape[edge_axis]
        self._first, self._last = (0, self._all) if window is None else window
        self.nbytes = self._bytes_of(self._last)
        self.count: int | None = self._last - self._first
        self.columns = ("0", "1")

    def within(self, first: int, last: int) -> NpyEdges:
        """A reader of the edges from `first` up to `last`, which keep their numbers."""
        return NpyEdges(self._file, edge_axis=self._axis, window=(first, last))

    def _bytes_of(self, last: int) -> int:
        return self._file.offset + (last - self._first) * 2 * self._file.dtype.itemsize

    def locate(self, edge: int) -> int:
        """The position along the edge axis."""
        return edge

    def rows(self, columns: tuple[str, ...]) -> InputRows:
        """There are no columns beside the ids."""
        raise no_columns(self.path, columns)

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges; InputError at an unsigned id beyond 63 bits."""
        native = self._file.dtype == np.dtype(np.int64) and self._apart
        most = min(most_edges, self.count or 1)
        ids = [np.empty((2, 0 if native else most), np.int64) for _ in range(_ALIVE)]
        for number, (first, held) in enumerate(self._read_ahead(most)):
            if not native:
                self._require_signed(held, first)
                out = ids[number % _ALIVE][:, : len(held[0])]
                out[0], out[1] = held
                held = out[0], out[1]
            yield EdgeChunk(held[0], held[1], first, self._bytes_of(first + len(held[0])))

    @property
    def _apart(self) -> bool:
        """Whether the file is a run of sources, then of targets.

        So it is for (2, E) in C order, or (E, 2) in Fortran order.
        """
        return (self._axis == 1) != self._file.fortran

    def _read_ahead(self, most: int) -> Iterator[tuple[int, Columns]]:
        """The first edge and both columns of each chunk, while the next ones are being read."""
        with (
            NpyReader(self._file) as reader,
            ThreadPoolExecutor(2 * _AHEAD, thread_name_prefix="overspill-npy") as pool,
        ):
            room = reader.room_bytes(most if self._apart else 2 * most)
            memories = itertools.cycle(
                [
                    [aligned_bytes(room) for _ in range(2 if self._apart else 1)]
                    for _ in range(_ALIVE + _AHEAD)
                ]
            )
            coming: deque[tuple[int, list[Future[npt.NDArray[Any]]]]] = deque()
            for first in range(self._first, self._last, most):
                length = min(most, self._last - first)
                places = [(first, length), (self._all + first, length)]
                if not self._apart:
                    places = [(2 * first, 2 * length)]
                reads = [
                    pool.submit(reader.part, *place, memory)
                    for place, memory in zip(places, next(memories), strict=True)
                ]
                coming.append((first, reads))
                if len(coming) > _AHEAD:
                    yield self._columns(*coming.popleft())
            while coming:
                yield self._columns(*coming.popleft())

    def _columns(self, first: int, reads: list[Future[npt.NDArray[Any]]]) -> tuple[int, Columns]:
        parts = [read.result() for read in reads]
        both = parts if self._apart else parts[0].reshape(-1, 2).T
        return first, (both[0], both[1])

    def _require_signed(self, held: Columns, first: int) -> None:
        if self._file.dtype.kind != "u" or self._file.dtype.itemsize < 8:
            return
        wrong = np.stack([column > np.uint64(2**63 - 1) for column in held], 1)
        if wrong.any():
            edge, column = (int(place[0]) for place in np.nonzero(wrong))
            raise InputError(
                "an id does not fit 63 bits",
                path=self.path,
                row=first + edge,
                column=self.columns[column],
                value=str(int(held[column][edge])),
                remedy="number the nodes below 2**63, or give their ids as text",
            )


def open_reader(source: SourceFile, spec: EdgeSpec, _text: tuple[bool, bool]) -> NpyEdges:
    """Check dtype and shape; see `edges.open_edges`."""
    file = read_npy_header(source)
    if file.dtype.kind not in "iu" or file.type_name != file.dtype.name:
        with NpyReader(file) as reader:
            first = np.empty(min(1, file.nbytes), file.dtype)
            reader.elements(0, first)
        raise InputError(
            f"edge ids must be integers; {file.path} holds {file.type_name}",
            path=file.path,
            row=0,
            column="0",
            value=str(first[0]) if len(first) else file.type_name,
            remedy="save the edges as int64 or int32",
        )
    return NpyEdges(file, edge_axis=_edge_axis(file, spec.edge_axis))


def _edge_axis(file: NpyFile, wanted: int | None) -> int:
    fitting = [axis for axis in (0, 1) if len(file.shape) == 2 and file.shape[1 - axis] == 2]
    if wanted is not None:
        fitting = [axis for axis in fitting if axis == wanted]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(
            f"{file.path} has shape (2, 2): two edges as rows, or as columns?",
            path=file.path,
            value=str(file.shape),
            remedy="say edge_axis=1 for (2, E) or edge_axis=0 for (E, 2)",
        )
    raise InputError(
        f"{file.path} has shape {file.shape} where edges want "
        + {None: "(2, E) or (E, 2)", 1: "(2, E)", 0: "(E, 2)"}[wanted],
        path=file.path,
        value=str(file.shape),
        remedy="save the edges in one of these shapes",
    )
