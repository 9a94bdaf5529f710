"""Edges from CSV with a header, parsed by pyarrow's streaming reader.

Bottleneck: parsing, on one thread, one block ahead of the kernels; that cells may hold line breaks
takes a tenth more of it. Arrow says little about a wrong cell, so a file that does not parse is
read again as text, in constant memory, to find the first one. Arrow also takes hexadecimal cells
for numbers: a file with "0x" anywhere in it is read once more, as text. Rows are data rows, counted
from 1: the header and blank lines are not counted. Limits: a row takes at most 1 MiB.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from overspill.build.readers import EdgeChunk, RowSource, id_remedy, no_columns
from overspill.build.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError

_BLOCK_BYTES = 1 << 20
_HEADER_BYTES = 1 << 20
_END = "end"  # as a line after the last one, it is a row of its own unless a quote is open
_INTEGER = re.compile(r"\s*-?[0-9]+\s*", re.ASCII)
_FITTING = re.compile(r"\s*(-?)0*([0-9]{1,19})\s*", re.ASCII)  # int() refuses thousands of digits
_LEAST, _MOST = -(2**63), 2**63 - 1


class _WatchedFile:
    """What Arrow reads from: ends its last line, and sees what Arrow would take without a word."""

    closed = False

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._last = b""
        self.nbytes = 0
        self.quotes = 0
        self.hexadecimal = False

    def read(self, most: int) -> bytes:
        data = self._file.read(most - 1)
        if self.nbytes + len(data) == self._size and data[-1:] not in (b"\n", b"\r", b""):
            # Without it, Arrow refuses a header alone.
            data += b"\n"
        self.nbytes += len(data)
        self.quotes += data.count(b'"')
        # Single bytes first: among digits, pairs that start with one are slow to look for.
        if b"x" in data or b"X" in data:
            text = self._last + data
            self.hexadecimal |= b"0x" in text or b"0X" in text
        self._last = data[-1:] or self._last
        return data

    def close(self) -> None:
        """Nothing: the descriptor has another owner."""


class CsvEdges:
    """A reader of one CSV file; `columns` are the names of its source and target columns."""

    text = (False, False)

    def __init__(self, source: SourceFile, columns: tuple[str, str]) -> None:
        self.path, self.columns = source.path, columns
        self.nbytes = source.nbytes
        self.count: int | None = None
        self._source = source
        self._bad_line: Any = None
        self._decimal = False
        self._done = 0

    def locate(self, edge: int) -> int:
        """The data row of an edge."""
        return edge + 1

    def rows(self, columns: tuple[str, ...]) -> RowSource:
        """Not read yet."""
        raise no_columns(self.path, columns)

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges; InputError at a cell that is null or not an integer of 64 bits."""
        first = 0
        for batch, watched in self._batches(pa.int64()):
            ids = [batch.column(name) for name in self.columns]
            if any(column.null_count for column in ids):
                raise self._first_wrong_cell("a cell is empty or null")
            if watched.hexadecimal and not self._decimal:
                self._require_decimal()
            sources, targets = (column.to_numpy() for column in ids)
            for start in range(0, len(sources), most_edges):
                part = slice(start, start + most_edges)
                yield EdgeChunk(sources[part], targets[part], first + start, self._done)
            first += len(sources)

    def _batches(self, kind: pa.DataType) -> Iterator[tuple[pa.RecordBatch, _WatchedFile]]:
        rows = 0
        with self._source.opened() as file:
            watched = _WatchedFile(file, self.nbytes)
            try:
                with self._open_csv(watched, kind) as reader:
                    for batch in reader:
                        self._done = min(self.nbytes, watched.nbytes)
                        yield batch, watched
                        rows += batch.num_rows
            except pa.ArrowInvalid as error:
                raise self._refusal(error, kind, rows) from error
            if watched.quotes % 2:
                self._require_closed_quotes()

    def _open_csv(self, watched: _WatchedFile, kind: pa.DataType) -> Any:
        wanted = list(dict.fromkeys(self.columns))
        return pacsv.open_csv(
            watched,
            read_options=pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=pacsv.ParseOptions(
                newlines_in_values=True, invalid_row_handler=self._note_line
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, kind),
                strings_can_be_null=False,
            ),
        )

    def _note_line(self, line: Any) -> str:
        self._bad_line = line
        return "error"

    def _refusal(self, error: Exception, kind: pa.DataType, rows: int) -> InputError:
        if "block size" in str(error):
            return self._too_long(rows + 1)
        if self._bad_line is not None or kind == pa.binary():
            return self._wrong_line(error)
        return self._first_wrong_cell(str(error))

    def _too_long(self, row: int) -> InputError:
        return InputError(
            f"a row is longer than {_BLOCK_BYTES} bytes, or a quote in it is never closed",
            path=self.path,
            row=row,
            remedy="close the quote, or leave the long column out",
        )

    def _wrong_line(self, error: Exception) -> InputError:
        line = self._bad_line
        if line is None:
            return InputError(f"the CSV cannot be parsed: {error}", path=self.path)
        return InputError(
            f"a line has {line.actual_columns} columns where the header has "
            f"{line.expected_columns}",
            path=self.path,
            row=None if line.number is None else line.number - 1,
            value=str(line.text)[:80],
        )

    def _require_decimal(self) -> None:
        """Read the columns once as text, for the file as a whole: is there an "x" in a cell?"""
        for batch, _ in self._batches(pa.binary()):
            for name in self.columns:
                held = batch.column(name).buffers()[2]
                if held is not None and (np.frombuffer(held, np.uint8) | 0x20 == ord("x")).any():
                    raise self._first_wrong_cell("a cell is hexadecimal")
        self._decimal = True

    def _require_closed_quotes(self) -> None:
        """Refuse a quote that swallows what follows it; a quote within a cell is just a letter."""
        row, cells = 0, [_END]
        with self._source.opened() as file:
            text = io.TextIOWrapper(io.BufferedReader(file), "utf-8", "replace", newline="")
            try:
                for cells in csv.reader(itertools.chain(text, [_END])):
                    row += bool(cells)
            except csv.Error:  # a cell that goes on and on
                cells, row = [], row + 1
            finally:
                text.detach().detach()
        if cells != [_END]:
            raise self._too_long(row - 1)

    def _first_wrong_cell(self, reason: str) -> InputError:
        row = 0
        for batch, _ in self._batches(pa.binary()):
            for cells in zip(
                *(batch.column(name).to_pylist() for name in self.columns), strict=True
            ):
                row += 1
                for column, cell in zip(self.columns, cells, strict=True):
                    text = cell.decode("utf-8", "replace")
                    told = _what_is_wrong(text)
                    if told is not None:
                        return InputError(
                            told,
                            path=self.path,
                            row=row,
                            column=column,
                            value=text[:80],
                            remedy=id_remedy(text),
                        )
        return InputError(f"the CSV cannot be parsed: {reason}", path=self.path)


