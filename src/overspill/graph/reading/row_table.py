"""Which rows are held in memory, by id: a compact table, or none where they are the first ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.row_table import collect_ids, copy_held, enter_ids, list_missing
from overspill.kernels.words import widest_word

Ids = npt.NDArray[np.int64]
_NARROW_IDS = 2**31
_LINE_BYTES = 64


def table_dtype(count: int) -> np.dtype[Any]:
    """The type of a table's entries, for ids below `count`."""
    return np.dtype(np.int32 if count <= _NARROW_IDS else np.int64)


def slot_count(rows: int) -> int:
    """Slots of a table of so many rows: half of them stay empty, so that misses end soon."""
    return 2 * rows + 1


def table_bytes(rows: int, count: int) -> int:
    """Bytes of a table of so many rows, of ids below `count`."""
    return slot_count(rows) * 2 * table_dtype(count).itemsize


def is_first_ids(ids: Ids) -> bool:
    """Whether sorted, distinct ids are 0, 1, ...: such rows need no table."""
    return ids.size == 0 or int(ids[-1]) == ids.size - 1


def fill_table(table: npt.NDArray[Any], ids: Ids) -> None:
    """Enter distinct ids under their positions into a table of `slot_count` slots."""
    table.fill(-1)
    enter_ids(table, ids)


def copy_rows(
    held: tuple[npt.NDArray[Any], npt.NDArray[np.uint8]],
    wanted: tuple[Ids, Ids],
    out: npt.NDArray[np.uint8],
    rest: tuple[Ids, Ids],
) -> int:
    """Copy rows that are held, in the widest words that they allow; see `copy_held`."""
    table, rows = held
    if out.shape[1] == 0:
        return 0
    sizes = out.shape[1] | rows.ctypes.data | out.ctypes.data
    word = widest_word(sizes)
    return int(copy_held((table, rows.view(word)), wanted, out.view(word), rest))


def warm_row_table(row_bytes: int, count: int) -> None:
    """Compile, or load from the cache, what rows of so many bytes, of ids below `count`, will use.

    A parent does this before it starts workers, as `overspill.graph.warm` does for the rest.
    """
    table, ids = np.full((3, 2), -1, table_dtype(count)), np.zeros(1, np.int64)
    rows, out = np.zeros((1, row_bytes), np.uint8), np.zeros((1, row_bytes), np.uint8)
    fill_table(table, ids)
    copy_rows((table, rows), (ids, ids), out, (ids.copy(), ids.copy()))
    list_missing(table, 1, ids, ids.copy())
    collect_ids(table, ids, ids.copy(), 0)


def whole_lines(nbytes: int) -> int:
    """Bytes up to the next cache line's start."""
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES
