"""Arrange edges by row: cut, partition, then order each bucket within the cache.

Bottleneck: memory bandwidth, or the disk's. Algorithm: columns and what goes with them are
partitioned into the outputs themselves, so that beside them stand only the rows' numbers within
their buckets (2 bytes an edge as a rule); then bucket after bucket is read, ordered and put back.
In files, chunks of edges are partitioned in memory, and each bucket's part is appended to it by
one write. A row of more edges than a bucket is in its place already; its columns are sorted in
place, or, where something goes with them, arranged by this same algorithm with columns for rows.

Limits: columns of 2**32 and more are ordered by numpy's comparison sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from overspill.graph.csr_buckets import Buckets, cut_buckets
from overspill.graph.csr_columns import Array, Column
from overspill.graph.csr_order import BucketOrder
from overspill.graph.csr_plan import SLICE_EDGES, Shape, Sizes
from overspill.kernels.radix import (
    LINE_EDGES,
    Levels,
    count_leaves,
    drain_lines,
    partition_edges,
    partition_items,
)

Ids = npt.NDArray[np.int64]
Reader = Callable[[int, int], Array]


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The input, read in slices of at most `SLICE_EDGES`.

    Attributes:
        rows: Gives contiguous int64, within range.
        columns: Likewise.
        items: Each gives (n, words), contiguous.
    """

    rows: Reader
    columns: Reader
    items: tuple[Reader, ...]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The columns to fill.

    Attributes:
        indptr: (num_rows + 1,); None where only the order is wanted.
        indices: (edges,).
        items: (edges, words) each.
    """

    indptr: Column | None
    indices: Column
    items: tuple[Column, ...]

    @property
    def of_edges(self) -> tuple[Column, ...]:
        """All but indptr."""
        return self.indices, *self.items


class Scratch(Protocol):
    """Where columns for a while come from."""

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Column:
        """An uninitialised column."""
        ...

    def give_back(self, column: Column) -> None:
        """Free a column."""
        ...


class Steps(Protocol):
    """Who is told of progress."""

    def begin(self, phase: str, total: int, unit: str) -> None:
        """A phase begins."""
        ...

    def advance(self, amount: int) -> None:
        """So much more is done."""
        ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """What stays the same from the first pass to the last.

    Attributes:
        shape: How much there is.
        sizes: The sizes to work with.
        sort: Whether each row is ordered by column.
        scratch: Where columns for a while come from.
        steps: Who is told of progress.
    """

    shape: Shape
    sizes: Sizes
    sort: bool
    scratch: Scratch
    steps: Steps


def fill(job: Job, edges: Edges, outputs: Outputs) -> None:
    """Fill the outputs.

    Args:
        job: What to do.
        edges: The input, which must not change meanwhile.
        outputs: Filled.
    """
    shape = job.shape
    if shape.num_rows == 0 or shape.edges == 0:
        _store_empty(outputs.indptr, shape.num_rows)
        return
    buckets = cut_buckets(
        lambda levels, counts: _count(job, edges, levels, counts),
        shape.num_rows,
        most_edges=job.sizes.bucket_edges,
        most_rows=shape.most_rows if outputs.indptr is not None else shape.num_rows,
    )
    rows = job.scratch.take((shape.edges,), f"u{shape.row_bytes}")
    job.steps.begin("partition", shape.edges, "edges")
    _partition(job, edges, buckets, (*outputs.of_edges, rows))
    job.steps.begin("order", shape.edges, "edges")
    _order(job, buckets, outputs, rows)
    job.scratch.give_back(rows)
    for column in outputs.of_edges:
        column.settle()
    if job.sort:
        for start, stop in _heavy(job, buckets):
            _order_row(job, outputs, start, stop)


def _store_empty(indptr: Column | None, num_rows: int) -> None:
    for start, stop in _slices(num_rows + 1) if indptr is not None else ():
        assert indptr is not None
        indptr.store(start, np.zeros(stop - start, np.int64))


def _slices(count: int, first: int = 0) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, SLICE_EDGES):
        yield start, min(start + SLICE_EDGES, first + count)


def _count(job: Job, edges: Edges, levels: Levels, counts: Ids) -> None:
    job.steps.begin("count", job.shape.edges, "edges")
    for start, stop in _slices(job.shape.edges):
        count_leaves(edges.rows(start, stop), levels, counts)
        job.steps.advance(stop - start)


def _partition(job: Job, edges: Edges, buckets: Buckets, columns: Sequence[Column]) -> None:
    """Bring each edge to its bucket; the last column takes the rows' numbers."""
    total, most = job.shape.edges, job.sizes.chunk_edges
    if most is None:
        out = [column.array for column in columns]
        _partition_part(job, edges, buckets, (0, total), buckets.starts[:-1].copy(), out)
        return
    most = min(most, total)
    parts = [np.empty((most, *column.array.shape[1:]), column.array.dtype) for column in columns]
    done = buckets.starts[:-1].copy()
    for first in range(0, total, most):
        count = min(most, total - first)
        counts = np.zeros(len(buckets), np.int64)
        for start, stop in _slices(count, first):
            count_leaves(edges.rows(start, stop), buckets.levels, counts)
        starts = np.cumsum(counts) - counts
        _partition_part(job, edges, buckets, (first, count), starts, parts)
        for bucket in np.flatnonzero(counts).tolist():
            begin, size = int(starts[bucket]), int(counts[bucket])
            for column, part in zip(columns, parts, strict=True):
                column.scatter(int(done[bucket]), part[begin : begin + size])
        done += counts
        for column in columns:
            column.settle()


