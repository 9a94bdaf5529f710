"""Edges from .npy: (2, E) or (E, 2), any integer type, byte order and memory order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.npy import NpyFile, NpyReader, read_npy_header
from overspill.build.readers import EdgeChunk, RowSource, no_columns
from overspill.build.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError

_ALIVE = 3


class NpyEdges:
    """A reader of one .npy file; rows are counted from 0, as numpy does."""

    text = (False, False)

    def __init__(self, file: NpyFile, *, edge_axis: int) -> None:
        self.path, self._file, self._axis = file.path, file, edge_axis
        self.nbytes = file.file_bytes
        self.count: int | None = file.shape[edge_axis]
        self.columns = ("0", "1")

    def locate(self, edge: int) -> int:
        """The position along the edge axis."""
        return edge

    def rows(self, columns: tuple[str, ...]) -> RowSource:
        """There are no columns beside the ids."""
        raise no_columns(self.path, columns)

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges; InputError at an unsigned id beyond 63 bits."""
        count = self.count or 0
        # (2, E) in C order, or (E, 2) in Fortran order, is one run of sources, then of targets.
        apart = (self._axis == 1) != self._file.fortran
        raw = [np.empty((2, most_edges), self._file.dtype) for _ in range(_ALIVE)]
        native = self._file.dtype == np.dtype(np.int64) and apart
        ids = raw if native else [np.empty((2, most_edges), np.int64) for _ in range(_ALIVE)]
        with NpyReader(self._file) as reader:
            for number, first in enumerate(range(0, count, most_edges)):
                length = min(most_edges, count - first)
                out = ids[number % _ALIVE]
                held = self._read(reader, raw[number % _ALIVE], first, length, apart)
                if not native:
                    self._require_signed(held, first)
                    out[:, :length] = held
                done = self._file.offset + (first + length) * 2 * self._file.dtype.itemsize
                yield EdgeChunk(out[0, :length], out[1, :length], first, done)

    def _read(
        self, reader: NpyReader, raw: npt.NDArray[Any], first: int, length: int, apart: bool
    ) -> npt.NDArray[Any]:
        if apart:
            reader.elements(first, raw[0, :length])
            reader.elements((self.count or 0) + first, raw[1, :length])
            return raw[:, :length]
        pairs = raw.reshape(-1)[: 2 * length]
        reader.elements(2 * first, pairs)
        return pairs.reshape(length, 2).T

    def _require_signed(self, held: npt.NDArray[Any], first: int) -> None:
        if held.dtype.kind != "u" or held.dtype.itemsize < 8:
            return
        wrong = held > np.uint64(2**63 - 1)
        if wrong.any():
            edge, column = (int(place[0]) for place in np.nonzero(wrong.T))
            raise InputError(
                "an id does not fit 63 bits",
                path=self.path,
                row=first + edge,
                column=self.columns[column],
                value=str(int(held[column, edge])),
            )


def open_reader(source: SourceFile, spec: EdgeSpec, _text: tuple[bool, bool]) -> NpyEdges:
    """Check dtype and shape; see `overspill.build.readers.open_edges`."""
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
    )
