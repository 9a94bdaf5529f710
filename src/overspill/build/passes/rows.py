"""The rows of a spool, in order: which blocks make a bucket, and what comes between two.

Bottleneck: the device, then the sort. Algorithm: the ranges are cut into buckets, which other
threads sort (`workbench`). What does not fit a bucket is partitioned again, here,
by target, and at last, for one hub, by source; its parts take the place of it. Rows of hubs, whose
edges lie in ranges of their own, are put between those of the bucket that they lie in.
Memory: while something is partitioned again, that of `second_level`, beside the buckets.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.passes.buckets import BucketShape, RowOptions, Rows
from overspill.build.passes.partition import RangePartitioner
from overspill.build.passes.repeats import first_of_each
from overspill.build.passes.runs import RunCollector, SortedRuns
from overspill.build.passes.spool import Blocks, Hub, spool_changed
from overspill.build.passes.workbench import NO_ENDS, Emission, RangeRows, RowQueue, Workbench
from overspill.build.pipeline import prefetched
from overspill.build.plan import second_level

_EMPTY_ROWS = 1 << 16
_numbers = itertools.count(1)  # of scratch files


@dataclass(frozen=True)
class _Span:
    """Rows from `first` up to `last`; stored targets are rows less `first`."""

    first: int
    last: int
    shift: int


@dataclass(frozen=True)
class _HubRow:
    row: int
    hub: Hub
    blocks: Blocks


class RowStream:
    """Sorts the edges of a spool into rows.

    Args:
        directory: The build's, for scratch files.
        bench: Memory of the buckets, and the threads that sort.
        options: What becomes of the edges.
        columns: Sources lie below it.
    """

    def __init__(
        self, directory: BuildDirectory, bench: Workbench, options: RowOptions, *, columns: int
    ) -> None:
        self._directory, self._bench, self._options = directory, bench, options
        self._plan, self._columns = bench.plan, columns
        self._queue = RowQueue(bench, options)

    def rows(self, blocks: Blocks, num_rows: int) -> Generator[Emission]:
        """Yield all rows, in order.

        Whoever takes them releases each, if in another thread, without asking for more.
        """
        yield from self._load(blocks, _Span(0, num_rows, blocks.shift), [])
        yield from self._queue.drain()

    # Which rows come next.

    def _load(self, blocks: Blocks, span: _Span, hubs: list[_HubRow]) -> Iterator[Emission]:
        hubs = sorted([*hubs, *_hub_rows(blocks, span)], key=lambda hub: hub.row)
        ordinary = blocks.of_ranges(
            0, min((hub.first_range for hub in blocks.hubs), default=1 << 62)
        )
        for first, last, ranges in self._buckets(ordinary, span):
            part = ordinary.of_ranges(*ranges)
            inside = [hub for hub in hubs if first <= hub.row < last]
            if part.edges == 0:
                yield from self._empty(first, last, inside)
            elif self._queue.fits(part, last - first):
                rows = _rows_of_ranges(span, ranges)
                yield from self._bucket(part, rows, first, last, inside)
            elif last - first == 1:
                yield from self._long_row(part, first - span.first)
                self._close_row()
            else:
                yield from self._split(part, span.first, (first, last), inside)

    def _buckets(self, blocks: Blocks, span: _Span) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Cut the ranges into buckets by what they hold: rows first to last, and their ranges."""
        found, edges, rooms = blocks.by_range()
        width, number = 1 << span.shift, int(found[-1]) + 1 if len(found) else 0
        held = np.zeros((number + 1, 2), np.int64)
        held[found] = np.stack([edges, rooms], 1)
        start, total = 0, np.zeros(2, np.int64)
        for place in range(number + 1):
            rows = min(span.last - span.first, (place + 1) * width) - start * width
            with_it = total + held[place]
            shape = BucketShape(int(with_it[0]), rows, int(with_it[1]), blocks.has_wide)
            full = shape.cost_bytes(self._options) > self._plan.bucket_bytes
            if place > start and (full or place == number):
                first, last = (span.first + edge * width for edge in (start, place))
                yield first, min(span.last, last), (start, place)
                start, with_it = place, held[place].copy()
            total = with_it
        if span.first + number * width < span.last:  # no edge: isolated at the end, or hubs
            yield span.first + number * width, span.last, (number, number)

    def _bucket(
        self,
        part: Blocks,
        rows: list[RangeRows],
        first: int,
        last: int,
        hubs: Sequence[_HubRow],
    ) -> Iterator[Emission]:
        result, release = yield from self._queue.start(part, rows)
        at = first
        for hub in hubs:
            self._queue.put(result, (at - first, hub.row - first), None)
            yield from self._hub(hub)
            at = hub.row + 1
        self._queue.put(result, (at - first, last - first), release)

    def _empty(self, first: int, last: int, hubs: Sequence[_HubRow]) -> Iterator[Emission]:
        at = first
        for hub in (*hubs, None):
            end = last if hub is None else hub.row
            for start in range(at, end, _EMPTY_ROWS):
                rows = min(_EMPTY_ROWS, end - start)
                yield from self._queue.put_ready(Rows(np.zeros(rows, np.int64), NO_ENDS))
            if hub is not None:
                yield from self._hub(hub)
                at = hub.row + 1

    def _hub(self, hub: _HubRow) -> Iterator[Emission]:
        if self._options.sort_within_row:
            yield from self._by_source(hub.blocks, hub.hub)
        else:
            yield from self._in_order(hub.blocks, hub.hub.target)
        self._close_row()

    def _close_row(self) -> None:
        self._queue.put_later(Rows(np.zeros(1, np.int64), NO_ENDS))

    # What does not fit a bucket.

    def _split(
        self, part: Blocks, offset: int, rows: tuple[int, int], hubs: Sequence[_HubRow]
    ) -> Iterator[Emission]:
        first, last = rows
        with self._narrower(last - first) as narrower:
            self._move(part, narrower, less=first - offset)
            blocks = narrower.finish()
            yield from self._load(blocks, _Span(first, last, blocks.shift), list(hubs))

    def _long_row(self, part: Blocks, target: int) -> Iterator[Emission]:
        if self._options.sort_within_row:
            yield from self._split_sources(part, target, (0, self._columns - 1))
        else:
            yield from self._in_order(part, target)

    def _split_sources(
        self, part: Blocks, target: int, sources: tuple[int, int]
    ) -> Iterator[Emission]:
        with self._narrower(target + 1) as narrower:
            ranges = 1 << (second_level(self._plan).ranges.bit_length() - 1)
            narrower.give_hub(target, *sources, ranges)
            self._move(part, narrower, less=0)
            blocks = narrower.finish()
            yield from self._by_source(blocks, blocks.hubs[0])

    def _by_source(self, blocks: Blocks, hub: Hub) -> Iterator[Emission]:
        """The edges of a hub, whose ranges hold sources that follow one another."""
        target = hub.target
        ranges = [int(key) for key in np.unique(blocks.ranges)]
        start = 0
        while start < len(ranges):
            stop = start + 1
            part = blocks.of_ranges(ranges[start], ranges[start] + 1)
            while stop < len(ranges):
                more = blocks.of_ranges(ranges[start], ranges[stop] + 1)
                if not self._queue.fits(more, stop + 1 - start):
                    break
                part, stop = more, stop + 1
            if self._queue.fits(part, stop - start):
                yield from self._queue.start_edges(
                    part, [(key, target, 1) for key in ranges[start:stop]]
                )
            else:
                place = ranges[start] - hub.first_range
                first = hub.first_source + (place << hub.shift)
                last = self._columns - 1
                if place + 1 < hub.ranges:
                    last = min(last, first + (1 << hub.shift) - 1)
                if first == last:
                    yield from self._one_pair(part, first)
                else:
                    yield from self._split_sources(part, target, (first, last))
            start = stop

    def _in_order(self, part: Blocks, target: int) -> Iterator[Emission]:
        """The edges of a row in the order in which they were added."""
        key = int(part.ranges[0]) if part.edges else 0
        if part.edges == 0:
            return
        if self._queue.fits(part, 1):
            yield from self._queue.start_edges(part, [(key, target, 1)])
        elif self._options.drop:
            yield from self._first_of_each(part)
        else:
            for some in self._slices_that_fit(part):
                yield from self._queue.start_edges(some, [(key, target, 1)])

    def _slices_that_fit(self, part: Blocks) -> list[Blocks]:
        most = part.edges
        while most > 1:
            slices = part.slices(most)
            if all(self._queue.fits(some, 1) for some in slices):
                break
            most //= 2
        return part.slices(most)

    def _one_pair(self, part: Blocks, source: int) -> Iterator[Emission]:
        """More edges between two nodes than a bucket holds."""
        most, dtype = self._plan.run_ids, part.dtype
        if self._options.drop:
            edge_ids, smallest = None, 1 << 62
            if self._options.edge_ids:
                for some in part.slices(most):
                    smallest = min(smallest, int(some.read()[:, 2].min()))
                edge_ids = np.array([smallest])
            counts = np.array([part.edges])
            one = Rows(NO_ENDS, np.array([source]), edge_ids, counts, part.edges - 1)
            yield from self._queue.put_ready(one)
            return
        repeats = part.edges - 1
        for edge_ids in self._edge_ids_in_order(part, dtype):
            sources = np.full(len(edge_ids), source, dtype)
            yield from self._queue.put_ready(Rows(NO_ENDS, sources, edge_ids, None, repeats))
            repeats = 0

    def _edge_ids_in_order(self, part: Blocks, dtype: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
        """Sorted edge ids, in pieces; numbers in their place where edges have none."""
        most = self._plan.run_ids
        if not self._options.edge_ids:
            for start in range(0, part.edges, most):
                yield np.zeros(min(most, part.edges - start), dtype)
            return
        path = self._directory.file(f"scratch/pair-{next(_numbers)}.runs")
        with SortedRuns(path, dtype=dtype, unique=False) as runs:
            collector = RunCollector(runs, most, dtype=dtype, unique=False)
            for some in part.slices(most):
                collector.add(some.read()[:, 2])
            collector.finish()
            yield from runs.merged(most)

    def _first_of_each(self, part: Blocks) -> Iterator[Emission]:
        yield from self._queue.drain()  # its own sorting needs the memory of buckets
        for rows in first_of_each(part, self._columns, self, self._plan.run_ids):
            yield from self._queue.put_ready(rows)

    # As a workshop of `first_of_each`.

    def partitioner(self, sources: int, targets: int) -> AbstractContextManager[RangePartitioner]:
        """See `repeats.Workshop`."""
        return self._narrower(targets, sources=sources, options=RowOptions())

    def sorted_rows(self, blocks: Blocks, rows: int, columns: int) -> Generator[Emission]:
        """See `repeats.Workshop`."""
        inner = RowStream(self._directory, self._bench, RowOptions(), columns=columns)
        return inner.rows(blocks, rows)

    @contextmanager
    def _narrower(
        self, targets: int, *, sources: int | None = None, options: RowOptions | None = None
    ) -> Iterator[RangePartitioner]:
        path = self._directory.file(f"scratch/split-{next(_numbers)}.spool")
        options = options or self._options
        narrower = RangePartitioner(
            path,
            second_level(self._plan),
            id_limits=(sources or self._columns, targets),
            last_target=targets,
            edge_ids=options.edge_ids,
            hubs="by source" if options.sort_within_row else "whole",
        )
        with narrower:
            try:
                yield narrower
            finally:
                self._bench.settle()  # nobody reads the file any more

    def _move(self, part: Blocks, narrower: RangePartitioner, *, less: int) -> None:
        """Partition the edges of blocks again."""
        most = second_level(self._plan).chunk_edges
        read = (some.read() for some in part.slices(most))
        with closing(cast("Any", prefetched(read))) as pieces:
            for records in pieces:
                columns = np.ascontiguousarray(records.T, np.int64)
                columns[1] -= less
                if narrower.add(*columns) < len(records):
                    raise spool_changed(self._directory.path)


def _rows_of_ranges(span: _Span, ranges: tuple[int, int]) -> list[RangeRows]:
    width, rows = 1 << span.shift, span.last - span.first
    return [(key, key * width, min(width, rows - key * width)) for key in range(*ranges)]


def _hub_rows(blocks: Blocks, span: _Span) -> list[_HubRow]:
    return [
        _HubRow(
            span.first + hub.target,
            hub,
            blocks.of_ranges(hub.first_range, hub.first_range + hub.ranges),
        )
        for hub in blocks.hubs
    ]
