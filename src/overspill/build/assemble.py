"""Pass 2: turn the spool into CSC, one bucket of adjacent ranges at a time, written in order.

Bottleneck: the device, then the counting sort. Algorithm: adjacent ranges are gathered into buckets
by their known counts, so that power-law graphs give even ones. A range with more edges or rows than
a bucket holds is partitioned again on narrower ranges; one destination with more edges than a
bucket holds is sorted in runs and merged. A thread reads one bucket ahead, another writes behind.
Memory: three buckets, two outputs. Limits: none in edges or nodes but the table of blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.partition import RangePartitioner
from overspill.build.pipeline import Behind, prefetched
from overspill.build.plan import BuildPlan
from overspill.build.runs import RunCollector, SortedRuns
from overspill.build.spool import Blocks
from overspill.errors import FormatError
from overspill.kernels.csr import LONG_ROW, place_edges, sort_rows
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import FileRecord

_BUFFERS = 3


@dataclass(frozen=True)
class _Range:
    """Destinations from `first` up to `last`, in ranges of 2**shift from `base`."""

    base: int
    shift: int
    first: int
    last: int


@dataclass(frozen=True)
class _Piece:
    """Some rows, loaded: their pairs, or the sorted sources of a part of one long row."""

    first: int
    rows: int
    pairs: npt.NDArray[Any] | None = None
    sources: npt.NDArray[Any] | None = None


class RowAssembler:
    """Writes ``indptr`` and ``indices`` of the edges in a spool.

    Args:
        directory: The build's directory, for scratch files and the result.
        plan: Sizes of buckets.
        num_nodes: Number of rows.
        num_edges: Number of edges in the spool.
        on_progress: Called with the number of edges done.
    """

    def __init__(
        self,
        directory: BuildDirectory,
        plan: BuildPlan,
        *,
        num_nodes: int,
        num_edges: int,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._directory, self._plan = directory, plan
        self._nodes, self._edges = num_nodes, num_edges
        self._on_progress = on_progress
        # Whether an id fits decides, never how many edges there are.
        self._dtype = np.dtype(np.int32 if num_nodes <= plan.narrow_nodes else np.int64)
        self._most_edges = plan.bucket_edges
        self._levels = itertools.count(1)

    def write(self, blocks: Blocks, *, base: int, shift: int, prefix: str) -> dict[str, FileRecord]:
        """Write ``<prefix>.indptr`` and ``<prefix>.indices``, and return their records."""
        with ExitStack() as stack:
            indptr = self._open(stack, prefix + ".indptr", "int64", self._nodes + 1)
            indices = self._open(stack, prefix + ".indices", self._dtype.name, self._edges)
            indptr.append(np.zeros(1, np.int64))
            writer: Behind[None] = stack.enter_context(closing(Behind("overspill-rows")))
            pieces = self._pieces(blocks, _Range(base, shift, base, self._nodes))
            self._consume(prefetched(pieces), indptr, indices, writer)
        if indptr.result is None or indices.result is None:
            raise FormatError("the rows were not finished")
        return {"indptr": indptr.result, "indices": indices.result}

    def _open(self, stack: ExitStack, name: str, dtype: str, length: int) -> ArrayWriter:
        path = name + ".safetensors"
        target = self._directory.file(path)
        self._directory.file(path + ".partial")
        writer = ArrayWriter(target, dtype=dtype, shape=(length,), record_path=path)
        return stack.enter_context(writer)

    # Computing, in the calling thread.

    def _consume(
        self,
        pieces: Iterator[_Piece],
        indptr: ArrayWriter,
        indices: ArrayWriter,
        writer: Behind[None],
    ) -> None:
        # Two of each: while one is filled, the writer has the other.
        ends = [np.empty(self._plan.bucket_rows, np.int64) for _ in range(2)]
        rows = [np.empty(self._plan.bucket_edges, self._dtype) for _ in range(2)]
        total = 0
        with closing(pieces):  # type: ignore[type-var]
            for number, piece in enumerate(pieces):
                out_ends, out = ends[number % 2][: piece.rows], rows[number % 2]
                if piece.sources is not None:
                    out = piece.sources.astype(self._dtype)
                    out_ends[:] = len(out)
                elif piece.pairs is None:
                    out, out_ends[:] = out[:0], 0
                else:
                    out = out[: len(piece.pairs)]
                    _sort_bucket(piece.pairs, piece.first, out_ends, out)
                out_ends += total
                total += len(out)
                writer.submit(_append_both, indptr, out_ends, indices, out)
                self._on_progress(total)
        writer.wait()

    # Loading, in the thread ahead.

    def _pieces(self, blocks: Blocks, span: _Range) -> Iterator[_Piece]:
        self._most_edges = self._plan.bucket_edges // (2 if blocks.has_wide else 1)
        dtype = np.int64 if blocks.has_wide else np.int32
        shape = (self._most_edges, 2)
        buffers = itertools.cycle([np.empty(shape, dtype) for _ in range(_BUFFERS)])
        yield from self._load(blocks, span, buffers)

    def _load(
        self, blocks: Blocks, span: _Range, buffers: Iterator[npt.NDArray[Any]]
    ) -> Iterator[_Piece]:
        for first, last, part in self._buckets(blocks, span):
            rows = last - first
            if part.edges == 0:
                yield from self._empty(first, last)
            elif part.edges <= self._most_edges and rows <= self._plan.bucket_rows:
                yield _Piece(first, rows, pairs=part.read(next(buffers)))
            elif rows == 1:
                yield from self._long_row(part, first)
            else:
                yield from self._split(part, first, last, buffers)

    def _buckets(self, blocks: Blocks, span: _Range) -> Iterator[tuple[int, int, Blocks]]:
        """Cut the ranges into buckets by the prefix sum of their counts."""
        width = 1 << span.shift
        number = int(blocks.ranges[-1]) + 1 if len(blocks.ranges) else 0
        counts = np.zeros(number, np.int64)
        np.add.at(counts, blocks.ranges, blocks.counts)
        start = held = 0
        for place in range(number + 1):
            size = int(counts[place]) if place < number else 0
            rows = (place + 1 - start) * width
            full = held + size > self._most_edges or rows > self._plan.bucket_rows
            if place > start and (full or place == number):
                first, last = span.base + start * width, min(span.last, span.base + place * width)
                yield first, last, blocks.of_ranges(start, place)
                start, held = place, 0
            held += size
        if span.base + number * width < span.last:  # nothing points there: isolated at the end
            yield span.base + number * width, span.last, blocks.of_ranges(number, number)

    def _empty(self, first: int, last: int) -> Iterator[_Piece]:
        for start in range(first, last, self._plan.bucket_rows):
            yield _Piece(start, min(self._plan.bucket_rows, last - start))

    def _split(
        self, part: Blocks, first: int, last: int, buffers: Iterator[npt.NDArray[Any]]
    ) -> Iterator[_Piece]:
        plan = second_level(self._plan)
        path = self._directory.file(f"scratch/split-{next(self._levels)}.spool")
        narrower = RangePartitioner(path, plan, base=first, last_target=last, wide=part.has_wide)
        with narrower:
            for pairs in self._slices(part, plan.chunk_edges):
                columns = np.ascontiguousarray(pairs.T, np.int64)
                if narrower.add(columns[0], columns[1]) < len(pairs):
                    raise FormatError("the spool of a build was changed by something else")
            blocks = narrower.finish()
            span = _Range(first, narrower.shift, first, last)
            yield from self._load(blocks, span, buffers)

    def _long_row(self, part: Blocks, row: int) -> Iterator[_Piece]:
        path = self._directory.file(f"scratch/row-{next(self._levels)}.runs")
        with SortedRuns(path, dtype=self._dtype, unique=False) as runs:
            collector = RunCollector(runs, self._plan.run_ids, dtype=self._dtype, unique=False)
            for pairs in self._slices(part, self._plan.run_ids):
                collector.add(pairs[:, 0])
            collector.finish()
            for sources in runs.merged(self._plan.run_ids):
                yield _Piece(row, 0, sources=sources)
            yield _Piece(row, 1)

    def _slices(self, part: Blocks, most_edges: int) -> Iterator[npt.NDArray[Any]]:
        dtype = np.int64 if part.has_wide else np.int32
        for some in part.slices(most_edges):
            yield some.read(np.empty((some.edges, 2), dtype))


def second_level(plan: BuildPlan) -> BuildPlan:
    """The sizes with which an overfull range is partitioned, beside the buckets in memory."""
    return replace(
        plan,
        chunk_edges=max(1, plan.chunk_edges // 4),
        ranges=max(2, plan.ranges // 8),
        spare_blocks=max(1, plan.spare_blocks // 8),
    )


def _sort_bucket(
    pairs: npt.NDArray[Any], first: int, ends: npt.NDArray[np.int64], out: npt.NDArray[Any]
) -> None:
    place_edges(pairs, first, ends, out)
    long_rows = np.empty(len(out) // LONG_ROW + 1, np.int64)
    for row in long_rows[: sort_rows(ends, out, long_rows)]:
        out[ends[row - 1] if row else 0 : ends[row]].sort()


def _append_both(
    indptr: ArrayWriter, ends: npt.NDArray[np.int64], indices: ArrayWriter, out: npt.NDArray[Any]
) -> None:
    indptr.append(ends)
    indices.append(out)
