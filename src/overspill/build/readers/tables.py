"""Node tables: columns of one file or several, in order, as the rows of one array."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import cast

from overspill.build.readers.edges import RawIds, sniff_format
from overspill.build.readers.source import SourceFile
from overspill.build.readers.table import Layout, Rows, Table, TableColumns
from overspill.errors import InputError

_MODULES = {
    "parquet": "parquet_edges",
    "csv": "csv_edges",
    "arrow": "arrow_edges",
    "npz": "npz_edges",
    "tfrecord": "tfrecord_edges",
}


class TableRows:
    """Columns of several tables, one after another, as one array of node rows.

    Attributes:
        path: The first file, for messages.
        dtype: A name of `STORED_DTYPES`, the same in every file.
        row_shape: Shape of one row, the same in every file.
        count: Number of rows; None where only reading tells.
        nbytes: Bytes of all files.
        key_text: Whether the keys are text.
        parts: The columns of each file.
    """

    def __init__(self, parts: Sequence[TableColumns]) -> None:
        self.parts = tuple(parts)
        telling = [part for part in parts if part.layout.known and part.count != 0]
        if any(part.dtype == "float64" for part in telling):
            for part in telling:
                part.take_floats()
        first = (telling or parts)[0]
        for part in telling:
            _require_alike(part, first)
        counts = [part.count for part in parts]
        known = [count for count in counts if count is not None]
        self.path, self.key_text = parts[0].path, first.key_text
        self.dtype, self.row_shape = first.dtype, first.row_shape
        self.count = sum(known) if len(known) == len(counts) else None
        self.nbytes = sum(part.nbytes for part in parts)

    def pieces(self, most_bytes: int) -> Iterator[Rows]:
        """Yield (k, *row_shape) pieces of all files in order, of at most so many bytes."""
        for part in self.parts:
            if part.count != 0:
                yield from part.pieces(most_bytes)

    def keyed_pieces(self, most_bytes: int) -> Iterator[tuple[RawIds, Rows, str, int]]:
        """Yield keys, their rows, the file, and the number of the first row within it."""
        for part in self.parts:
            if part.count != 0:
                yield from part.keyed_pieces(most_bytes)


def open_table(
    paths: Sequence[str],
    columns: Sequence[str],
    *,
    key: str | None = None,
    text: bool = False,
    header: bool | None = None,
) -> TableRows:
    """Open the files of one node array and check what can be checked without reading them.

    The types of CSV columns are in no header: one pass over the file tells them.

    Args:
        paths: Files in order.
        columns: One column, of numbers or of lists of as many numbers each, or several of one type.
        key: Column of node ids.
        text: Whether keys of CSV files are text.
        header: Whether the first line of CSV files names the columns; None tells by its cells.

    Raises:
        InputError: A file or a column is missing, holds what no array can, or differs in type from
            the first file's.
    """
    return TableRows([_open(path, columns, key, text=text, header=header) for path in paths])


def _open(
    path: str, columns: Sequence[str], key: str | None, *, text: bool, header: bool | None
) -> TableColumns:
    source = SourceFile.check(path)
    kind = sniff_format(source)
    if kind not in _MODULES:
        raise InputError(
            f"{path} has no columns by name, so none is called {columns[0]!r}",
            path=path,
            column=columns[0],
            remedy="give Parquet, CSV, Arrow, .npz or TFRecord files, or the .npy by itself",
        )
    module = importlib.import_module(f"overspill.build.readers.{_MODULES[kind]}")
    keys = () if key is None else (key,)
    held = module.open_table_file(source, (*columns, *keys), keys if text else (), header)
    table = cast("Table", held)
    return TableColumns(table, columns, key)


def _require_alike(part: TableColumns, first: TableColumns) -> None:
    if _told(part.layout) != _told(first.layout):
        raise InputError(
            f"{part.path} holds {_told(part.layout)} where {first.path} holds "
            f"{_told(first.layout)}",
            path=part.path,
            value=_told(part.layout),
            remedy="write every file of one array with the same types",
        )
    if part.key_text != first.key_text:
        raise InputError(
            f"the keys of {part.path} are {'text' if part.key_text else 'integers'}, those of "
            f"{first.path} are not",
            path=part.path,
            remedy="write every file of one array with the same types",
        )


def _told(layout: Layout) -> str:
    return f"{layout.unit or layout.dtype} of row shape {layout.row_shape}"
