"""Move what belongs to nodes into the parts that own them: one file in, one file a part out.

Bottleneck: the device, then the checksums. Algorithm: the file is read once, in order. Where parts
are ranges, it is cut: one writer is filled at a time. Where nodes are scattered, each piece is
routed through a buffer in which every part has a contiguous place, and appended to up to 64
writers; for more parts, the file is read again for each 64. Two threads read ahead, and one to four
checksum and write behind. Memory: 32 MiB of buffers (`BUFFER_BYTES`), whatever the numbers of
parts, nodes and edges and however wide a row is; the page cache under write-back is bounded by
`CACHE_BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.moving.row_blocks import word_dtype
from overspill.build.moving.row_ends import RowEnds
from overspill.build.moving.row_sources import ArrayRows, ended
from overspill.build.parting.split_owners import HashOwners, Owners, RangeOwners, Runs
from overspill.build.parting.split_sinks import THREADS, Sink, Workers
from overspill.build.pipeline import Behind, prefetched
from overspill.build.remedies import DAMAGED_DATASET
from overspill.errors import FormatError
from overspill.kernels.route import add_lengths, count_words, hash_nodes, route_words
from overspill.storage.records import STORED_DTYPES, FileRecord

Rows = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
PIECE_BYTES = 4 << 20
# Pieces: one in use, one waiting, one being read, one being written; two routed; runs of nodes.
BUFFER_BYTES = 8 * PIECE_BYTES
CACHE_BYTES = 64 << 20
_BUFFERS = 4
_GROUP = 64
_LARGEST_WINDOW_BYTES = 8 << 20


@dataclass(frozen=True)
class Stream:
    """Elements in the order of the nodes that they belong to.

    Attributes:
        dtype: A name of `STORED_DTYPES`.
        row_shape: The shape of what belongs to a node once, or to one edge.
        elements: Gives them flat, in slices of at most so many bytes, valid until the fourth after.
        ends: Where the nodes' rows end, for what belongs to edges; None: one row a node.
        summed: The elements are lengths; what is written is where each ends, after a zero.
    """

    dtype: str
    row_shape: tuple[int, ...]
    elements: Callable[[int], Iterator[Rows]]
    ends: RowEnds | None = None
    summed: bool = False

    @property
    def span(self) -> int:
        """Elements of a row."""
        return math.prod(self.row_shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return STORED_DTYPES[self.dtype][1]


def stream_of(path: Path, record: FileRecord, ends: RowEnds | None = None) -> Stream:
    """The stream of an array file whose first axis is the nodes, or what their rows hold."""
    rows = ArrayRows(path, record)
    return Stream(
        record.dtype,
        record.shape[1:],
        lambda most_bytes: rows.elements(most_bytes, buffers=_BUFFERS),
        ends,
    )


def stream_of_ends(ends: RowEnds) -> Stream:
    """The stream of row ends: each part gets its own, counted from 0."""
    return Stream(
        "int64", (), lambda most_bytes: ends.lengths(most_bytes, buffers=_BUFFERS), summed=True
    )


def stream_of_ids(count: int, dtype: str) -> Stream:
    """The stream of the nodes' own ids."""

    def ids(most_bytes: int) -> Iterator[Rows]:
        most = most_bytes // STORED_DTYPES[dtype][1]
        for first in range(0, count, most):
            yield np.arange(first, min(first + most, count), dtype=dtype)

    return Stream(dtype, (), ids)


def move(
    stream: Stream, owners: Owners, sinks: list[Sink], on_progress: Callable[[int], None]
) -> list[FileRecord]:
    """Move a stream into the parts.

    Args:
        stream: What is moved.
        owners: Who gets it.
        sinks: One a part.
        on_progress: Called with the bytes of each piece that was read.

    Returns:
        The file of each part.

    Raises:
        FormatError: The stream ended early, or what it came from is damaged.
        StaleFileError: A file is not the one that was opened, or was cut.
        DiskRefusedError: The disk refused; the files under way are removed.
    """
    if isinstance(owners, RangeOwners):
        _cut(stream, owners, sinks, on_progress)
    else:
        for first in range(0, owners.num_parts, _GROUP):
            _Routing(stream, owners, first, sinks[first : first + _GROUP]).run(on_progress)
    return [sink.record() for sink in sinks]


