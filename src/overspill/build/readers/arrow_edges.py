"""Edges and tables from Arrow IPC files and streams (.arrow, .arrows, .feather), compressed or not.

Bottleneck: reading. Columns of numbers, of text and of lists of numbers are read some rows at a
time, whatever the size of the batches. Limits: of other columns (dictionaries, views) Arrow reads
those that are asked for, a batch of them whole. Rows are counted from 0 over all batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Any

import pyarrow as pa

from overspill.build.readers.arrow_buffers import BatchColumns, can_be_cut
from overspill.build.readers.arrow_messages import MAGIC, BatchMessage, read_at, read_batches
from overspill.build.readers.arrow_tables import ArrowTable, Batches, arrow_errors, keep_arrow_small
from overspill.build.readers.source import SourceFile
from overspill.build.readers.table import TableEdges, pick_columns
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError

_MOST_ROWS = 1 << 14
_PART_BYTES = 1 << 22
_OLD_FEATHER = b"FEA1"


class ArrowFile(ArrowTable):
    """One file or stream of record batches."""

    def __init__(self, source: SourceFile) -> None:
        with source.opened() as file, arrow_errors(source.path, "Arrow"):
            schema = _opened(file, source.path).schema
            # What was cut off is seen here: a stream may end anywhere between two messages.
            found = read_batches(file.fileno(), source.path, source.nbytes)
            super().__init__(source, schema, sum(batch.rows for batch in found))

    def batches(self, columns: Sequence[str], most_rows: int) -> Batches:
        """Yield some columns of at most so many rows."""
        rows = min(most_rows, _MOST_ROWS)
        cut = all(can_be_cut(self._schema.field(name).type) for name in columns)
        with self._source.opened() as file, arrow_errors(self.path, "Arrow"):
            parts = self._parts(file, columns, rows) if cut else self._whole(file, columns)
            for arrays, done in parts:
                for first in range(0, len(arrays[0]), rows):
                    yield [array.slice(first, rows) for array in arrays], done

    def _parts(self, file: FileIO, columns: Sequence[str], most_rows: int) -> Batches:
        fd = file.fileno()
        for number, batch in enumerate(read_batches(fd, self.path, self.nbytes)):
            held = BatchColumns(fd, self.path, self._schema, batch)
            if any(held.holds_null_elements(name) for name in columns):
                # A null is refused in any case; Arrow reads this batch so that its row is known.
                yield from self._one_whole(file, columns, number, batch)
                continue
            parts = [held.column(name) for name in columns]
            step = _rows_at_a_time(batch, most_rows)
            for first in range(0, batch.rows, step):
                count = min(step, batch.rows - first)
                size = (batch.end - batch.start) * (first + count) // batch.rows
                yield [part.take(count) for part in parts], batch.start + size

    def _whole(self, file: FileIO, columns: Sequence[str]) -> Batches:
        ends = (batch.end for batch in read_batches(file.fileno(), self.path, self.nbytes))
        for batch, end in zip(_batches(file, self.path, self._options(columns)), ends, strict=True):
            yield _checked(batch, columns), end

    def _one_whole(
        self, file: FileIO, columns: Sequence[str], number: int, message: BatchMessage
    ) -> Batches:
        for place, batch in enumerate(_batches(file, self.path, self._options(columns))):
            if place == number:
                yield _checked(batch, columns), message.end
                return

    def _options(self, columns: Sequence[str]) -> pa.ipc.IpcReadOptions:
        wanted = sorted(self.names.index(name) for name in columns)
        return pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)


def _rows_at_a_time(batch: BatchMessage, most_rows: int) -> int:
    """Rows of about 4 MiB: cells may be long. Null bits begin at a byte."""
    fitting = _PART_BYTES * max(1, batch.rows) // max(1, batch.end - batch.start)
    return max(8, min(most_rows, fitting) // 8 * 8)


def _opened(file: FileIO, path: str, options: Any = None) -> Any:
    start = read_at(file.fileno(), 0, 8, path)
    if start.startswith(_OLD_FEATHER):
        raise InputError(
            f"{path} is of Feather's first version, which is not read",
            path=path,
            remedy="read it and write it again: pyarrow.feather.write_feather(table, path)",
        )
    file.seek(0)
    opener = pa.ipc.open_file if start.startswith(MAGIC) else pa.ipc.open_stream
    return opener(file, options=options or pa.ipc.IpcReadOptions(use_threads=False))


def _checked(batch: pa.RecordBatch, columns: Sequence[str]) -> list[pa.Array]:
    """Some columns; what Arrow makes of them may crash on indices beyond a dictionary."""
    held = [batch.column(name) for name in columns]
    for column in held:
        column.validate(full=True)
    return held


def _batches(file: FileIO, path: str, options: Any) -> Iterator[pa.RecordBatch]:
    reader = _opened(file, path, options)
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from reader


def open_reader(source: SourceFile, spec: EdgeSpec, _text: tuple[bool, bool]) -> TableEdges:
    """Find the two columns; see `edges.open_edges`."""
    keep_arrow_small()
    table = ArrowFile(source)
    return TableEdges(table, pick_columns(source.path, table.names, spec.columns))


def open_table_file(
    source: SourceFile, _columns: Sequence[str], _text: Sequence[str], _header: bool | None
) -> ArrowFile:
    """Open the file; see `tables.open_table`. Its types are its own."""
    keep_arrow_small()
    return ArrowFile(source)
