"""Renumber nodes by falling in-degree, so that the rows people touch most share pages.

Bottleneck: two passes over the row pointers, then the device. Algorithm: a counting sort by degree:
there are at most sqrt(2 E) distinct degrees, so that their counts fit memory whatever the graph.
Nodes of one degree keep their order, which makes the result a function of the graph alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.context import BuildContext
from overspill.linux.fetch import PAGE_BYTES, PageFetcher
from overspill.linux.pages import advise, resident_pages
from overspill.storage.arrays import map_array
from overspill.storage.records import FileRecord

Ids = npt.NDArray[np.int64]
_PROBES = 64
_MOST_PAGES = 8192


class Renumbering:
    """First numbers to node ids, over the mapped file; read-only, one thread at a time.

    Args:
        directory: The dataset.
        record: int32 or int64 (nodes,): the node id of each first number.
    """

    def __init__(self, directory: Path, record: FileRecord) -> None:
        self._mapping, self._ids = map_array(directory / record.path, record)
        self._first_byte = self._mapping.nbytes - self._ids.nbytes
        advise(self._mapping.address, self._mapping.nbytes, "random")
        self._fetcher = PageFetcher(self._mapping)

    def translate(self, numbers: Ids) -> Ids:
        """Node ids, int64; takes 24 bytes a number. Absent pages are asked for before use."""
        out = np.empty(len(numbers), np.int64)
        if not len(numbers):
            return out
        order = np.argsort(numbers)
        pages = (self._first_byte + numbers[order] * self._ids.itemsize) // PAGE_BYTES
        if not self._likely_absent(pages):
            out[order] = self._ids[numbers[order]]
            return out
        cuts = np.flatnonzero(np.diff(pages, prepend=-1))
        for start in range(0, len(cuts), _MOST_PAGES):
            some = cuts[start : start + _MOST_PAGES]
            end = cuts[start + _MOST_PAGES] if start + _MOST_PAGES < len(cuts) else len(order)
            self._fetcher.request(pages[some], np.ones(len(some), np.int64))
            places = order[some[0] : end]
            out[places] = self._ids[numbers[places]]
        return out

    def _likely_absent(self, pages: Ids) -> bool:
        for page in pages[:: max(1, len(pages) // _PROBES)].tolist():
            if not resident_pages(self._mapping.address + page * PAGE_BYTES, 1)[0]:
                return True
        return False


def store_degree_order(
    context: BuildContext, indptrs: list[FileRecord], count: int, *, path: str
) -> FileRecord:
    """Write the new number of each node, the largest in-degree first.

    Args:
        context: The build.
        indptrs: Row pointers of the edge types that enter these nodes.
        count: Number of nodes.
        path: Where the array goes.

    Returns:
        The record of int32 or int64 (count,): new number by old one.
    """
    starts: dict[int, int] = {}
    for degrees in _degrees(context, indptrs):
        values, counts = np.unique(degrees, return_counts=True)
        for value, number in zip(values.tolist(), counts.tolist(), strict=True):
            starts[value] = starts.get(value, 0) + number
    distinct = np.array(sorted(starts, reverse=True), np.int64)
    sizes = np.array([starts[value] for value in distinct.tolist()], np.int64)
    nexts = np.cumsum(sizes) - sizes
    dtype = "int32" if count <= context.plan.narrow_nodes else "int64"
    with context.directory.array(path, dtype=dtype, shape=(count,)) as writer:
        for degrees in _degrees(context, indptrs):
            classes = np.searchsorted(-distinct, -degrees)
            writer.append(_take_numbers(classes, nexts).astype(dtype))
    return writer.result


def _take_numbers(classes: Ids, nexts: Ids) -> Ids:
    """Give each the next number of its class, in order, and move the classes on."""
    order = np.argsort(classes, kind="stable")
    held, firsts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    within = np.arange(len(order)) - np.repeat(firsts, counts)
    numbers = np.empty(len(classes), np.int64)
    numbers[order] = np.repeat(nexts[held], counts) + within
    nexts[held] += counts
    return numbers


def _degrees(context: BuildContext, indptrs: list[FileRecord]) -> Iterator[Ids]:
    """In-degrees over all edge types, a piece of nodes at a time."""
    last = [0] * len(indptrs)
    first = True
    for pieces in zip(*(context.pieces(record) for record in indptrs), strict=True):
        total = np.zeros(len(pieces[0]) - first, np.int64)
        for place, piece in enumerate(pieces):
            held = piece[1:] if first else piece
            total += np.diff(held, prepend=piece[0] if first else last[place])
            last[place] = int(piece[-1])
        first = False
        yield total