def open_reader(source: SourceFile, spec: EdgeSpec, _text: tuple[bool, bool]) -> CsvEdges:
    """Find the two columns in the header; see `overspill.build.readers.open_edges`."""
    # Few, small pools: each thread of Arrow's keeps memory of its own.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    return CsvEdges(source, _columns(source.path, _read_header(source), spec.columns))


def _read_header(source: SourceFile) -> list[str]:
    with source.opened() as file:
        text = file.read(_HEADER_BYTES).decode("utf-8-sig", "replace")
    try:
        return next(csv.reader(io.StringIO(text, newline="")), [])
    except csv.Error as error:
        raise InputError(
            f"cannot read the header of {source.path}: {error}", path=source.path
        ) from error


def _columns(path: str, header: list[str], wanted: tuple[str, str] | None) -> tuple[str, str]:
    if not header:
        raise InputError(
            f"{path} is empty: it names no columns",
            path=path,
            column=(wanted or ("src",))[0],
            remedy='a file without edges is a header alone, such as "src,dst"',
        )
    if any(_INTEGER.fullmatch(name) for name in header):
        raise InputError(
            f"{path} has no header: its first line holds numbers",
            path=path,
            row=0,
            value=",".join(header)[:80],
            remedy='add a first line that names the columns, such as "src,dst"',
        )
    if wanted is None:
        named = {"src", "dst"} <= set(header)
        wanted = ("src", "dst") if named or len(header) != 2 else (header[0], header[1])
    for name in wanted:
        if header.count(name) != 1:
            many = "twice" if name in header else "no"
            raise InputError(
                f"{path} has {many} column {name!r}; its columns are {', '.join(header)}",
                path=path,
                column=name,
                remedy='name the two columns: columns=("from", "to")'
                if len(header) > 1
                else "separate the columns by commas",
            )
    return wanted


def _what_is_wrong(text: str) -> str | None:
    if not text.strip():
        return "an id is null"
    if not _INTEGER.fullmatch(text):
        return "an id is not an integer"
    digits = _FITTING.fullmatch(text)
    fits = digits is not None and _LEAST <= int(digits[1] + digits[2]) <= _MOST
    return None if fits else "an id does not fit 64 bits"
