"""CSV text, plain or compressed, as batches of Arrow's streaming reader.

Bottleneck: parsing, on one thread, one block ahead of the kernels; that cells may hold line breaks
takes a tenth more of it. Memory is some 40 blocks. Limits: a row takes at most 512 KiB.
"""

from __future__ import annotations

import atexit
import csv
import io
import itertools
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from overspill.build.readers.compressed import ByteStream, opened_stream
from overspill.build.readers.csv_header import CsvHeader
from overspill.build.readers.source import SourceFile
from overspill.errors import InputError

# Arrow keeps some 40 of them; larger ones are no faster.
_BLOCK_BYTES = 1 << 19
_MOST_WAIT_S = 10.0
# Arrow's words: a handler of invalid rows would be given the line as text, and where that is not
# UTF-8, Arrow prints a traceback instead and calls nobody.
_WRONG_LINE = re.compile(
    r"CSV parse error: (Row #(?P<row>\d+): )?Expected (?P<wanted>\d+) columns, got (?P<found>\d+): "
    r"(?P<text>.*)",
    re.DOTALL,
)
_END = "end"  # as a line after the last one, it is a row of its own unless a quote is open


class UnreadCellError(Exception):
    """Arrow could not make a cell what was asked for; it does not say which."""


class WatchedStream:
    """What Arrow reads from: ends the last line, and sees what Arrow would take without a word.

    Attributes:
        quotes: How many there were.
        hexadecimal: Whether there was a "0x" anywhere, which Arrow takes for a number.
    """

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._last = b""
        self._reading, self._ended = threading.Lock(), False
        self.quotes = 0
        self.hexadecimal = False

    @property
    def done(self) -> int:
        """How far into the file it is."""
        return self._stream.done

    def read(self, most: int) -> bytes:
        """The next block; none once it was ended."""
        with self._reading:
            return b"" if self._ended else self._watched(self._block(most - 1))

    def end(self) -> None:
        """Wait for the read that is under way; from then on the file is not touched any more."""
        with self._reading:
            self._ended = True

    def _watched(self, data: bytes) -> bytes:
        self.quotes += data.count(b'"')
        # Single bytes first: among digits, pairs that start with one are slow to look for.
        if b"x" in data or b"X" in data:
            text = self._last + data
            self.hexadecimal |= b"0x" in text or b"0X" in text
        self._last = data[-1:] or self._last
        return data

    def _block(self, most: int) -> bytes:
        data = self._stream.read(most)
        while len(data) < most and (piece := self._stream.read(most - len(data))):
            data += piece
        # Without a line end, Arrow refuses a header alone.
        ended = (data[-1:] or self._last) in (b"\n", b"\r", b"")
        return data if len(data) == most or ended else data + b"\n"

    def close(self) -> None:
        """Nothing: the descriptor has another owner."""


class _Lent:
    """What Arrow is given of a stream, which nobody else holds: it is gone once Arrow is done."""

    closed = False

    def __init__(self, stream: WatchedStream) -> None:
        # Not methods: an error's traceback would hold this object.
        self.read, self.close = stream.read, stream.close


class _Reader:
    """Arrow's reader, which reads ahead in a thread of its own, until it is ended.

    It must be, where rows are left unread: the file would be closed while that thread reads, and
    an interpreter that ends meanwhile aborts, or hangs. So it is at the interpreter's end too.
    """

    def __init__(self, watched: WatchedStream, **options: Any) -> None:
        self._watched, self._arrow = watched, None
        self._done = threading.Event()
        atexit.register(self.close)
        try:
            self._arrow = pacsv.open_csv(self._lent(), **options)
        except BaseException:
            self.close()
            raise

    def _lent(self) -> _Lent:
        lent = _Lent(self._watched)
        done = self._done
        # No `weakref.finalize`: it is out of service before an interpreter's last calls.
        self._gone = weakref.ref(lent, lambda _: done.set())
        return lent

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._arrow is not None:
            try:
                batch = self._arrow.read_next_batch()
            except StopIteration:
                return
            yield batch

    def close(self) -> None:
        """Wait until Arrow's thread is done; does nothing the second time."""
        atexit.unregister(self.close)
        self._watched.end()
        self._arrow = None
        # Arrow's own wait ends before its thread has let go of what is Python's.
        self._done.wait(_MOST_WAIT_S)


