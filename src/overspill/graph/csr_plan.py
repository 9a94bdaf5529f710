"""How many edges a bucket and a chunk hold, and the memory that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from overspill.errors import NoRoomError
from overspill.kernels.radix import LEVEL_BITS, LINE_EDGES

# A piece of the input stays in the second-level cache while several kernels read it.
SLICE_EDGES = 1 << 17
# Columns below it share a record of 64 bits with a row or a position.
PACKED_COLUMNS = 1 << 32
_SMALLEST_BUCKET = 1 << 12
_USUAL_BUCKET = 1 << 15
_FILED_BUCKET = 1 << 18
# Measured: 200 to 1,200 streams are equally fast, and smaller buckets sort faster.
_BUCKETS = 800
_SHORT_ROWS = 1 << 16
# Table, leaf, counts and their copies while a node is added.
_ENTRY_BYTES = 100
_FIXED_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is to be arranged.

    Attributes:
        edges: How many.
        num_rows: Rows.
        num_cols: Columns, or one more than the largest.
        column_bytes: Of an output index.
        item_bytes: Of each thing that goes along with an edge.
    """

    edges: int
    num_rows: int
    num_cols: int
    column_bytes: int
    item_bytes: tuple[int, ...] = ()

    @property
    def most_rows(self) -> int:
        """Rows of a bucket: their numbers fit 16 bits where that takes few buckets."""
        if self.num_rows <= _SHORT_ROWS * 1000:
            return _SHORT_ROWS
        return -(-self.num_rows // 500)

    @property
    def row_bytes(self) -> int:
        """Of a row's number within its bucket."""
        return 2 if self.most_rows <= _SHORT_ROWS else 4 if self.most_rows <= 1 << 32 else 8

    @property
    def output_bytes(self) -> int:
        """Of all outputs."""
        return 8 * (self.num_rows + 1) + self.edges * (self.column_bytes + sum(self.item_bytes))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that a fill works with.

    Attributes:
        bucket_edges: Edges of a bucket, unless a single row has more.
        chunk_edges: Edges that are partitioned in memory at once; None where all outputs are in
            memory and nothing is partitioned elsewhere.
        scratch_bytes: Memory beyond outputs and inputs, the rows' numbers included where they are
            in memory.
    """

    bucket_edges: int
    chunk_edges: int | None
    scratch_bytes: int


def sizes_in_memory(shape: Shape) -> Sizes:
    """The sizes where outputs and rows' numbers are in memory."""
    bucket = max(_USUAL_BUCKET, -(-shape.edges // _BUCKETS))
    scratch = _scratch_bytes(shape, bucket) + shape.edges * shape.row_bytes
    return Sizes(bucket_edges=bucket, chunk_edges=None, scratch_bytes=scratch)


def sizes_within(shape: Shape, limit_bytes: int) -> Sizes:
    """The sizes where outputs and rows' numbers may be in files.

    Args:
        shape: What is to be arranged.
        limit_bytes: What all scratch memory may take.

    Raises:
        NoRoomError: The smallest sizes take more.
    """
    an_edge = shape.column_bytes + shape.row_bytes + sum(shape.item_bytes)
    smallest_chunk = min(shape.edges, SLICE_EDGES) * an_edge
    # From few large buckets, whose part of a chunk is a long write, to small ones.
    most = max(_FILED_BUCKET, -(-shape.edges // _BUCKETS))
    ways = [most >> halved for halved in range((most // _SMALLEST_BUCKET).bit_length())]
    taken = {bucket: _scratch_bytes(shape, bucket) for bucket in ways}
    roomy = [one for one in ways if taken[one] + smallest_chunk <= limit_bytes // 2]
    bucket = roomy[0] if roomy else min(ways, key=taken.__getitem__)
    scratch = taken[bucket]
    if scratch + smallest_chunk > limit_bytes:
        raise NoRoomError(
            "building the CSR takes more memory than it may",
            needed_bytes=scratch + smallest_chunk,
            available_bytes=limit_bytes,
            remedy="raise memory_limit",
        )
    # A quarter is left to small outputs that need no file.
    room = max(limit_bytes * 3 // 4 - scratch, smallest_chunk)
    chunk = max(1, min(room // an_edge, shape.edges))
    return Sizes(bucket_edges=bucket, chunk_edges=chunk, scratch_bytes=scratch + chunk * an_edge)


def _scratch_bytes(shape: Shape, bucket: int) -> int:
    """Everything but the rows' numbers and the chunk, at most."""
    items = sum(shape.item_bytes)
    in_bucket = 2 * (shape.column_bytes + items) + 2 * 8 + 2 * 8 + 2 * 8
    heavy = min(shape.edges // bucket, shape.num_rows) << LEVEL_BITS
    buckets = 2 * shape.edges // bucket + 2 * shape.num_rows // shape.most_rows + 2
    lines = buckets * LINE_EDGES * (shape.column_bytes + shape.row_bytes)
    slices = 2 * min(shape.edges, SLICE_EDGES) * (2 * 8 + items)
    rows = 3 * 8 * min(shape.most_rows, shape.num_rows)
    a_bucket = min(bucket, shape.edges) * in_bucket
    return _FIXED_BYTES + a_bucket + heavy * _ENTRY_BYTES + lines + slices + rows