def _partition_part(
    job: Job,
    edges: Edges,
    buckets: Buckets,
    part: tuple[int, int],
    starts: Ids,
    out: Sequence[Array],
) -> None:
    """Partition `part` (first, count) of the edges into arrays in memory."""
    indices, *items, rows = out
    lines = (
        np.empty((len(buckets), LINE_EDGES), indices.dtype),
        np.empty((len(buckets), LINE_EDGES), rows.dtype),
    )
    places = buckets.firsts, starts, starts.copy()
    nexts = [starts.copy() for _ in items]
    for start, stop in _slices(part[1], part[0]):
        given = edges.rows(start, stop), edges.columns(start, stop)
        partition_edges(given, buckets.levels, places, lines, (indices, rows))
        for reader, place, array in zip(edges.items, nexts, items, strict=True):
            partition_items(given[0], buckets.levels, place, reader(start, stop), array)
        job.steps.advance(stop - start)
    drain_lines(places, lines, (indices, rows))


def _order(job: Job, buckets: Buckets, outputs: Outputs, rows: Column) -> None:
    indptr = outputs.indptr
    most = min(job.sizes.bucket_edges, job.shape.edges)
    order = BucketOrder(most, num_cols=job.shape.num_cols, sort=job.sort or indptr is None)
    ends = np.empty(0 if indptr is None else buckets.most_rows, np.int64)
    if indptr is not None:
        indptr.store(0, np.zeros(1, np.int64))
    for bucket in range(len(buckets)):
        first, last = (int(row) for row in buckets.firsts[bucket : bucket + 2])
        start, stop = (int(edge) for edge in buckets.starts[bucket : bucket + 2])
        mine = ends[: last - first]
        if stop - start > job.sizes.bucket_edges:
            mine[:] = stop - start  # a single row
        elif start == stop:
            mine[:] = 0
        else:
            _order_bucket(order, outputs, (start, stop), rows, mine)
        if indptr is not None:
            piece = indptr.target(first + 1, last + 1)
            np.add(mine, start, out=piece)
            indptr.store(first + 1, piece)
        job.steps.advance(stop - start)


def _order_bucket(
    order: BucketOrder, outputs: Outputs, span: tuple[int, int], rows: Column, ends: Ids
) -> None:
    start, stop = span
    columns, target = outputs.indices.load(start, stop), outputs.indices.target(start, stop)
    if outputs.indptr is None:
        positions = order.by_column(columns, target)
    elif outputs.items:
        positions = order.numbered(rows.load(start, stop), columns, ends, target)
    else:
        order.plain(rows.load(start, stop), columns, ends, target)
        positions = None
    outputs.indices.store(start, target)
    for column in outputs.items:
        assert positions is not None
        piece = column.target(start, stop)
        order.items(column.load(start, stop), positions, piece)
        column.store(start, piece)


def _heavy(job: Job, buckets: Buckets) -> list[tuple[int, int]]:
    """The rows that are buckets of their own."""
    sizes = np.diff(buckets.starts)
    return [
        (int(buckets.starts[bucket]), int(buckets.starts[bucket + 1]))
        for bucket in np.flatnonzero(sizes > job.sizes.bucket_edges)
    ]


def _order_row(job: Job, outputs: Outputs, start: int, stop: int) -> None:
    """Order one long row by column."""
    if not outputs.items:
        outputs.indices.array[start:stop].sort()
        return
    count = stop - start
    columns = outputs.of_edges
    made = [
        job.scratch.take((count, *column.array.shape[1:]), column.array.dtype) for column in columns
    ]
    given = Edges(
        rows=_ids_of(outputs.indices.array[start:stop]),
        columns=_ids_of(outputs.indices.array[start:stop]),
        items=tuple(_items_of(column.array[start:stop]) for column in outputs.items),
    )
    shape = replace(job.shape, edges=count, num_rows=job.shape.num_cols)
    inner = replace(job, shape=shape, sort=False, steps=_Silent())
    fill(inner, given, Outputs(indptr=None, indices=made[0], items=tuple(made[1:])))
    for source, target in zip(made, columns, strict=True):
        for begin, end in _slices(count):
            target.store(start + begin, source.array[begin:end])
        job.scratch.give_back(source)


def _ids_of(array: Array) -> Reader:
    return lambda start, stop: np.ascontiguousarray(array[start:stop], np.int64)


def _items_of(array: Array) -> Reader:
    return lambda start, stop: array[start:stop]


class _Silent:
    """Tells nobody."""

    def begin(self, phase: str, total: int, unit: str) -> None:
        """See `Steps`."""

    def advance(self, amount: int) -> None:
        """See `Steps`."""
