"""Buckets that other threads read and sort, taken in the order in which they were started.

Bottleneck: the device, then the sort. Readers fill the memory of the next buckets while others are
sorted; a bucket's memory is given back by whoever takes its rows. Memory: the plan's buckets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.passes.buckets import BucketShape, RowOptions, Rows, Segment, sort_bucket
from overspill.build.passes.spool import READERS, Blocks
from overspill.build.plan import BuildPlan
from overspill.linux.direct import aligned_bytes

Ids = npt.NDArray[np.int64]
NO_ENDS = np.empty(0, np.int64)
# Of a bucket's ranges: number, first stored target, rows.
RangeRows = tuple[int, int, int]


@dataclass(frozen=True)
class Emission:
    """Some rows that follow those before; valid until it is released.

    Attributes:
        ends: Where each row ends, from where the first of the bucket begins; may be changed.
        before: The edges of that bucket which came before.
        sources: The rows; they may go on in the next emission where `ends` is short of them.
        edge_ids: Beside them, where edges have ids.
        counts: Beside them, where equal edges are counted.
        repeats: Edges that repeat another one.
        release: To be called once the arrays are no longer needed, by any thread.
    """

    ends: Ids
    before: int
    sources: npt.NDArray[Any]
    edge_ids: npt.NDArray[Any] | None
    counts: Ids | None
    repeats: int
    release: Callable[[], None]


@dataclass(frozen=True)
class _Part:
    """Rows of a bucket that is being sorted, or all of its edges where `rows` is None."""

    result: Future[Rows]
    rows: tuple[int, int] | None
    release: Callable[[], None] | None


class Workbench:
    """The memory of the buckets and the threads that work on them; a context manager.

    Several queues may use it in turn, as long as one that waits for memory has none started
    elsewhere whose rows nobody takes.
    """

    def __init__(self, plan: BuildPlan) -> None:
        self.plan = plan
        self.memories: SimpleQueue[npt.NDArray[np.uint8]] = SimpleQueue()
        self._running: set[Future[Rows]] = set()
        self._end = ExitStack()
        # The first bucket is read while the memory of the others is touched.
        memories = [aligned_bytes(plan.bucket_bytes) for _ in range(plan.buckets)]
        self._pool(1, "overspill-buckets").submit(self._touch, memories)
        self._readers = self._pool(READERS, "overspill-read")
        # One more than compute at a time: it waits for its reads.
        self._sorters = self._pool(plan.threads + 1, "overspill-sort")

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def start(
        self,
        memory: npt.NDArray[np.uint8],
        part: Blocks,
        rows: Sequence[RangeRows],
        options: RowOptions,
    ) -> Future[Rows]:
        """Have a bucket read into memory and sorted there."""
        shape = bucket_shape(part, sum(count for _, _, count in rows))
        reads: list[Future[None]] = []
        found = dict(part.start_read(memory, lambda act: reads.append(self._readers.submit(act))))
        none = np.empty((0, 3 if part.has_edge_ids else 2), part.dtype)
        segments = [Segment(first, count, found.get(key, none)) for key, first, count in rows]

        def sort() -> Rows:
            wait(reads)
            for read in reads:
                read.result()
            return sort_bucket(memory, shape, segments, options)

        result = self._sorters.submit(sort)
        self._running = {task for task in self._running if not task.done()} | {result}
        return result

    def settle(self) -> None:
        """Wait until nothing is being read or sorted."""
        wait(self._running)

    def _touch(self, memories: list[npt.NDArray[np.uint8]]) -> None:
        for memory in memories:
            # Touched whole: a build that does not get what was planned ends now and not in hours,
            # and its peak is the same whatever buckets hold.
            memory.fill(0)
            self.memories.put(memory)

    def _pool(self, threads: int, name: str) -> ThreadPoolExecutor:
        return self._end.enter_context(ThreadPoolExecutor(threads, thread_name_prefix=name))


class RowQueue:
    """Rows in the order in which they were asked for."""

    def __init__(self, bench: Workbench, options: RowOptions) -> None:
        self._bench, self._options = bench, options
        self._parts: deque[_Part] = deque()

    def fits(self, part: Blocks, rows: int) -> bool:
        """Whether a bucket holds some blocks and rows."""
        cost_bytes = bucket_shape(part, rows).cost_bytes(self._options)
        return cost_bytes <= self._bench.plan.bucket_bytes

    def start(
        self, part: Blocks, rows: Sequence[RangeRows]
    ) -> Generator[Emission, None, tuple[Future[Rows], Callable[[], None]]]:
        """Have a bucket sorted, in memory that rows before it give back: these are yielded."""
        bench = self._bench
        while bench.memories.empty() and self._parts:
            yield self._next()
        memory = bench.memories.get()
        result = bench.start(memory, part, rows, self._options)
        return result, lambda: bench.memories.put(memory)

    def start_edges(self, part: Blocks, rows: Sequence[RangeRows]) -> Iterator[Emission]:
        """The same, where only the edges are wanted: a part of a row."""
        result, release = yield from self.start(part, rows)
        self._parts.append(_Part(result, None, release))

    def put(
        self, result: Future[Rows], rows: tuple[int, int], release: Callable[[], None] | None
    ) -> None:
        """Next come these rows of a bucket; the last that do release it."""
        self._parts.append(_Part(result, rows, release))

    def put_ready(self, rows: Rows) -> Iterator[Emission]:
        """Next come rows that are there already; what is before them is yielded."""
        self.put_later(rows)
        yield from self.drain()

    def put_later(self, rows: Rows) -> None:
        """Next come rows that are there already and stay so."""
        result: Future[Rows] = Future()
        result.set_result(rows)
        numbers = (0, len(rows.ends)) if len(rows.ends) else None
        self._parts.append(_Part(result, numbers, _nothing))

    def drain(self) -> Iterator[Emission]:
        """Everything that was asked for so far."""
        while self._parts:
            yield self._next()

    def _next(self) -> Emission:
        part = self._parts.popleft()
        rows = part.result.result()
        low, high, ends = 0, len(rows.sources), NO_ENDS
        if part.rows is not None:
            first, last = part.rows
            ends = rows.ends[first:last]
            low = int(rows.ends[first - 1]) if first else 0
            high = int(ends[-1]) if len(ends) else low
        none = rows.sources[:0]
        return Emission(
            ends,
            low,
            rows.sources[low:high],
            none if rows.edge_ids is None else rows.edge_ids[low:high],
            NO_ENDS if rows.counts is None else rows.counts[low:high],
            (rows.repeats or 0) if part.release is not None else 0,
            part.release or _nothing,
        )


def bucket_shape(part: Blocks, rows: int) -> BucketShape:
    """What sorting some blocks into rows takes."""
    _, _, rooms = part.by_range()
    return BucketShape(part.edges, rows, int(rooms.sum()), part.has_wide)


def _nothing() -> None:
    pass
