"""Files with named columns: ids and rows read from them, whatever their format.

A format implements `Table`; edges and further columns as arrays are made of it here, node tables in
`tables`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from overspill.build.readers.edges import EdgeChunk, RawIds
from overspill.errors import InputError

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """How the rows of an array look.

    Attributes:
        dtype: A name of `STORED_DTYPES`.
        row_shape: Shape of one row.
        unit: What integers of a time count; files of one array must agree.
        known: Whether `row_shape` is; a file without rows does not tell the length of its lists,
            nor, of TFRecord and CSV, anything else.
        inferred: Whether only the cells tell, so that whole numbers may be floats that look so.
    """

    dtype: str
    row_shape: tuple[int, ...]
    unit: str = ""
    known: bool = True
    inferred: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.row_shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class TableChunk:
    """Some rows of one file.

    Attributes:
        ids: Of each column of ids that was asked for.
        rows: (n, *row_shape) of the columns of values; None where none was asked for.
        first: Number of the first of these rows, from 0.
        bytes_done: How far into the file the reader is.
    """

    ids: tuple[RawIds, ...]
    rows: Rows | None
    first: int
    bytes_done: int


class Table(Protocol):
    """One file with named columns, read in order and in constant memory.

    Attributes:
        path: The file.
        nbytes: Its size.
        count: Number of rows, where the format tells without reading.
        names: The columns that ids and values can come from; none where any name will do, as
            there are no rows.
        first_row: The number that errors give to the first row.
    """

    path: str
    nbytes: int
    count: int | None
    names: Sequence[str]
    first_row: int

    def require_ids(self, column: str) -> bool:
        """Refuse a column that cannot hold ids; else whether they are text."""

    def layout(self, columns: Sequence[str]) -> Layout:
        """How these columns look as an array; InputError where they cannot be one."""

    def read(
        self, ids: Sequence[str], values: Sequence[str], most_rows: int
    ) -> Iterator[TableChunk]:
        """Yield all rows, at most so many at a time; what is yielded may be read-only."""


@runtime_checkable
class PagedTable(Protocol):
    """A table of which reading holds a page of each column at a time."""

    def page_bytes(self, columns: Sequence[str]) -> int:
        """Memory of the pages of some columns, as the file tells."""


def pick_columns(path: str, names: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, str]:
    """The columns of sources and targets: those wanted, "src" and "dst", or the only two.

    Raises:
        InputError: One is not there, or there twice.
    """
    if wanted is None:
        named = {"src", "dst"} <= set(names)
        wanted = ("src", "dst") if named or len(names) != 2 else names
    require_columns(path, names, wanted)
    return wanted[0], wanted[1]


def require_columns(
    path: str, names: Sequence[str], wanted: Sequence[str], *, of_edges: bool = True
) -> None:
    """Refuse a file without one of these columns, or with two of its name.

    Args:
        path: The file.
        names: Its columns.
        wanted: Those that there must be.
        of_edges: Whether they are the ids of edges, which the remedy then speaks of.

    Raises:
        InputError: It names the columns that there are.
    """
    for name in wanted:
        if names.count(name) != 1:
            many = "twice a" if name in names else "no"
            told = ", ".join(map(str, names[:20])) + (", ..." if len(names) > 20 else "")
            raise InputError(
                f"{path} has {many} column {name!r}; its columns are {told or 'none'}",
                path=path,
                column=name,
                remedy=_column_remedy(names, of_edges=of_edges),
            )


def _column_remedy(names: Sequence[str], *, of_edges: bool) -> str:
    for mark in ";|\t" if len(names) == 1 else "":
        if mark in names[0]:
            return f"CSV cells go between commas, in .tsv files between tabs, never {mark!r}"
    if not of_edges:
        return "name columns that there are"
    return 'name the columns: columns=("from", "to") for the ids of edges'


class TableEdges:
    """The edges of a table; see `edges.EdgeReader`."""

    def __init__(self, table: Table, columns: tuple[str, str]) -> None:
        self.path, self.nbytes, self.count = table.path, table.nbytes, table.count
        self.columns = columns
        self.text = (table.require_ids(columns[0]), table.require_ids(columns[1]))
        self._table = table

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield all edges; InputError at a cell that is null or no id of this kind."""
        for part in self._table.read(self.columns, (), most_edges):
            yield EdgeChunk(part.ids[0], part.ids[1], part.first, part.bytes_done)

    @property
    def table(self) -> Table:
        """Where they come from."""
        return self._table

    @property
    def page_bytes(self) -> int:
        """Memory that reading takes beside what it yields."""
        return _page_bytes(self._table, self.columns)

    def locate(self, edge: int) -> int:
        """The row of an edge, as the format's users count rows."""
        return self._table.first_row + edge

    def rows(self, columns: tuple[str, ...]) -> TableColumns:
        """Further columns as an array, one row an edge."""
        return TableColumns(self._table, columns)


class TableColumns:
    """Columns of one table as an array; see `edges.InputRows`."""

    def __init__(self, table: Table, columns: Sequence[str], key: str | None = None) -> None:
        if table.names:  # a file of records that holds none names nothing
            wanted = [*columns, *([] if key is None else [key])]
            require_columns(table.path, table.names, wanted, of_edges=False)
        self.key_text = False if key is None else table.require_ids(key)
        self.layout = table.layout(columns)
        self.path, self.nbytes, self.count = table.path, table.nbytes, table.count
        self.dtype, self.row_shape = self.layout.dtype, self.layout.row_shape
        self.first_row = table.first_row
        self._table, self._columns = table, tuple(columns)
        self._keys = () if key is None else (key,)

    def take_floats(self) -> None:
        """Read whole numbers as floats, where only the cells said that they are none."""
        if self.layout.inferred and self.dtype == "int64":
            self.layout = replace(self.layout, dtype="float64")
            self.dtype = "float64"

    @property
    def page_bytes(self) -> int:
        """Memory that reading takes beside what it yields."""
        return _page_bytes(self._table, (*self._columns, *self._keys))

    def pieces(self, most_bytes: int) -> Iterator[Rows]:
        """Yield (k, *row_shape) pieces of at most so many bytes, one row at least."""
        for part in self._read((), most_bytes):
            yield self._typed(part)

    def keyed_pieces(self, most_bytes: int) -> Iterator[tuple[RawIds, Rows, str, int]]:
        """Yield keys, their rows, the file, and the number of the first row within it."""
        for part in self._read(self._keys, most_bytes):
            yield part.ids[0], self._typed(part), self.path, self.first_row + part.first

    def _typed(self, part: TableChunk) -> Rows:
        rows = cast("Rows", part.rows)
        if self.layout.inferred and rows.dtype == np.int64 and self.dtype == "float64":
            return rows.astype(np.float64)
        return rows

    def _read(self, keys: Sequence[str], most_bytes: int) -> Iterator[TableChunk]:
        most_rows = max(1, most_bytes // max(1, self.layout.row_bytes + 8 * len(keys)))
        return self._table.read(keys, self._columns, most_rows)


def _page_bytes(table: Table, columns: Sequence[str]) -> int:
    return table.page_bytes(columns) if isinstance(table, PagedTable) else 0
