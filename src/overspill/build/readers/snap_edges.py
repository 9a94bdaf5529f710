"""Edges from SNAP text: "#" comments, spaces or tabs, blank lines, any line end, any ids.

Bottleneck: parsing, by a compiled state machine over blocks of the file. What follows the second
integer of a line is ignored. Compressed files (.txt.gz, .txt.zst) are inflated on the way. Rows are
lines, counted from 1, comments included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from overspill.build.readers.compressed import ByteStream, opened_stream
from overspill.build.readers.edges import EdgeChunk, InputRows, id_remedy, no_columns
from overspill.build.readers.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError
from overspill.kernels.text import MISSING_COLUMN, PARSED, TOO_LARGE, parse_edges

_ALIVE = 3
_BLOCK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OF_TEXT = "SNAP text is integers between spaces or tabs: call CSV .csv, and text between tabs .tsv"


class SnapEdges:
    """A reader of one SNAP text file."""

    columns = ("source", "target")
    text = (False, False)

    def __init__(self, source: SourceFile) -> None:
        self.path, self.nbytes = source.path, source.nbytes
        self.count: int | None = None
        self._source = source

    def locate(self, edge: int) -> int:
        """The line of an edge; reads the file again up to it."""
        left, line = edge + 1, 0
        out = np.empty((2, 1 << 16), np.int64)
        with opened_stream(self._source) as stream:
            for text in self._whole_lines(stream):
                at = 0
                while at < len(text) and left:
                    room = min(left, out.shape[1])
                    _, state = _parse(text[at:], out[:, :room])
                    left, line, at = left - int(state[0]), line + int(state[1]), at + int(state[2])
                if not left:
                    break
        return line

    def rows(self, columns: tuple[str, ...]) -> InputRows:
        """There are no columns by name."""
        raise no_columns(self.path, columns)

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges; InputError at a line that is not two integers of 64 bits."""
        ids = [np.empty((2, most_edges), np.int64) for _ in range(_ALIVE)]
        number = first = lines = 0
        with opened_stream(self._source) as stream:
            for text in self._whole_lines(stream):
                at = 0
                while at < len(text):
                    out = ids[number % _ALIVE]
                    outcome, state = _parse(text[at:], out)
                    count = int(state[0])
                    lines += int(state[1])
                    if outcome != PARSED:
                        cell = text[at + int(state[4]) :][:80].tobytes()
                        raise self._wrong(outcome, cell, int(state[3]), lines + 1)
                    at += int(state[2])
                    if count:
                        yield EdgeChunk(out[0, :count], out[1, :count], first, stream.done)
                        number, first = number + 1, first + count

    def _whole_lines(self, stream: ByteStream) -> Iterator[npt.NDArray[np.uint8]]:
        """Blocks of whole lines, each ending with a line feed or a carriage return."""
        kept = b""
        while (left := len(_BYTE_ORDER_MARK) - len(kept)) and (piece := stream.read(left)):
            kept += piece
        kept = kept.removeprefix(_BYTE_ORDER_MARK)
        while piece := stream.read(_BLOCK_BYTES):
            text = kept + piece
            # A carriage return at the very end may be the first half of a line end.
            end = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
            if end:
                yield np.frombuffer(text[:end], np.uint8)
            kept = text[end:]
            if len(kept) > 4 * _BLOCK_BYTES:
                raise InputError(
                    f"{self.path} has a line of more than {4 * _BLOCK_BYTES} bytes: not SNAP text",
                    path=self.path,
                    remedy="check the format: SNAP text has one edge a line",
                )
        if kept:
            yield np.frombuffer(kept + b"\n", np.uint8)

    def _wrong(self, outcome: int, cell: bytes, column: int, line: int) -> InputError:
        words = (cell.splitlines() or [b""])[0].split()
        told = {
            MISSING_COLUMN: "a line has fewer than two columns",
            TOO_LARGE: "an id does not fit 64 bits",
        }.get(outcome, "an id is not an integer")
        value = words[0].decode("utf-8", "replace") if words else ""
        return InputError(
            told,
            path=self.path,
            row=line,
            column=self.columns[column],
            value=value,
            remedy=id_remedy(value, of_text=_OF_TEXT),
        )


def _parse(
    text: npt.NDArray[np.uint8], out: npt.NDArray[np.int64]
) -> tuple[int, npt.NDArray[np.int64]]:
    state = np.zeros(5, np.int64)
    return parse_edges(text, out[0], out[1], state), state


def open_reader(source: SourceFile, _spec: EdgeSpec, _text: tuple[bool, bool]) -> SnapEdges:
    """See `edges.open_edges`."""
    return SnapEdges(source)