class CsvStream:
    """One CSV file."""

    def __init__(self, source: SourceFile, header: CsvHeader) -> None:
        self.path = source.path
        self._source, self._header = source, header

    def batches(
        self, types: Mapping[str, pa.DataType]
    ) -> Iterator[tuple[pa.RecordBatch, WatchedStream]]:
        """Yield some columns as batches of about a block.

        Raises:
            InputError: A line has too many cells or too few, or no end.
            UnreadCellError: A cell is not of its column's type.
        """
        rows = 0
        if self._header.empty:
            return
        with opened_stream(self._source) as stream:
            watched = WatchedStream(stream)
            try:
                with closing(_Reader(watched, **self._options(types))) as reader:
                    for batch in reader:
                        yield batch, watched
                        rows += batch.num_rows
            except pa.ArrowInvalid as error:
                raise self._refusal(error, types, rows) from error
            except (pa.ArrowKeyError, UnicodeDecodeError) as error:
                raise self._unreadable_header(error) from error
            if watched.quotes % 2:
                self._require_closed_quotes()

    def _options(self, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
        names = None if self._header.present else list(self._header.names)
        return dict(
            read_options=pacsv.ReadOptions(
                use_threads=False, block_size=_BLOCK_BYTES, column_names=names
            ),
            parse_options=pacsv.ParseOptions(
                delimiter=self._header.delimiter, newlines_in_values=True
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=list(types),
                column_types=dict(types),
                null_values=[""],
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
                strings_can_be_null=False,
            ),
        )

    def _refusal(self, error: Exception, types: Mapping[str, pa.DataType], rows: int) -> Exception:
        if "block size" in str(error):
            return self._too_long(rows + 1)
        line = _WRONG_LINE.match(str(error))
        if line is None and any(kind != pa.binary() for kind in types.values()):
            return UnreadCellError(str(error))
        if line is None:
            return InputError(
                f"the CSV cannot be parsed: {error}",
                path=self.path,
                remedy="mend the file, or say how it is written: delimiter, header, columns",
            )
        there = "header" if self._header.present else "first line"
        return InputError(
            f"a line has {line['found']} columns where the {there} has {line['wanted']}",
            path=self.path,
            row=None if line["row"] is None else int(line["row"]) - self._header.present,
            value=line["text"][:80],
            remedy="mend that line, or quote values that hold the delimiter",
        )

    def _unreadable_header(self, error: Exception) -> InputError:
        # Arrow and Python's csv differ in what they make of bytes that are no text.
        return InputError(
            f"the header of {self.path} cannot be read: {error}",
            path=self.path,
            row=0,
            remedy="save the file as UTF-8, its column names without control characters",
        )

    def _too_long(self, row: int) -> InputError:
        return InputError(
            f"a row is longer than {_BLOCK_BYTES} bytes, or a quote in it is never closed",
            path=self.path,
            row=row,
            remedy="close the quote, or leave the long column out",
        )

    def _require_closed_quotes(self) -> None:
        """Refuse a quote that swallows what follows it; a quote within a cell is just a letter."""
        row, cells = 0, [_END]
        with opened_stream(self._source) as stream, _as_text(stream) as text:
            lines = itertools.chain(text, [_END])
            try:
                for cells in csv.reader(lines, delimiter=self._header.delimiter):
                    row += bool(cells)
            except csv.Error:  # a cell that goes on and on
                cells, row = [], row + 1
        if cells != [_END]:
            raise self._too_long(row - self._header.present)


class _RawStream(io.RawIOBase):
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _as_text(stream: ByteStream) -> Iterator[io.TextIOWrapper]:
    text = io.TextIOWrapper(io.BufferedReader(_RawStream(stream)), "utf-8", "replace", newline="")
    with text:
        yield text
