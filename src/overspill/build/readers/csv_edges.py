"""Edges and tables from CSV, tabs for .tsv, with a header or without.

Arrow says little about a wrong cell, so a file that does not parse is read again as text, in
constant memory, to find the first one. Arrow also takes hexadecimal cells for numbers: a file with
"0x" anywhere in it is read once more, as text. Values are int64, float64 or bool: the first block
says which, and one pass over the file whether integers stay so to its end. Rows are data rows,
counted from 1: the header and blank lines are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import numpy as np
import pyarrow as pa

from overspill.build.readers.arrow_ids import Where, ids_of
from overspill.build.readers.arrow_rows import rows_of
from overspill.build.readers.arrow_tables import keep_arrow_small
from overspill.build.readers.csv_cells import kind_of_cells, what_is_wrong
from overspill.build.readers.csv_header import CsvHeader, read_header
from overspill.build.readers.csv_stream import CsvStream, UnreadCellError, WatchedStream
from overspill.build.readers.edges import Strings, id_remedy
from overspill.build.readers.source import SourceFile
from overspill.build.readers.table import Layout, TableChunk, TableEdges, pick_columns
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError

_TYPES = {"int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}


class CsvTable:
    """One CSV file; `text` are the columns whose ids are text."""

    first_row = 1

    def __init__(self, source: SourceFile, header: CsvHeader, text: Sequence[str]) -> None:
        self.path, self.nbytes = source.path, source.nbytes
        self.count: int | None = None
        self.names: Sequence[str] = header.names
        self._stream = CsvStream(source, header)
        self._text = frozenset(text)
        self._decimal = self._empty = False
        self._kinds: dict[str, str] = {}

    def require_ids(self, column: str) -> bool:
        """Whether they are text; only reading tells whether they are ids."""
        return column in self._text

    def layout(self, columns: Sequence[str]) -> Layout:
        """What these columns hold: booleans, or int64 where every cell is one, or float64."""
        missing = [name for name in columns if name not in self._kinds]
        if missing:
            self._kinds |= self._kinds_of(missing)
        kinds = {self._kinds[name] for name in columns}
        if "bool" in kinds and len(kinds) > 1:
            raise InputError(
                f"columns of one array differ in type: {', '.join(columns)} of {self.path} hold "
                "both booleans and numbers",
                path=self.path,
                column=columns[0],
                remedy="give each an array of its own",
            )
        kind = "float64" if "float64" in kinds else kinds.pop()
        shape = (len(columns),) if len(columns) > 1 else ()
        return Layout(kind, shape, known=not self._empty, inferred=True)

    def read(
        self, ids: Sequence[str], values: Sequence[str], most_rows: int
    ) -> Iterator[TableChunk]:
        """Yield all rows; InputError at a cell that is null or no id or value of its kind."""
        layout = self.layout(values) if values else None
        kinds = dict.fromkeys(values, layout.dtype if layout else "")
        kinds |= {name: "text" if name in self._text else "id" for name in ids}
        if len(kinds) < len(ids) + len(values):
            self._require_apart(ids, values)
        first = 0
        for batch, watched in self._batches(kinds):
            columns = {name: batch.column(name) for name in kinds}
            where = {name: Where(self.path, name, first + 1) for name in kinds}
            found = [ids_of(columns[name], where[name]) for name in ids]
            if any(isinstance(held, Strings) and _has_empty(held) for held in found):
                raise self._first_wrong_cell(kinds, "an id is empty")
            rows = None
            if layout is not None:
                rows = rows_of(
                    [columns[name] for name in values], layout, [where[n] for n in values]
                )
            done = min(self.nbytes, watched.done)
            for start in range(0, batch.num_rows, most_rows):
                part = slice(start, start + most_rows)
                yield TableChunk(
                    tuple(_part(held, part) for held in found),
                    None if rows is None else rows[part],
                    first + start,
                    done,
                )
            first += batch.num_rows

    def _require_apart(self, ids: Sequence[str], values: Sequence[str]) -> None:
        for name in set(ids) & set(values):
            if self._kinds[name] != "int64" or name in self._text:
                raise InputError(
                    f"column {name!r} of {self.path} is read as ids and as values of another type",
                    path=self.path,
                    column=name,
                    remedy="name another column",
                )

    def _batches(self, kinds: Mapping[str, str]) -> Iterator[tuple[pa.RecordBatch, WatchedStream]]:
        try:
            for batch, watched in self._stream.batches(
                {name: _arrow_type(kind) for name, kind in kinds.items()}
            ):
                if any(batch.column(name).null_count for name in kinds):
                    raise self._first_wrong_cell(kinds, "a cell is empty or null")
                if watched.hexadecimal and not self._decimal:
                    self._require_decimal(kinds)
                yield batch, watched
        except UnreadCellError as error:
            raise self._first_wrong_cell(kinds, str(error)) from error

    def _require_decimal(self, kinds: Mapping[str, str]) -> None:
        """Read integers once as text, for the file as a whole: is there an "x" in a cell?"""
        whole = {name: pa.binary() for name, kind in kinds.items() if kind in ("id", "int64")}
        for batch, _ in self._stream.batches(whole) if whole else ():
            for name in whole:
                held = batch.column(name).buffers()[2]
                if held is not None and (np.frombuffer(held, np.uint8) | 0x20 == ord("x")).any():
                    raise self._first_wrong_cell(kinds, "a cell is hexadecimal")
        self._decimal = True

    def _first_wrong_cell(self, kinds: Mapping[str, str], reason: str) -> InputError:
        row = 0
        for batch, _ in self._stream.batches(dict.fromkeys(kinds, pa.binary())):
            for cells in zip(*(batch.column(name).to_pylist() for name in kinds), strict=True):
                row += 1
                for (column, kind), cell in zip(kinds.items(), cells, strict=True):
                    told = what_is_wrong(cell, kind)
                    if told is not None:
                        return self._wrong(told, kind, row, column, cell)
        return InputError(
            f"the CSV cannot be parsed: {reason}",
            path=self.path,
            remedy="mend the file, or say how it is written: delimiter, header, columns",
        )

    def _wrong(self, told: str, kind: str, row: int, column: str, cell: bytes) -> InputError:
        text = cell.decode("utf-8", "replace")
        remedy = "fill the cell with a number, or name another column"
        if kind in ("id", "text"):
            remedy = id_remedy(text) if kind == "id" or not text else "save the file as UTF-8"
        return InputError(
            told, path=self.path, row=row, column=column, value=text[:80], remedy=remedy
        )

    def _kinds_of(self, columns: Sequence[str]) -> dict[str, str]:
        kinds: dict[str, str] = {}
        with closing(
            cast("Any", self._stream.batches(dict.fromkeys(columns, pa.binary())))
        ) as batches:
            for batch, _ in batches:
                if batch.num_rows:
                    cells = {name: batch.column(name).to_pylist() for name in columns}
                    kinds = {name: kind_of_cells(held) for name, held in cells.items()}
                    break
        self._empty = not kinds
        whole = {name for name in columns if kinds.get(name, "float64") == "int64"}
        for name in sorted(whole):
            if not self._is_whole(name):
                kinds[name] = "float64"
        return {name: kinds.get(name, "float64") for name in columns}

    def _is_whole(self, column: str) -> bool:
        try:
            for _ in self._stream.batches({column: pa.int64()}):
                pass
        except UnreadCellError:
            return False
        return True


def _arrow_type(kind: str) -> pa.DataType:
    return {"id": pa.int64(), "text": pa.large_string(), **_TYPES}[kind]


def _has_empty(ids: Strings) -> bool:
    # Arrow tells an empty cell from text only where the cell is quoted, which means nothing here.
    return bool((np.diff(ids.offsets) == 0).any())


def _part(ids: Any, part: slice) -> Any:
    if isinstance(ids, Strings):
        return Strings(ids.offsets[part.start : part.stop + 1], ids.data)
    return ids[part]


def open_reader(source: SourceFile, spec: EdgeSpec, text: tuple[bool, bool]) -> TableEdges:
    """Find the two columns; see `edges.open_edges`."""
    keep_arrow_small()
    header = read_header(source, wanted=spec.columns, header=spec.header, text=any(text))
    columns = pick_columns(source.path, header.names, spec.columns)
    named = [name for name, is_text in zip(columns, text, strict=True) if is_text]
    return TableEdges(CsvTable(source, header, named), columns)


def open_table_file(
    source: SourceFile, columns: Sequence[str], text: Sequence[str], header: bool | None
) -> CsvTable:
    """Open the file; see `tables.open_table`."""
    keep_arrow_small()
    found = read_header(source, wanted=columns, header=header, text=bool(text))
    return CsvTable(source, found, text)