def warm_routing() -> None:
    """Compile, or load from the cache, the kernels of routing, before memory is measured."""
    runs, counts = (np.zeros(1, np.uint32), np.ones(1, np.int64)), np.zeros(1, np.int64)
    hash_nodes(0, 1, runs[0])
    add_lengths(*runs, counts)
    count_words(runs, (0, 0), 1, 0, counts)
    for word in (np.uint8, np.uint32, np.uint64):
        route_words(runs, (0, 0), np.zeros(1, word), 0, np.zeros(1, np.int64), np.zeros(1, word))


def passes(owners: Owners) -> int:
    """How often a file is read."""
    return 1 if isinstance(owners, RangeOwners) else -(-owners.num_parts // _GROUP)


def _cut(
    stream: Stream, owners: RangeOwners, sinks: list[Sink], on_progress: Callable[[int], None]
) -> None:
    cuts = [cut * stream.span for cut in owners.cuts(stream.ends)]
    behind: Behind[None] = Behind("overspill-part")
    pieces = prefetched(stream.elements(PIECE_BYTES))
    with Workers() as closers, ended(pieces), closing(behind):
        held: Rows = np.empty(0, np.uint8)
        for sink, (first, last) in zip(sinks, pairwise(cuts), strict=True):
            try:
                sink.open(_LARGEST_WINDOW_BYTES)
                left = last - first
                while left:
                    if not held.size:
                        held = _following(pieces, stream)
                        on_progress(held.nbytes)
                    part = held[:left]
                    behind.submit(sink.append, part)
                    left, held = left - part.size, held[part.size :]
                behind.wait()
            except BaseException as error:
                behind.close()
                sink.abandon(error)
                raise
            closers.submit(sink.close)
        closers.wait()


def _following(pieces: Iterator[Rows], stream: Stream) -> Rows:
    for piece in pieces:
        if piece.size:
            return piece
    raise FormatError(
        f"a stream of {stream.dtype} {stream.row_shape} ended early", remedy=DAMAGED_DATASET
    )


class _Routing:
    """One pass over a stream, for a group of parts."""

    def __init__(self, stream: Stream, owners: HashOwners, first: int, sinks: list[Sink]) -> None:
        self._stream, self._first, self._sinks = stream, first, sinks
        row_bytes = stream.span * stream.item_bytes
        self._word = word_dtype(row_bytes)
        self._runs = owners.runs(stream.ends, row_bytes // self._word.itemsize)
        room = PIECE_BYTES // self._word.itemsize
        self._outs = cycle([np.empty(room, self._word) for _ in range(2)])
        self._held = (np.empty(0, np.uint32), np.empty(0, np.int64))
        self._start = (0, 0)

    def run(self, on_progress: Callable[[int], None]) -> None:
        """Read, route, append, close."""
        window_bytes = min(CACHE_BYTES // 2 // len(self._sinks), _LARGEST_WINDOW_BYTES)
        try:
            with Workers() as workers:
                for sink in self._sinks:
                    workers.submit(sink.open, window_bytes)
                workers.wait()
                self._fill(workers, on_progress)
                for sink in self._sinks:
                    workers.submit(sink.close)
                workers.wait()
        except BaseException as error:
            for sink in self._sinks:
                sink.abandon(error)
            raise

    def _fill(self, workers: Workers, on_progress: Callable[[int], None]) -> None:
        pieces = prefetched(self._stream.elements(PIECE_BYTES))
        with ended(prefetched(self._runs)) as runs, ended(pieces):
            for piece in pieces:
                on_progress(piece.nbytes)
                words = piece.view(np.uint8).view(self._word)
                while words.size:
                    size, counts, out = self._route(words, runs)
                    workers.wait()
                    for thread in range(THREADS):
                        workers.submit(self._append, thread, counts, out)
                    words = words[size:]
            workers.wait()

    def _route(self, words: Rows, runs: Iterator[Runs]) -> tuple[int, Ids, Rows]:
        """Bring the front of a piece in the order of the parts: its size, and what each gets."""
        if self._start[0] == self._held[0].size:
            following = next(runs, None)
            if following is None:
                raise FormatError("there is more than the nodes own", remedy=DAMAGED_DATASET)
            self._held, self._start = following, (0, 0)
        counts, out = np.zeros(len(self._sinks), np.int64), next(self._outs)
        size = count_words(self._held, self._start, words.size, self._first, counts)
        places = np.cumsum(counts) - counts
        front = words[:size]
        self._start = route_words(self._held, self._start, front, self._first, places, out)
        return size, counts, out

    def _append(self, thread: int, counts: Ids, out: Rows) -> None:
        ends = np.cumsum(counts)
        for part in range(thread, len(self._sinks), THREADS):
            if counts[part]:
                self._sinks[part].append(out[ends[part] - counts[part] : ends[part]])
