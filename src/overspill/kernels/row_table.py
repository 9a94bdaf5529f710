"""Find rows by id in an open hash table, copy those that are held, and list the others.

Bottleneck: one cache or TLB miss a lookup, and one a row. Lookups and copies go by blocks, so that
the misses of one block overlap. The table has at least twice as many slots as entries, of any
number, since a power of two would waste up to half of a budget. Limits: fewer than 2**32 slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 512
Ids = npt.NDArray[np.int64]
Table = npt.NDArray[Any]


@kernel
def _slot(table: Table, wanted: Any) -> Any:
    """The slot that holds an id, or the empty one where it belongs."""
    slots = table.shape[0]
    mixed = (np.uint64(wanted) * _GOLDEN) >> np.uint64(32)
    slot = np.int64((mixed * np.uint64(slots)) >> np.uint64(32))
    while table[slot, 0] >= 0 and table[slot, 0] != wanted:
        slot += 1
        if slot == slots:
            slot = np.int64(0)
    return slot


@kernel
def enter_ids(table: Table, ids: Ids) -> None:
    """Enter distinct ids under their positions.

    Args:
        table: (slots, 2) of id and position, emptied (-1), with twice as many slots as ids.
        ids: int64 (ids,), none twice.
    """
    for i in range(ids.size):
        slot = _slot(table, ids[i])
        table[slot, 0] = ids[i]
        table[slot, 1] = i


@kernel
def collect_ids(table: Table, ids: Ids, distinct: Ids, found: int) -> int:
    """Extend a list of distinct ids by those not met before.

    Args:
        table: As in `enter_ids`, holding what was met so far.
        ids: int64 (ids,), repeats are fine.
        distinct: int64, filled in order of discovery.
        found: Entries of `distinct` so far.

    Returns:
        Entries of `distinct` now; -1 where it has no room for them.
    """
    for i in range(ids.size):
        slot = _slot(table, ids[i])
        if table[slot, 0] < 0:
            if found == distinct.size:
                return -1
            table[slot, 0] = ids[i]
            table[slot, 1] = found
            distinct[found] = ids[i]
            found += 1
    return found


@kernel
def copy_held(
    held: tuple[Table, npt.NDArray[Any]],
    wanted: tuple[Ids, Ids],
    out: npt.NDArray[Any],
    rest: tuple[Ids, Ids],
) -> int:
    """Copy the rows of ids that are held, each to its own place.

    Args:
        held: The table, (slots, 2), as `enter_ids` leaves it, and the rows, (rows, span) words.
            Without slots, the rows of ids 0, 1, ... are held.
        wanted: Ids, int64 (ids,), none negative, and the row of `out` that each goes to, int64
            (ids,), or (0,) for their order.
        out: (rows, span) words, filled where the row is held.
        rest: Filled: the ids whose rows are not held, and their places; what they have no room for
            is counted only.

    Returns:
        How many are not held.
    """
    table, rows = held
    ids, places = wanted
    found = np.empty(_BLOCK, dtype=np.int64)
    missing = 0
    for start in range(0, ids.size, _BLOCK):
        size = min(_BLOCK, ids.size - start)
        for k in range(size):
            one = ids[start + k]
            if table.shape[0] == 0:
                found[k] = one if one < rows.shape[0] else -1
            else:
                slot = _slot(table, one)
                found[k] = table[slot, 1] if table[slot, 0] >= 0 else -1
        for k in range(size):
            place = start + k if places.size == 0 else places[start + k]
            if found[k] < 0:
                if missing < rest[0].size:
                    rest[0][missing] = ids[start + k]
                    rest[1][missing] = place
                missing += 1
            else:
                source, target = rows[found[k]], out[place]
                for j in range(target.size):
                    target[j] = source[j]
    return missing


@kernel
def list_missing(table: Table, held: int, ids: Ids, rest: Ids) -> int:
    """List the ids whose rows are not held.

    Args:
        table: As in `copy_held`.
        held: Rows that are held.
        ids: int64 (ids,), none negative.
        rest: Filled; room for all.

    Returns:
        How many there are.
    """
    missing = 0
    for i in range(ids.size):
        wanted = ids[i]
        known = wanted < held if table.shape[0] == 0 else table[_slot(table, wanted), 0] >= 0
        if not known:
            rest[missing] = wanted
            missing += 1
    return missing
