"""Rows rearranged out of core: ``out[p] = rows[index[p]]``, and permutations turned around.

Bottleneck: the device. Algorithm: pairs (p, index[p]) are partitioned by the index, so that the
rows are read once, in order, beside the pairs that want them; what comes of it are rows with their
positions, which `scatter` puts in order. Rows may be wanted often or never. Where
all rows fit a bucket they are read at once, and nothing is partitioned.
Memory: a part of the plan's, whatever the numbers of rows; but seven rows at least.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.moving.row_blocks import Ids, Words, as_words, word_dtype
from overspill.build.moving.row_output import (
    MissingPositionError,
    RepeatedPositionError,
    RowOutput,
    ScatterResult,
)
from overspill.build.moving.row_sources import RowSource, ended
from overspill.build.moving.row_warming import warm_row_kernels
from overspill.build.moving.scatter import scatter_rows
from overspill.build.passes.partition import RangePartitioner
from overspill.build.passes.spool import Blocks, spool_changed
from overspill.build.pipeline import Behind, prefetched
from overspill.build.plan import second_level
from overspill.build.remedies import DIRECTORY_ALONE, INPUTS_ALONE, REPORT
from overspill.errors import FormatError, InputError
from overspill.kernels.rows import take_rows
from overspill.storage.records import FileRecord, numpy_view_dtype

__all__ = [
    "MissingPositionError",
    "RepeatedPositionError",
    "RowOutput",
    "ScatterResult",
    "gather_rows",
    "invert_permutation",
    "scatter_rows",
    "warm_row_kernels",
]
_BUFFERS = 3


def gather_rows(
    index: Iterator[npt.NDArray[Any]],
    source: RowSource,
    output: RowOutput,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> FileRecord:
    """Write the rows that an index names, in its order; rows may be wanted often or never.

    Args:
        index: Pieces of the index, int64 or int32 (n,), as many numbers in all as the output has
            rows. Run in a thread of its own, one piece ahead: three buffers may be used in turn.
        source: The rows, of the output's dtype and row shape.
        output: The array.
        on_progress: Called with bytes done; they add up to the payload's size.

    Raises:
        InputError: The index names a row that is not there; names the place and the value.
        FormatError: The source's rows are of another type, fewer than it said, or the index has
            another length than the output.
        DiskRefusedError: The disk refused.

    Nothing is left after an error. The source is read once, in order. Disk space beside the output:
    the pairs, 8 bytes a row of the output (16 beyond 2**31 rows), and what `scatter_rows` takes.
    Memory: `RowOutput.memory_bytes`; where a row takes more than a thirtieth of it, seven rows:
    three of the source, three on their way, and one that is wanted. Threads may gather at the same
    time.
    """
    if (source.dtype, source.row_shape) != (output.dtype, output.shape[1:]):
        raise FormatError(
            f"{output.path}: rows {source.dtype} {source.row_shape} for {output.dtype} "
            f"{output.shape}",
            remedy=REPORT,
        )
    gather = _Gather(source, output)
    with ended(prefetched(_checked(index, source.count, output))) as pieces:
        if source.count <= gather.most_rows:
            return gather.at_once(pieces, on_progress)
        return gather.by_ranges(pieces, on_progress)


def invert_permutation(
    positions: Iterator[npt.NDArray[Any]],
    output: RowOutput,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> FileRecord:
    """Write where each number of a permutation stands: ``out[positions[i]] = i``.

    Args:
        positions: Pieces of the permutation, int64 or int32.
        output: The array: (n,), int64, or int32 where n fits it.
        on_progress: Called with bytes done; they add up to the payload's size.

    Raises:
        RepeatedPositionError: A number stands twice; both places are not told.
        MissingPositionError: A number is missing.
        InputError: A number is out of range.
        DiskRefusedError: The disk refused.
    """
    dtype = numpy_view_dtype(output.dtype)
    if dtype.kind != "i" or len(output.shape) != 1 or output.count - 1 > np.iinfo(dtype).max:
        raise FormatError(
            f"{output.path}: no {output.dtype} {output.shape} array of places", remedy=REPORT
        )
    pieces = _numbered(positions, dtype)
    return scatter_rows(pieces, output, traced=False, on_progress=on_progress).record


def _numbered(
    positions: Iterator[npt.NDArray[Any]], dtype: np.dtype[Any]
) -> Iterator[tuple[Ids, npt.NDArray[Any]]]:
    first = 0
    with ended(positions):
        for piece in positions:
            yield piece.astype(np.int64), np.arange(first, first + len(piece), dtype=dtype)
            first += len(piece)


def _checked(
    index: Iterator[npt.NDArray[Any]], count: int, output: RowOutput
) -> Iterator[npt.NDArray[Any]]:
    first = 0
    with ended(index):
        for piece in index:
            if piece.min(initial=0) < 0 or piece.max(initial=-1) >= count:
                wrong = int(np.flatnonzero((piece < 0) | (piece >= count))[0])
                raise InputError(
                    f"the index of {output.path} names a row that is not among {count}",
                    row=first + wrong,
                    value=str(int(piece[wrong])),
                    remedy=DIRECTORY_ALONE,
                )
            yield piece
            first += len(piece)
    if first != output.count:
        raise FormatError(
            f"{output.path}: {first} numbers in the index of {output.count} rows",
            remedy=DIRECTORY_ALONE,
        )


class _Gather:
    """One gather: how much of the source is in memory at a time, and what comes of it."""

    def __init__(self, source: RowSource, output: RowOutput) -> None:
        self._source, self._output = source, output
        self._word = word_dtype(output.row_bytes)
        self._span = output.row_bytes // self._word.itemsize
        self._paths: list[Path] = []
        # A quarter; the spool of the scatter takes a half.
        self.most_rows = max(1, output.memory_bytes // 4 // max(1, output.row_bytes))
        self._piece_rows = max(1, output.piece_bytes // (output.row_bytes + 8))

    def at_once(
        self, index: Iterator[npt.NDArray[Any]], on_progress: Callable[[int], None]
    ) -> FileRecord:
        """Write in order; all rows of the source are in memory."""
        output = self._output
        outs = itertools.cycle([self._buffer(self._piece_rows) for _ in range(2)])
        with output.open() as writer, ExitStack() as stack:
            behind: Behind[None] = stack.enter_context(closing(Behind("overspill-rows")))
            with closing(_RowsInOrder(self._source, output)) as rows:
                held = rows.take(0, self._source.count, self._buffer(self._source.count))
                rows.read_on()
            for ids in self._pieces(index):
                out = next(outs)[: len(ids)]
                take_rows(held, ids.astype(np.int64), 0, out)
                flat = out.reshape(-1).view(np.uint8).view(numpy_view_dtype(output.dtype))
                behind.submit(writer.append, flat)
                on_progress(flat.nbytes)
            behind.wait()
        return writer.result

    def by_ranges(
        self, index: Iterator[npt.NDArray[Any]], on_progress: Callable[[int], None]
    ) -> FileRecord:
        """Partition by the index, read beside the source, scatter."""
        output, last = self._output, self._source.count
        path = output.scratch("pairs")
        with RangePartitioner(path, output.plan, last_target=last) as partitioner:
            first = 0
            for piece in index:
                places = np.arange(first, first + len(piece))
                if partitioner.add(places, piece.astype(np.int64)) < len(piece):
                    raise FormatError(
                        f"the index of {output.path} changed while it was read",
                        remedy=DIRECTORY_ALONE,
                    )
                first += len(piece)
            blocks = partitioner.finish()
            pieces = self._gathered(blocks, partitioner.shift)
            return scatter_rows(pieces, output, traced=False, on_progress=on_progress).record

    # In the thread ahead.

    def _gathered(self, blocks: Blocks, shift: int) -> Iterator[tuple[Ids, npt.NDArray[Any]]]:
        outs = itertools.cycle([self._buffer(self._piece_rows) for _ in range(_BUFFERS)])
        pool, dtype = self._buffer(self.most_rows), numpy_view_dtype(self._output.dtype)
        with closing(_RowsInOrder(self._source, self._output)) as rows:
            for first, last, part in self._buckets(blocks, 0, shift, self._source.count, 0):
                if not part.edges:
                    continue
                held = rows.take(first, last, pool)
                for pairs in self._pairs(part):
                    ids, out = np.ascontiguousarray(pairs[:, 1]), next(outs)[: len(pairs)]
                    take_rows(held, ids, first, out)
                    elements = out.reshape(-1).view(np.uint8).view(dtype)
                    rows_out = elements.reshape(len(pairs), *self._output.shape[1:])
                    yield pairs[:, 0].astype(np.int64), rows_out
            rows.read_on()

    def _buckets(
        self, blocks: Blocks, base: int, shift: int, last: int, level: int
    ) -> Iterator[tuple[int, int, Blocks]]:
        """Cut the source into spans that fit in memory, each with the pairs that want its rows."""
        ranges = (last - base - 1 >> shift) + 1
        together = max(1, self.most_rows >> shift)
        for start in range(0, ranges, together):
            first = base + (start << shift)
            end = min(last, base + (start + together << shift))
            part = blocks.of_ranges(start, start + together)
            if end - first <= self.most_rows or not part.edges:
                yield first, end, part
            else:
                yield from self._split(part, first, end, level + 1)

    def _split(
        self, part: Blocks, first: int, last: int, level: int
    ) -> Iterator[tuple[int, int, Blocks]]:
        if level > len(self._paths):  # listed once: a level's files follow one another
            self._paths.append(self._output.scratch(f"pairs{level}"))
        plan = second_level(self._output.plan)
        narrower = RangePartitioner(self._paths[level - 1], plan, base=first, last_target=last)
        with narrower:
            for pairs in self._pairs(part):
                columns = np.ascontiguousarray(pairs.T, np.int64)
                if narrower.add(columns[0], columns[1]) < len(pairs):
                    raise spool_changed(self._output.directory.path)
            blocks = narrower.finish()
            yield from self._buckets(blocks, first, narrower.shift, last, level)

    def _pairs(self, part: Blocks) -> Iterator[npt.NDArray[Any]]:
        for some in part.slices(self._piece_rows):
            yield from self._pieces(iter([some.read()]))

    def _pieces(self, arrays: Iterator[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        for array in arrays:
            for start in range(0, len(array), self._piece_rows):
                yield array[start : start + self._piece_rows]

    def _buffer(self, rows: int) -> Words:
        return np.empty((rows, self._span), self._word)


class _RowsInOrder:
    """A source's rows, some of them left out."""

    def __init__(self, source: RowSource, output: RowOutput) -> None:
        self._end = ExitStack()
        self._pieces = self._end.enter_context(ended(source.pieces(output.piece_bytes)))
        self._output = output
        self._held = np.empty((0, 0))
        self._at = 0  # the row that `_held` starts with

    def take(self, first: int, last: int, out: Words) -> Words:
        """Copy the rows from `first` up to `last`, behind those taken before, to the front of out.

        Returns:
            The filled part of it.
        """
        while self._at < last:
            if not len(self._held):
                self._held = self._next()
            end = min(last, self._at + len(self._held))
            begin = max(first, self._at)
            if begin < end:
                out[begin - first : end - first] = self._held[begin - self._at : end - self._at]
            self._held, self._at = self._held[end - self._at :], end
        return out[: last - first]

    def read_on(self) -> None:
        """Read what nobody wanted, as a source may count its rows, or look at each of them."""
        for _ in self._pieces:
            pass

    def close(self) -> None:
        """End the source's iterator."""
        self._end.close()

    def _next(self) -> Words:
        for rows in self._pieces:
            if len(rows):
                return as_words(rows, self._output.row_bytes)
        raise FormatError(
            f"{self._output.path}: the rows ended after {self._at}", remedy=INPUTS_ALONE
        )
