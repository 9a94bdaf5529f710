"""Rows to their positions, out of core: ``out[positions[i]] = rows[i]`` as one array file.

Bottleneck: the device: rows are written to a scratch file and read back once, then written in
order; once more for each further level, and two levels reach some 10,000 times the memory.
Algorithm: positions are dense, so fixed ranges of them make even buckets whatever the order; a
bucket is put in place in memory (`row_spool`). Rows of many pages need no buckets:
they go to their places in a scratch file at once. What fits one bucket needs no scratch file.
Memory: a part of the plan's, whatever the number of rows; a bit for each row of many pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from overspill.build.moving.fill import fill_element
from overspill.build.moving.row_blocks import Slots, most_block_bytes, shape_spool, word_dtype
from overspill.build.moving.row_flow import GivenPiece, GivenRows, Pieces, RowsOut
from overspill.build.moving.row_output import RepeatedPositionError, RowOutput, ScatterResult
from overspill.build.moving.row_sources import ended
from overspill.build.moving.row_spool import RowSpool, ScatteredFile
from overspill.build.moving.row_trace import PositionTrace
from overspill.build.passes.spool import spool_changed
from overspill.build.pipeline import prefetched
from overspill.kernels.rows import place_rows

_BUFFERS = 3
_PAGE = 4096


def scatter_rows(
    pieces: Pieces,
    output: RowOutput,
    *,
    fill: complex | None = None,
    traced: bool = True,
    on_progress: Callable[[int], None] = lambda _: None,
) -> ScatterResult:
    """Write rows at their positions.

    Args:
        pieces: Positions, int64 (n,), and rows (n, ...) of the output's dtype (unsigned bits where
            numpy lacks it). Run in a thread of its own, one piece ahead, and closed: three pieces
            are alive at a time, so three buffers may be used in turn. Position -1 drops a row.
        output: The array.
        fill: The value of every element of rows that nothing is given for; None refuses them.
        traced: Whether positions are kept on disk too, so that the rows of a repeated one can be
            told: 4 bytes a row, 8 beyond 2**32 rows.
        on_progress: Called with bytes done; they add up to the payload's size.

    Returns:
        The record of the file, and how many rows were filled and dropped.

    Raises:
        RepeatedPositionError: A position was given twice.
        MissingPositionError: A position was not given, and there is no `fill`.
        InputError: A position is out of range, or `fill` does not fit the dtype.
        FormatError: Pieces of another dtype or row shape.
        DiskRefusedError: The disk refused.

    Nothing is left after an error. Disk space beside the output: each row once, 4 bytes for each
    (4 or 8 more where traced), and what blocks leave empty; a second level takes one of its ranges
    again. Memory: `RowOutput.memory_bytes`, beside the pieces. Threads may scatter at the same
    time.
    """
    element = None if fill is None else fill_element(fill, output.dtype)
    with output.open() as writer, ExitStack() as stack:
        rows = stack.enter_context(closing(RowsOut(output, writer, element, on_progress)))
        given = GivenRows(pieces, output)
        checked = stack.enter_context(ended(prefetched(given.pieces())))
        if output.count * (output.row_bytes + 8) <= output.memory_bytes // 2:
            _place_at_once(checked, output, rows)
        else:
            trace = stack.enter_context(PositionTrace(output)) if traced else None
            if output.row_bytes > 2 * output.plan.block_bytes:
                _WideRows(output, rows, trace).run(checked)
            else:
                _SpooledRows(output, rows, trace).run(checked)
        missing = rows.finish()
    return ScatterResult(writer.result, missing, given.dropped)


def _place_at_once(pieces: Iterator[GivenPiece], output: RowOutput, rows: RowsOut) -> None:
    word = word_dtype(output.row_bytes)
    out = np.zeros((output.count, output.row_bytes // word.itemsize), word)
    sources = np.full(output.count, -1, np.int64)
    for piece in pieces:
        kept = np.flatnonzero(piece.positions >= 0)
        positions = piece.positions[kept]
        before = sources[positions]
        # From the last to the first, so that of rows with one position the first one stays.
        sources[positions[::-1]] = piece.first + kept[::-1]
        clashes = np.flatnonzero((before >= 0) | (sources[positions] != piece.first + kept))
        if len(clashes):
            place = int(clashes[0])
            position = int(positions[place])
            first = before[place] if before[place] >= 0 else sources[position]
            raise RepeatedPositionError(position, (int(first), int(piece.first + kept[place])))
        out[positions] = piece.rows[kept]
        rows.taken((piece.first + len(piece.positions)) * output.row_bytes)
    rows.put(0, out, sources >= 0)


class _Part(NamedTuple):
    """Rows for the bucket of `width` positions from `first` on; without, the bucket is full."""

    first: int
    width: int
    slots: Slots | None


class _SpooledRows:
    """Rows by way of a spool of ranges, of several levels where there are many."""

    def __init__(self, output: RowOutput, rows: RowsOut, trace: PositionTrace | None) -> None:
        self._output, self._rows, self._trace = output, rows, trace
        self._paths: list[Path] = []

    def run(self, pieces: Iterator[GivenPiece]) -> None:
        with self._spool(self._output.count, level=0) as spool:
            for piece in pieces:
                if self._trace is not None:
                    self._trace.note(piece.positions)
                spool.add(piece.positions, piece.rows)
                if spool.overfull is not None:
                    break
                self._rows.taken((piece.first + len(piece.positions)) * self._output.row_bytes)
            spool.finish()
            with ended(prefetched(self._buckets(spool))) as parts:
                self._place(parts)
            if spool.overfull is not None:
                raise spool_changed(self._output.directory.path)

    def _spool(self, count: int, level: int) -> RowSpool:
        if level == len(self._paths):  # listed once: a level's spools follow one another
            self._paths.append(self._output.scratch(f"rows{level}"))
        limits = self._output.spool_limits(level)
        return RowSpool(self._paths[level], shape_spool(count, self._output.row_bytes, limits))

    # Reading, in the thread ahead.

    def _buckets(self, spool: RowSpool) -> Iterator[_Part]:
        limits = self._output.spool_limits(0)
        size = max(self._output.piece_bytes, most_block_bytes(self._output.row_bytes, limits))
        buffers = [np.empty(size, np.uint8) for _ in range(_BUFFERS)]
        yield from self._parts(spool, 0, 0, itertools.cycle(buffers))

    def _parts(
        self, spool: RowSpool, base: int, level: int, buffers: Iterator[npt.NDArray[np.uint8]]
    ) -> Iterator[_Part]:
        shape, overfull = spool.shape, spool.overfull
        for index in range(shape.ranges) if overfull is None else [overfull]:
            first, width = base + index * shape.width, shape.width_of(index)
            if width <= self._output.bucket_rows:
                for slots in spool.slots(index, buffers):
                    yield _Part(first, width, slots)
                yield _Part(first, width, None)
                continue
            with self._spool(width, level + 1) as narrower:
                self._cut(spool, index, narrower)
                yield from self._parts(narrower, first, level + 1, buffers)

    def _cut(self, spool: RowSpool, index: int, narrower: RowSpool) -> None:
        # A buffer of its own: the others are still being placed.
        size = max(self._output.piece_bytes, spool.shape.block_bytes)
        for slots in spool.slots(index, itertools.repeat(np.empty(size, np.uint8))):
            for positions, rows in slots.pieces():
                narrower.add(positions, rows)
                if narrower.overfull is not None:
                    break
        narrower.finish()

    # Placing, in the calling thread.

    def _place(self, parts: Iterator[_Part]) -> None:
        row_bytes, most = self._output.row_bytes, self._output.bucket_rows
        word = word_dtype(row_bytes)
        outs = itertools.cycle([np.zeros((most, row_bytes // word.itemsize), word) for _ in "ab"])
        seen, out = np.zeros(most, np.uint8), next(outs)
        for first, width, slots in parts:
            if slots is None:
                self._rows.put(first, out[:width], seen[:width].view(np.bool_))
                seen[:], out = 0, next(outs)
                continue
            found = place_rows(slots.views(), slots.shape.geometry, slots.rows, seen, out)
            if found >= 0:
                position = first + found
                rows = None if self._trace is None else self._trace.first_two(position)
                raise RepeatedPositionError(position, rows)


class _WideRows:
    """Rows so wide that each is worth a write: they go to their places in a scratch file."""

    def __init__(self, output: RowOutput, rows: RowsOut, trace: PositionTrace | None) -> None:
        self._output, self._rows, self._trace = output, rows, trace
        # No page is shared by two rows, so none is written twice.
        self._stride = -(-output.row_bytes // _PAGE) * _PAGE
        self._seen = np.zeros(-(-output.count // 8), np.uint8)

    def run(self, pieces: Iterator[GivenPiece]) -> None:
        output = self._output
        path = output.scratch("rows")
        with closing(ScatteredFile(path, output.count * self._stride)) as file:
            for positions, rows, first in pieces:
                if self._trace is not None:
                    self._trace.note(positions)
                for position, row in zip(positions.tolist(), rows, strict=True):
                    if position >= 0:
                        self._mark(position)
                        file.write(row.view(np.uint8).data, position * self._stride)
                self._rows.taken((first + len(positions)) * output.row_bytes)
            file.drain()
            with ended(prefetched(self._elements(file))) as slices:
                for elements in slices:
                    self._rows.put_elements(elements)

    def _mark(self, position: int) -> None:
        byte, bit = position >> 3, 1 << (position & 7)
        if self._seen[byte] & bit:
            rows = None if self._trace is None else self._trace.first_two(position)
            raise RepeatedPositionError(position, rows)
        self._seen[byte] |= bit

    def _elements(self, file: ScatteredFile) -> Iterator[npt.NDArray[Any]]:
        """Each row in slices, filled where nothing was given for it."""
        item = self._rows.dtype.itemsize
        size = max(1, self._output.piece_bytes // item) * item
        # One more than for others: the writer holds the one that was handed on.
        buffers = itertools.cycle([np.empty(size, np.uint8) for _ in range(_BUFFERS + 1)])
        for position in range(self._output.count):
            given = bool(self._seen[position >> 3] & 1 << (position & 7))
            if not given:
                self._rows.miss(position, 1)
            start = position * self._stride
            for offset in range(0, self._output.row_bytes, size):
                buffer = next(buffers)[: min(size, self._output.row_bytes - offset)]
                elements = buffer.view(self._rows.dtype)
                if given:
                    file.read(buffer, start + offset)
                elif self._rows.element is not None:
                    elements[:] = self._rows.element
                yield elements
