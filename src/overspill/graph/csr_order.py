"""Order the edges of one bucket, in buffers that every bucket uses again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.graph.csr_plan import PACKED_COLUMNS
from overspill.kernels.csr import LONG_ROW, sort_rows
from overspill.kernels.gather import copy_items
from overspill.kernels.radix import (
    number_records,
    pack_records,
    place_columns,
    place_numbered,
    sort_by_digit,
    start_rows,
    unpack_columns,
    unpack_records,
)

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
# Counters of a digit stay in the first-level cache beside what they place.
_MOST_DIGIT_BITS = 13
_LEAST_DIGIT_BITS = 6


class BucketOrder:
    """Orders buckets.

    Args:
        most: Edges of the largest bucket.
        num_cols: Columns.
        sort: Whether each row is ordered by column.
    """

    def __init__(self, most: int, *, num_cols: int, sort: bool) -> None:
        self._sort = sort
        self._column_bits = (num_cols - 1).bit_length()
        self._packed = num_cols <= PACKED_COLUMNS
        # Pages that are never touched take no memory.
        self._records = np.empty((2, most), np.uint64)
        self._order = np.empty(most, np.int64)
        self._counts = np.empty(1 << _MOST_DIGIT_BITS, np.int64)

    def plain(self, rows: Array, columns: Array, ends: Ids, out: Array) -> None:
        """Order columns by row.

        Args:
            rows: (n,) rows counted from the bucket's first.
            columns: (n,).
            ends: Filled: where each row ends.
            out: (n,) filled.
        """
        start_rows(rows, ends)
        if self._sort and self._packed:
            records = self._records[0, : len(columns)]
            pack_records(rows, columns, records)
            records.sort()  # vectorised (AVX-512, AVX2): three quarters of digits and a placing
            unpack_columns(records, out)
            _end_rows(ends, len(columns))
            return
        place_columns(rows, columns, ends, out)
        if self._sort:
            _sort_rows(ends, out)

    def numbered(self, rows: Array, columns: Array, ends: Ids, out: Array) -> Ids:
        """As `plain`; gives the positions of the edges in their new order."""
        start_rows(rows, ends)
        order = self._order[: len(columns)]
        if self._packed:
            records = self._records[0, : len(columns)]
            number_records(columns, records)
            place_numbered(self._sorted(records) if self._sort else records, rows, ends, out, order)
            return order
        keys = (columns, rows) if self._sort else (rows,)
        order[:] = np.lexsort(keys)
        np.take(columns, order, out=out)
        _end_rows(ends, len(columns))
        return order

    def by_column(self, columns: Array, out: Array) -> Ids:
        """Order columns alone; gives the positions of the edges in their new order."""
        order = self._order[: len(columns)]
        if self._packed:
            records = self._records[0, : len(columns)]
            number_records(columns, records)
            unpack_records(self._sorted(records), out, order)
            return order
        order[:] = np.argsort(columns, kind="stable")
        np.take(columns, order, out=out)
        return order

    def items(self, items: Array, order: Ids, out: Array) -> None:
        """Copy items (n, words) in an order."""
        copy_items(items.reshape(-1), order, items.shape[1], out)

    def _sorted(self, records: Array) -> Array:
        """The records by column, least significant digit first; stable."""
        most = min(_MOST_DIGIT_BITS, max(_LEAST_DIGIT_BITS, len(records).bit_length() - 1))
        passes = -(-self._column_bits // most)
        bits = -(-self._column_bits // passes) if passes else 0
        other = self._records[1, : len(records)]
        for number in range(passes):
            sort_by_digit(records, 32 + number * bits, self._counts[: 1 << bits], other)
            records, other = other, records
        return records


def _end_rows(ends: Ids, count: int) -> None:
    """Where each row ends, from where each starts."""
    ends[:-1] = ends[1:]
    ends[-1] = count


def _sort_rows(ends: Ids, columns: Array) -> None:
    long_rows = np.empty(len(columns) // LONG_ROW + 1, np.int64)
    for row in long_rows[: sort_rows(ends, columns, long_rows)].tolist():
        columns[ends[row - 1] if row else 0 : ends[row]].sort()
