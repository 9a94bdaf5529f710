"""Sort one bucket of edges into rows, within one piece of memory that is used again and again.

Bottleneck: the sort. The piece holds the records as they are read, what is placed from them, the
rows' ends, and where repeats are looked for a table; the results lie where something was that is no
longer needed. So the memory of a bucket is its piece, whatever is asked for.
Limits: the bucket's edges and rows fit the piece, by `BucketShape.cost_bytes`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from overspill.kernels.csr import (
    LONG_ROW,
    drop_repeats,
    drop_scattered_repeats,
    place_edges,
    place_keys,
    place_records,
    sort_rows,
    sort_rows_with_ids,
    split_keys,
    unpack_pairs,
)

Ids = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]
_LITTLE_ENDIAN = sys.byteorder == "little"
_GRAIN = 64  # of each part's start
_NO_COUNTS = np.empty(0, np.int64)


@dataclass(frozen=True)
class RowOptions:
    """What becomes of the edges of a row.

    Attributes:
        edge_ids: Whether edges have ids.
        sort_within_row: Rows are sorted by source, then by edge id; else they are in the order in
            which the edges were added.
        duplicates: Of edges with the same source and target, "keep" all; "drop" all but one, that
            with the smallest edge id where rows are sorted, else the one added first; "count" does
            so too and tells how many there were.
    """

    edge_ids: bool = False
    sort_within_row: bool = True
    duplicates: Literal["keep", "drop", "count"] = "keep"

    @property
    def drop(self) -> bool:
        """Whether edges may become fewer."""
        return self.duplicates != "keep"


@dataclass(frozen=True)
class Segment:
    """Rows that follow one another, and their records: (edges, 2 or 3)."""

    first: int
    rows: int
    records: Numbers


@dataclass(frozen=True)
class Rows:
    """Some rows: views of a bucket's memory.

    Attributes:
        ends: Where each row ends.
        sources: The rows, one after another.
        edge_ids: Beside them, where edges have ids.
        counts: How many equal edges each stands for, where they are counted.
        repeats: Edges that repeat one that is kept; None where that was not looked for.
    """

    ends: Ids
    sources: Numbers
    edge_ids: Numbers | None = None
    counts: Ids | None = None
    repeats: int | None = None


@dataclass(frozen=True)
class BucketShape:
    """How much there is to sort.

    Attributes:
        edges: Number of edges.
        rows: Number of rows.
        room_bytes: What reading the records takes.
        wide: Whether ids take 8 bytes.
    """

    edges: int
    rows: int
    room_bytes: int
    wide: bool

    def cost_bytes(self, options: RowOptions) -> int:
        """The memory that sorting takes, all in all."""
        # Rows that are not short go through an order of their own where two arrays are sorted.
        beside = 40 * self.edges if self.wide and options.edge_ids else 0
        return sum(self._parts(options)) + beside

    def cut(self, memory: npt.NDArray[np.uint8], options: RowOptions) -> _Parts:
        """Cut memory into its parts."""
        ends = np.cumsum(self._parts(options)).tolist()
        placed = memory[ends[0] : ends[1]]
        rows = memory[ends[1] : ends[2]].view(np.int64)[: self.rows]
        return _Parts(memory[: ends[0]], placed, rows, memory[ends[2] : ends[3]].view(np.int32))

    def _parts(self, options: RowOptions) -> tuple[int, int, int, int]:
        placed = _placed_bytes(options, self.wide) * self.edges
        table = 0
        if options.drop and not options.sort_within_row:
            table = 4 << (2 * self.edges).bit_length()
        records, ends = self.room_bytes, 8 * self.rows
        return _padded(records), _padded(placed), _padded(ends), table


@dataclass(frozen=True)
class _Parts:
    records: npt.NDArray[np.uint8]
    placed: npt.NDArray[np.uint8]
    ends: Ids
    table: npt.NDArray[np.int32]


def sort_bucket(
    memory: npt.NDArray[np.uint8], shape: BucketShape, segments: list[Segment], options: RowOptions
) -> Rows:
    """Sort the records of a bucket into rows.

    Args:
        memory: At least ``shape.cost_bytes(options)``, at the start of a page.
        shape: As the memory was cut for.
        segments: All rows, in order; their records lie in the memory's first part.
        options: What becomes of the edges.

    Returns:
        Views of the memory: valid as long as nothing else uses it. Threads may sort at the same
        time in memory of their own; the kernels and sorts release the interpreter's lock.

    Raises:
        ValueError: The memory is too small.
    """
    if len(memory) < shape.cost_bytes(options):
        raise ValueError(f"{len(memory)} bytes for a bucket of {shape.cost_bytes(options)}")
    parts = shape.cut(memory, options)
    if _in_place(options, shape.wide):
        return _sort_in_place(parts, segments, options)
    if not options.edge_ids:
        placed = parts.placed.view(np.int64 if shape.wide else np.int32)[: shape.edges]
        _place(parts.ends, segments, placed, sort=options.sort_within_row)
        return _settle(parts, placed, None, parts.records, options)
    if shape.wide:
        placed = parts.placed.view(np.int64)[: 2 * shape.edges].reshape(2, -1)
        _place_pairs(parts.ends, segments, placed, sort=options.sort_within_row)
        return _settle(parts, placed[0], placed[1], parts.records, options)
    keys = parts.placed.view(np.int64)[: shape.edges]
    _place(parts.ends, segments, keys, sort=options.sort_within_row)
    # The records are no longer needed, and then the keys are not.
    columns = parts.records.view(np.int32)[: 2 * shape.edges].reshape(2, -1)
    split_keys(keys, columns[0], columns[1])
    return _settle(parts, columns[0], columns[1], parts.placed, options)


def warm_sorting(options: RowOptions, *, wide: bool) -> None:
    """Compile, or load from the cache, what `sort_bucket` runs for such edges."""
    shape = BucketShape(1, 1, 64, wide)
    memory = np.zeros(shape.cost_bytes(options), np.uint8)
    columns = 3 if options.edge_ids else 2
    record = memory[: columns * (8 if wide else 4)].view(np.int64 if wide else np.int32)
    sort_bucket(memory, shape, [Segment(0, 1, record.reshape(1, columns))], options)


def _sort_in_place(parts: _Parts, segments: list[Segment], options: RowOptions) -> Rows:
    ids = parts.records.view(np.int32)
    counts = parts.placed.view(np.int64) if options.duplicates == "count" else _NO_COUNTS
    kept = repeats = row = 0
    for segment in segments:
        pairs = segment.records
        pairs.reshape(-1).view(np.int64).sort()
        first = (pairs.ctypes.data - ids.ctypes.data) // 4 if len(pairs) else 2 * kept
        ends = parts.ends[row : row + segment.rows]
        place = first, len(pairs), kept
        found = unpack_pairs(ids, place, segment.first, ends, counts, options.drop)
        kept += len(pairs) - (found if options.drop else 0)
        repeats, row = repeats + found, row + segment.rows
    return Rows(parts.ends, ids[:kept], None, _counted(counts, kept, options), repeats)


def _place(ends: Ids, segments: list[Segment], placed: Numbers, *, sort: bool) -> None:
    """Sources, or keys of sources and edge ids, row after row."""
    for segment, its_ends, at in _each(ends, segments):
        part = placed[at : at + len(segment.records)]
        if segment.records.shape[1] == 3:
            place_keys(segment.records, segment.first, its_ends, part)
        else:
            place_edges(segment.records, segment.first, its_ends, part)
        if sort:
            long_rows = np.empty(len(part) // LONG_ROW + 1, np.int64)
            for row in long_rows[: sort_rows(its_ends, part, long_rows)]:
                part[its_ends[row - 1] if row else 0 : its_ends[row]].sort()
        its_ends += at


def _place_pairs(ends: Ids, segments: list[Segment], placed: Numbers, *, sort: bool) -> None:
    for segment, its_ends, at in _each(ends, segments):
        sources, edge_ids = placed[:, at : at + len(segment.records)]
        place_records(segment.records, segment.first, its_ends, sources, edge_ids)
        if sort:
            rows = np.empty(len(sources) // 25 + 1, np.int64)
            for row in rows[: sort_rows_with_ids(its_ends, sources, edge_ids, rows)]:
                part = slice(its_ends[row - 1] if row else 0, its_ends[row])
                order = np.lexsort((edge_ids[part], sources[part]))
                sources[part], edge_ids[part] = sources[part][order], edge_ids[part][order]
        its_ends += at


def _each(ends: Ids, segments: list[Segment]) -> Iterator[tuple[Segment, Ids, int]]:
    at = row = 0
    for segment in segments:
        yield segment, ends[row : row + segment.rows], at
        at, row = at + len(segment.records), row + segment.rows


def _settle(
    parts: _Parts,
    sources: Numbers,
    edge_ids: Numbers | None,
    spare: npt.NDArray[np.uint8],
    options: RowOptions,
) -> Rows:
    """Drop or count what repeats, the counts in memory that is no longer needed."""
    ids = sources[:0] if edge_ids is None else edge_ids
    counts = spare.view(np.int64) if options.duplicates == "count" else _NO_COUNTS
    repeats: int | None = None
    if options.sort_within_row:
        repeats = drop_repeats(parts.ends, sources, ids, counts, options.drop)
    elif options.drop:
        repeats = drop_scattered_repeats(parts.ends, sources, ids, counts, parts.table)
    kept = len(sources) - (repeats or 0) * options.drop
    return Rows(
        parts.ends,
        sources[:kept],
        None if edge_ids is None else edge_ids[:kept],
        _counted(counts, kept, options),
        repeats,
    )


def _counted(counts: Ids, kept: int, options: RowOptions) -> Ids | None:
    return counts[:kept] if options.duplicates == "count" else None


def _placed_bytes(options: RowOptions, wide: bool) -> int:
    """Bytes an edge beside its record."""
    if options.edge_ids:
        return 16 if wide else 8
    if wide:
        return 8
    if _in_place(options, wide):
        return 8 if options.duplicates == "count" else 0
    return 4


def _in_place(options: RowOptions, wide: bool) -> bool:
    return _LITTLE_ENDIAN and options.sort_within_row and not options.edge_ids and not wide


def _padded(nbytes: int) -> int:
    return -(-nbytes // _GRAIN) * _GRAIN
