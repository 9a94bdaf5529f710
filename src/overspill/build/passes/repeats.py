"""The first of equal edges in one row that no memory holds, in the order of the edges.

Bottleneck: three times partitioning the row's edges. Algorithm: the edges, numbered, are a graph
from number to source; its rows, sorted, tell for each source the first number and how many there
are. Sorted by that number in the same way, these say which edges stay, and the row is read once
more beside them. Limits: none; it runs for rows above a bucket that are wanted unsorted alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from overspill.build.passes.buckets import Rows
from overspill.build.passes.partition import RangePartitioner
from overspill.build.passes.spool import Blocks
from overspill.build.passes.workbench import NO_ENDS, Emission

Ids = npt.NDArray[np.int64]


class Workshop(Protocol):
    """Makes what the passes are made of, within the memory of the caller's plan."""

    def partitioner(self, sources: int, targets: int) -> AbstractContextManager[RangePartitioner]:
        """A partitioner of edges without ids, with ids below these."""

    def sorted_rows(self, blocks: Blocks, rows: int, columns: int) -> Generator[Emission]:
        """The sorted rows of its spool."""


def first_of_each(part: Blocks, sources: int, workshop: Workshop, most: int) -> Iterator[Rows]:
    """Yield the edges of one row, without those whose source was there before.

    Args:
        part: The row's blocks.
        sources: Sources lie below it.
        workshop: Makes partitioners and sorts their spools.
        most: Edges that are read at a time.

    Yields:
        Sources and edge ids, how many equal edges each stands for, and how many were left out.
    """
    edges = part.edges
    with workshop.partitioner(edges + 1, edges) as kept:
        with workshop.partitioner(edges, sources) as numbered:
            start = 0
            for records in _pieces(part, most):
                numbers = np.arange(start, start + len(records))
                numbered.add(numbers, records[:, 0].astype(np.int64))
                start += len(records)
            rows = workshop.sorted_rows(numbered.finish(), sources, edges)
            with closing(rows) as sorted_rows:
                for counts, firsts in _first_and_count(sorted_rows):
                    kept.add(counts, firsts)
        counts_by_place = workshop.sorted_rows(kept.finish(), edges, edges + 1)
        with closing(counts_by_place) as counted:
            yield from _select(_pieces(part, most), counted)


def _pieces(part: Blocks, most: int) -> Iterator[npt.NDArray[Any]]:
    for some in part.slices(most):
        yield some.read()


def _first_and_count(rows: Iterator[Emission]) -> Iterator[tuple[Ids, Ids]]:
    """How many numbers each row holds that holds any, and the first of them."""
    open_first = open_count = 0
    for some in rows:
        if not len(some.ends):  # a part of a row that goes on
            if len(some.sources) and not open_count:
                open_first = int(some.sources[0])
            open_count += len(some.sources)
        else:
            counts = np.diff(some.ends - some.before, prepend=0)
            held = np.flatnonzero(counts)
            firsts = some.sources[np.cumsum(counts)[held] - counts[held]].astype(np.int64)
            counts = counts[held]
            if open_count:  # the row that closes it has no edges of its own
                yield np.array([open_count]), np.array([open_first])
                open_count = 0
            yield counts, firsts
        some.release()


def _select(pieces: Iterator[npt.NDArray[Any]], counted: Iterator[Emission]) -> Iterator[Rows]:
    records: npt.NDArray[Any] = np.empty((0, 2), np.int64)
    for some in counted:
        held = np.diff(some.ends - some.before, prepend=0).astype(np.bool_)
        counts, at, taken = some.sources.astype(np.int64), 0, 0
        some.release()
        while at < len(held):
            if not len(records):
                records = next(pieces)
            part, records = records[: len(held) - at], records[len(held) - at :]
            stay = held[at : at + len(part)]
            chosen = part[stay]
            count = len(chosen)
            yield Rows(
                NO_ENDS,
                chosen[:, 0].copy(),
                chosen[:, 2].copy() if chosen.shape[1] == 3 else None,
                counts[taken : taken + count],
                len(part) - count,
            )
            at, taken = at + len(part), taken + count
