"""Edges from CSV with a header, parsed by pyarrow's streaming reader.

Bottleneck: parsing, on one thread, one block ahead of the kernels. Arrow says little about a wrong
cell, so a file that does not parse is read again as text, in constant memory, to find the first
one. Rows are data rows, counted from 1: the header and blank lines are not counted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from overspill.build.readers import EdgeChunk, id_remedy
from overspill.build.spec import BuildSpec
from overspill.errors import InputError

_BLOCK_BYTES = 1 << 20
_INTEGER = re.compile(r"\s*-?\d+\s*")
_LEAST, _MOST = -(2**63), 2**63 - 1


class CsvEdges:
    """A reader of one CSV file; `columns` are the names of its source and target columns."""

    def __init__(self, path: str, columns: tuple[str, str]) -> None:
        self.path, self.columns = path, columns
        self.nbytes = Path(path).stat().st_size
        self.count: int | None = None
        self._bad_line: Any = None
        self._done = 0

    def locate(self, edge: int) -> int:
        """The data row of an edge."""
        return edge + 1

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges; InputError at a cell that is null or not an integer of 64 bits."""
        first = 0
        for batch in self._batches(pa.int64()):
            ids = [batch.column(name) for name in self.columns]
            if any(column.null_count for column in ids):
                raise self._first_wrong_cell("a cell is empty or null")
            sources, targets = (column.to_numpy() for column in ids)
            for start in range(0, len(sources), most_edges):
                part = slice(start, start + most_edges)
                yield EdgeChunk(sources[part], targets[part], first + start, self._done)
            first += len(sources)

    def _batches(self, kind: pa.DataType) -> Iterator[pa.RecordBatch]:
        wanted = list(dict.fromkeys(self.columns))
        try:
            with (
                Path(self.path).open("rb") as file,
                pacsv.open_csv(
                    file,
                    read_options=pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                    parse_options=pacsv.ParseOptions(invalid_row_handler=self._note_line),
                    convert_options=pacsv.ConvertOptions(
                        include_columns=wanted,
                        column_types=dict.fromkeys(wanted, kind),
                        strings_can_be_null=False,
                    ),
                ) as reader,
            ):
                for batch in reader:
                    self._done = min(self.nbytes, file.tell())
                    yield batch
        except OSError as error:
            raise InputError(
                f"cannot read {self.path}: {error.strerror}", path=self.path
            ) from error
        except pa.ArrowInvalid as error:
            if self._bad_line is not None or kind == pa.string():
                raise self._wrong_line(error) from error
            raise self._first_wrong_cell(str(error)) from error

    def _note_line(self, line: Any) -> str:
        self._bad_line = line
        return "error"

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

    def _first_wrong_cell(self, reason: str) -> InputError:
        row = 0
        for batch in self._batches(pa.string()):
            for texts in zip(
                *(batch.column(name).to_pylist() for name in self.columns), strict=True
            ):
                row += 1
                for column, text in zip(self.columns, texts, strict=True):
                    told = _what_is_wrong(text)
                    if told is not None:
                        return InputError(
                            told,
                            path=self.path,
                            row=row,
                            column=column,
                            value=text or "",
                            remedy=id_remedy(text or ""),
                        )
        return InputError(f"the CSV cannot be parsed: {reason}", path=self.path)


def open_reader(path: str, spec: BuildSpec) -> CsvEdges:
    """Find the two columns in the header; see `overspill.build.readers.open_edges`."""
    # Few, small pools: each thread of Arrow's keeps memory of its own.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    return CsvEdges(path, _columns(path, _read_header(path), spec.columns))


def _read_header(path: str) -> list[str]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader([file.readline(1 << 20)]), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read the header of {path}: {error}", path=path) from error


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


def _what_is_wrong(text: str | None) -> str | None:
    if text is None or not text.strip():
        return "an id is null"
    if not _INTEGER.fullmatch(text):
        return "an id is not an integer"
    return None if _LEAST <= int(text) <= _MOST else "an id does not fit 64 bits"
