"""Edges and tables from Parquet, a page of each column at a time.

Bottleneck: decoding, mostly inflating: 45M rows/s on two cores of two int64 columns. Where rows are
narrow, half of the columns are decoded by a thread of their own. Column chunks are read in pieces
(never whole), pages are inflated one by one and rows come in batches that do not follow the row
groups: memory does not grow with the file, nor with its row groups. Limits: one page of a column at
a time is inflated whole (1 MiB as writers make them), with the column's dictionary (1 MiB
likewise), and the footer is kept. Rows are counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from overspill.build.pipeline import prefetched
from overspill.build.readers.arrow_tables import ArrowTable, Batches, arrow_errors, keep_arrow_small
from overspill.build.readers.column_file import PIECE_BYTES, ColumnFile
from overspill.build.readers.source import SourceFile
from overspill.build.readers.table import TableEdges, pick_columns
from overspill.build.spec import EdgeSpec

_BUFFER_BYTES = 192 << 10
_MOST_ROWS = 1 << 14
# Of numbers. A batch costs 0.2 ms whatever it holds; one of 2 MiB a column, to which Arrow rounds
# this up, is under malloc's threshold for a mapping of its own, whose pages would be faulted in
# every time (`child`).
_MOST_ROWS_OF_NUMBERS = 240 << 10
_BATCH_BYTES = 1 << 22
_PAGE_BYTES = 1 << 20
_NARROW_ROW_BYTES = 64
# Arrow's batches have each a copy; four are alive, one is made of a page.
_DICTIONARIES = 6


class ParquetTable(ArrowTable):
    """One Parquet file, or row groups of it that follow one another."""

    def __init__(self, source: SourceFile, groups: tuple[int, int] | None = None) -> None:
        with source.opened() as file, arrow_errors(source.path, "Parquet"):
            opened = _open(file)
            super().__init__(source, opened.schema_arrow, opened.metadata.num_rows)
        rows = [opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)]
        self.group_rows = tuple(rows)
        self._groups = None if groups is None else list(range(*groups))
        if groups is not None:
            self.first_row, self.count = sum(rows[: groups[0]]), sum(rows[slice(*groups)])
            self.nbytes = source.nbytes * self.count // max(1, sum(rows))

    def within(self, first: int, last: int) -> ParquetTable:
        """The row groups from `first` up to `last`; rows keep their numbers."""
        return ParquetTable(self._source, (first, last))

    def page_bytes(self, columns: Sequence[str]) -> int:
        """Memory of a page of each column, with its dictionary, or of a whole dictionary.

        A column that is written as a dictionary comes with all that its row group holds.
        """
        with self._source.opened() as file, arrow_errors(self.path, "Parquet"):
            metadata = _open(file).metadata
        total = 0
        for place in _places(metadata, columns):
            groups = range(metadata.num_row_groups)
            chunks = [metadata.row_group(n).column(place) for n in groups]
            largest = max((chunk.total_uncompressed_size for chunk in chunks), default=0)
            name = metadata.schema.column(place).path.split(".")[0]
            if types.is_dictionary(self._schema.field(name).type):
                total += _DICTIONARIES * max(map(_dictionary_bytes, chunks), default=0)
            # The page, what it was inflated from, and half of a dictionary.
            total += min(largest, _PAGE_BYTES) * 5 // 2 + _BUFFER_BYTES
        pieces = 2 * len(_places(metadata, columns)) if len(columns) <= 2 else 0
        # Batches are no larger than what the plan reads at a time, of which it has eight.
        return total + pieces * PIECE_BYTES

    def _most_rows(self, columns: Sequence[str]) -> int:
        numbers = all(types.is_primitive(self._schema.field(name).type) for name in columns)
        return _MOST_ROWS_OF_NUMBERS if numbers else _MOST_ROWS

    def batches(self, columns: Sequence[str], most_rows: int) -> Batches:
        """Yield some columns of at most so many rows."""
        if not self.count:
            return
        with self._source.opened() as file, arrow_errors(self.path, "Parquet"):
            metadata = _open(file).metadata
        rows = min(most_rows, self._most_rows(columns), _rows_at_a_time(metadata, columns))
        half = len(columns) // 2 if _row_bytes(metadata, columns) <= _NARROW_ROW_BYTES else 0
        done = 0
        with arrow_errors(self.path, "Parquet"):
            for arrays in self._side_by_side(columns[:half], columns[half:], rows):
                done += len(arrays[0])
                yield arrays, self.nbytes * done // self.count

    def _side_by_side(
        self, some: Sequence[str], others: Sequence[str], rows: int
    ) -> Iterator[list[pa.Array]]:
        """The columns of both, the first ones decoded by another thread."""
        rest = self._decoded(others, rows)
        if not some:
            yield from rest
            return
        with (
            closing(cast("Any", rest)),
            closing(cast("Any", prefetched(self._decoded(some, rows)))) as ahead,
        ):
            held: list[list[pa.Array]] = [[], []]
            while True:
                for place, batches in enumerate((ahead, rest)):
                    held[place] = held[place] or next(batches, [])
                ends = [len(arrays[0]) if arrays else 0 for arrays in held]
                if not any(ends):
                    return
                count = min(ends)
                if not count:
                    raise pa.ArrowInvalid("its columns are not equally long")
                yield [array[:count] for arrays in held for array in arrays]
                # Arrow may end batches of one column where those of another go on.
                held = [
                    [array[count:] for array in arrays] if end > count else []
                    for arrays, end in zip(held, ends, strict=True)
                ]

    def _decoded(self, columns: Sequence[str], rows: int) -> Iterator[list[pa.Array]]:
        with ExitStack() as stack:
            file: Any = stack.enter_context(self._source.opened())
            stack.enter_context(arrow_errors(self.path, "Parquet"))
            metadata = _open(file).metadata
            places = _places(metadata, columns)
            if len(places) == 1:
                groups = self._groups or range(metadata.num_row_groups)
                extents = _extents(metadata, groups, places[0])
                file = ColumnFile(file.fileno(), self._source.nbytes, extents)
                stack.enter_context(file)
            opened = _open(file, metadata)
            for batch in opened.iter_batches(
                rows, row_groups=self._groups, columns=list(columns), use_threads=False
            ):
                if batch.num_rows:
                    yield [batch.column(name) for name in columns]


def _open(file: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    # Without a buffer, or with pre_buffer, Arrow reads the column chunks of a row group whole.
    return pq.ParquetFile(file, metadata=metadata, buffer_size=_BUFFER_BYTES, pre_buffer=False)


def _extents(metadata: pq.FileMetaData, groups: Sequence[int], place: int) -> list[tuple[int, int]]:
    """Where the chunks of a column begin and end in the file, in some row groups."""
    found = []
    for number in groups:
        chunk = metadata.row_group(number).column(place)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page:
            start = min(start, chunk.dictionary_page_offset)
        found.append((start, start + chunk.total_compressed_size))
    return found


def _rows_at_a_time(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    """Rows of at most 4 MiB, by the footer: cells may be long."""
    return max(1, _BATCH_BYTES // max(1, _row_bytes(metadata, columns)))


def _row_bytes(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    """Mean bytes of a row of some columns in the row group where they are most."""
    wanted, most = _places(metadata, columns), 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        nbytes = sum(group.column(place).total_uncompressed_size for place in wanted)
        most = max(most, -(-nbytes // max(1, group.num_rows)))
    return most


def _dictionary_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """At most so much text its dictionary has: a large one may go on in the pages of data."""
    whole = int(chunk.total_uncompressed_size)
    if not chunk.has_dictionary_page:
        return whole
    packed = chunk.data_page_offset - chunk.dictionary_page_offset
    page = int(packed * whole // max(1, chunk.total_compressed_size))
    return page if page < _PAGE_BYTES * 9 // 10 else whole


def _places(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """Where some columns, or what they consist of, lie among those of the file."""
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    return [n for n, path in enumerate(paths) if {path, path.split(".")[0]} & set(columns)]


def open_reader(source: SourceFile, spec: EdgeSpec, _text: tuple[bool, bool]) -> TableEdges:
    """Find the two columns; see `edges.open_edges`."""
    keep_arrow_small()
    table = ParquetTable(source)
    return TableEdges(table, pick_columns(source.path, table.names, spec.columns))


def open_table_file(
    source: SourceFile, _columns: Sequence[str], _text: Sequence[str], _header: bool | None
) -> ParquetTable:
    """Open the file; see `tables.open_table`. Its types are its own."""
    keep_arrow_small()
    return ParquetTable(source)
