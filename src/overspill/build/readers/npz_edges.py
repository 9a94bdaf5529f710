"""Edges and tables from .npz, member by member in constant memory.

Edges are the only array of integers with two axes, (2, E) or (E, 2), or two members of one axis;
what else has as many rows are further columns. Where sources and targets lie one after the other in
a compressed member, its first half is inflated twice. Rows are counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.readers.edges import Ids
from overspill.build.readers.npz_archive import MemberElements, NpzMember, NpzReader, read_members
from overspill.build.readers.source import SourceFile
from overspill.build.readers.table import (
    Layout,
    TableChunk,
    TableEdges,
    pick_columns,
    require_columns,
)
from overspill.build.spec import EdgeAxis, EdgeSpec
from overspill.errors import InputError
from overspill.storage.records import STORED_DTYPES

Array = npt.NDArray[Any]
_PAIR = ("0", "1")
_NAMED_PAIRS = (("src", "dst"), ("row", "col"), ("source", "target"), ("head", "tail"))
_NAMED_MATRIX = "edge_index"
_MOST = np.uint64(2**63 - 1)


class NpzTable:
    """Members of one archive as columns; a matrix of edges is the columns "0" and "1"."""

    first_row = 0

    def __init__(
        self,
        source: SourceFile,
        members: dict[str, NpzMember],
        *,
        matrix: NpzMember | None = None,
        axis: int = 1,
        count: int | None = None,
    ) -> None:
        self.path, self.nbytes, self.count = source.path, source.nbytes, count
        self._source, self._members = source, members
        self._matrix, self._axis = matrix, axis
        self.names: Sequence[str] = tuple(members)

    def require_ids(self, column: str) -> bool:
        """Refuse what is no integers; ids of archives are never text."""
        member = self._matrix if self._matrix and column in _PAIR else self._members[column]
        if member.dtype.kind not in "iu" or len(member.shape) != 1 + (member is self._matrix):
            raise InputError(
                f"edge ids must be integers; member {member.name!r} of {self.path} holds "
                f"{member.dtype} of shape {member.shape}",
                path=self.path,
                column=column,
                value=str(member.dtype),
                remedy='name the two arrays of ids: columns=("from", "to")',
            )
        return False

    def layout(self, columns: Sequence[str]) -> Layout:
        """How these members look; each has as many rows as there are edges."""
        held = [self._members[name] for name in columns]
        for member in held:
            self._require_rows(member, held[0], alone=len(held) == 1)
        shape = held[0].shape[1:] if len(held) == 1 else (len(held),)
        return Layout(held[0].dtype.name, shape)

    def _require_rows(self, member: NpzMember, first: NpzMember, *, alone: bool) -> None:
        wanted = first.count if self.count is None else self.count
        told = None
        if not member.holds_numbers or member.dtype.name not in STORED_DTYPES:
            told = f"holds {member.dtype}, which no array file can"
        elif not member.shape or member.count != wanted:
            told = f"has shape {member.shape}, not {wanted} rows"
        elif not member.row_by_row:
            told = "lies in Fortran order, column after column"
        elif not alone and (member.dtype.name != first.dtype.name or len(member.shape) != 1):
            told = f"cannot be one column of an array of {first.dtype} numbers"
        if told:
            raise InputError(
                f"member {member.name!r} of {self.path} {told}",
                path=self.path,
                column=member.name,
                value=str(member.dtype),
                remedy="save it with one row an edge or node: numpy.ascontiguousarray(array)",
            )

    def read(
        self, ids: Sequence[str], values: Sequence[str], most_rows: int
    ) -> Iterator[TableChunk]:
        """Yield all rows; InputError at an unsigned id beyond 63 bits."""
        layout = self.layout(values) if values else None
        count = self.count
        if count is None:
            count = self._members[(*values, *ids)[0]].count
        with ExitStack() as stack:
            reader = stack.enter_context(NpzReader(self._source))
            ends = self._ends(reader, ids)
            columns = [_Column(reader, self._members[name]) for name in values]
            for first in range(0, count, most_rows):
                length = min(most_rows, count - first)
                found = tuple(
                    self._signed(held, name, first)
                    for held, name in zip(ends.take(length), ids, strict=True)
                )
                rows = None
                if layout is not None:
                    rows = _rows([column.take(length) for column in columns], layout)
                yield TableChunk(found, rows, first, self.nbytes * (first + length) // count)
            ends.require_end()
            for column in columns:
                column.require_end()

    def _ends(self, reader: NpzReader, ids: Sequence[str]) -> _Ends:
        if self._matrix is None or not set(ids) <= set(_PAIR):
            streams = [reader.column(self._members[name]) for name in ids]
            return _Ends(streams, ending=streams)
        # (2, E) in C order, or (E, 2) in Fortran order, is one run of sources, then of targets.
        if (self._axis == 1) != self._matrix.fortran:
            starts = {"0": 0, "1": self.count or 0}
            streams = [reader.column(self._matrix, first=starts[name]) for name in ids]
            return _Ends(streams, ending=streams[1:])
        streams = [reader.column(self._matrix)]
        return _Ends(streams, ending=streams, places=[_PAIR.index(name) for name in ids])

    def _signed(self, held: Array, name: str, first: int) -> Ids:
        if held.dtype == np.uint64 and len(held) and held.max() > _MOST:
            place = int(np.argmax(held > _MOST))
            raise InputError(
                "an id does not fit 63 bits",
                path=self.path,
                row=first + place,
                column=name,
                value=str(held[place]),
                remedy="save the ids as int64 with the same bits",
            )
        return np.ascontiguousarray(held, np.int64)


class _Ends:
    """Sources and targets, from a stream each or as pairs from one."""

    def __init__(
        self,
        streams: list[MemberElements],
        *,
        ending: list[MemberElements],
        places: list[int] | None = None,
    ) -> None:
        self._streams, self._ending, self._places = streams, ending, places

    def take(self, count: int) -> list[Array]:
        if self._places is None:
            return [stream.take(count) for stream in self._streams]
        pairs = self._streams[0].take(2 * count).reshape(count, 2)
        return [pairs[:, place] for place in self._places]

    def require_end(self) -> None:
        for stream in self._ending:
            stream.require_end()


class _Column:
    """The rows of one member."""

    def __init__(self, reader: NpzReader, member: NpzMember) -> None:
        self._elements, self._shape = reader.column(member), member.shape[1:]

    def take(self, count: int) -> Array:
        elements = self._elements.take(count * math.prod(self._shape))
        return elements.reshape(count, *self._shape)

    def require_end(self) -> None:
        self._elements.require_end()


def _rows(columns: list[Array], layout: Layout) -> Array:
    rows = columns[0] if len(columns) == 1 else np.stack(columns, 1)
    return rows.astype(np.dtype(layout.dtype), copy=False)


def open_reader(source: SourceFile, spec: EdgeSpec, _text: tuple[bool, bool]) -> TableEdges:
    """Find the array of edges, or the two of ids; see `edges.open_edges`."""
    members = read_members(source)
    matrix, columns = _pick(source.path, members, spec.columns)
    if matrix is not None:
        axis = _edge_axis(source.path, matrix, spec.edge_axis)
        table = NpzTable(source, members, matrix=matrix, axis=axis, count=matrix.shape[axis])
        return TableEdges(table, _PAIR)
    edges = TableEdges(NpzTable(source, members, count=members[columns[0]].count), columns)
    counts = [members[name].count for name in columns]
    if counts[0] != counts[1]:
        raise InputError(
            f"{source.path} has {counts[0]} sources ({columns[0]!r}) and {counts[1]} targets "
            f"({columns[1]!r})",
            path=source.path,
            column=columns[1],
            value=str(counts[1]),
            remedy="save as many sources as targets: an edge is one of each",
        )
    return edges


def open_table_file(
    source: SourceFile, columns: Sequence[str], _text: Sequence[str], _header: bool | None
) -> NpzTable:
    """Open the file; see `tables.open_table`."""
    members = read_members(source)
    require_columns(source.path, list(members), columns)
    return NpzTable(source, members, count=members[columns[0]].count)


def _pick(
    path: str, members: dict[str, NpzMember], wanted: tuple[str, str] | None
) -> tuple[NpzMember | None, tuple[str, str]]:
    """The array of edges, or the names of the two arrays of ids."""
    if wanted is not None:
        columns = pick_columns(path, list(members), wanted)
        one = members[columns[0]] if columns[0] == columns[1] else None
        return (one if one is not None and len(one.shape) == 2 else None), columns
    for pair in _NAMED_PAIRS:
        if set(pair) <= set(members):
            return None, pair
    whole = [member for member in members.values() if member.dtype.kind in "iu"]
    matrices = [member for member in whole if len(member.shape) == 2]
    named = [member for member in matrices if member.name == _NAMED_MATRIX]
    if len(matrices) == 1 or named:
        return (named or matrices)[0], _PAIR
    flat = [member.name for member in whole if len(member.shape) == 1]
    if not matrices and len(flat) == 2:
        return None, (flat[0], flat[1])
    told = ", ".join(f"{member.name} {member.dtype} {member.shape}" for member in members.values())
    raise InputError(
        f"{path}: which of its arrays are the edges? It holds {told}",
        path=path,
        remedy='name two arrays of ids, columns=("from", "to"), or an array of both twice, '
        'columns=("edges", "edges")',
    )


def _edge_axis(path: str, member: NpzMember, wanted: EdgeAxis | None) -> int:
    fitting = [axis for axis in (0, 1) if member.shape[1 - axis] == 2]
    if wanted is not None:
        fitting = [axis for axis in fitting if axis == wanted]
    if len(fitting) == 1:
        return fitting[0]
    told = "is it (2, E) or (E, 2)?" if fitting else "edges want (2, E) or (E, 2)"
    raise InputError(
        f"member {member.name!r} of {path} has shape {member.shape}: {told}",
        path=path,
        column=member.name,
        value=str(member.shape),
        remedy="say edge_axis=1 for (2, E) or edge_axis=0 for (E, 2)" if fitting else None,
    )
