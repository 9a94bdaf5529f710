"""Give the nodes of a batch their local ids, in order of discovery, with an open hash table.

Bottleneck: one cache miss a lookup, so key and local id lie side by side. The table is sized to
the batch, never to the graph: where a table of the batch's size would hold the whole graph anyway,
an id is its own slot and nothing ever collides. Limits: fewer than 2**31 nodes a batch for int32
tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Table = npt.NDArray[Any]


@kernel
def _slot(table: Table, shift: int, node: Any) -> Any:
    """The slot that holds a node, or the empty one where it belongs."""
    mask = table.shape[0] - 1
    if shift == 64:  # the table is as large as the graph
        slot = np.int64(node) & mask
    else:
        slot = np.int64((np.uint64(node) * _GOLDEN) >> np.uint64(shift))
    while table[slot, 1] >= 0 and table[slot, 0] != node:
        slot = (slot + 1) & mask
    return slot


@kernel
def enter_seeds(table: Table, shift: int, seeds: npt.NDArray[np.int64]) -> None:
    """Enter the seeds under their positions; of a repeated seed the first position counts.

    Args:
        table: (slots, 2) of id and local id, emptied (-1), at least twice as large as the seeds
            or as large as the graph.
        shift: 64 minus the table's bits; 64 where the table is as large as the graph.
        seeds: int64 (seeds,), each within the graph.
    """
    for i in range(seeds.size):
        slot = _slot(table, shift, seeds[i])
        if table[slot, 1] < 0:
            table[slot, 0] = seeds[i]
            table[slot, 1] = i


@kernel
def move_entries(old: Table, table: Table, shift: int) -> None:
    """Enter everything of an old table into a larger, emptied one."""
    for i in range(old.shape[0]):
        if old[i, 1] >= 0:
            slot = _slot(table, shift, old[i, 0])
            table[slot, 0] = old[i, 0]
            table[slot, 1] = old[i, 1]


@kernel
def relabel(
    table: Table,
    shift: int,
    values: npt.NDArray[Any],
    local_ids: npt.NDArray[np.int64],
    fresh: npt.NDArray[np.int64],
    counts: tuple[int, int, int],
) -> int:
    """Translate global ids to local ones; ids not met before get the next local ids.

    Args:
        table: As in `enter_seeds`, with room for every value to be new.
        shift: As in `enter_seeds`.
        values: (edges,) global ids.
        local_ids: Filled: int64 (edges,).
        fresh: The nodes found at this hop, extended in order of discovery.
        counts: Local id of ``fresh[0]``, entries of `fresh` so far, and nodes of the graph.

    Returns:
        Entries of `fresh` now; or -1 - i where value i is no node of the graph.
    """
    base, found, num_nodes = counts
    for i in range(values.size):
        node = values[i]
        if node < 0 or node >= num_nodes:
            return -1 - i
        slot = _slot(table, shift, node)
        local = np.int64(table[slot, 1])
        if local < 0:
            local = np.int64(base + found)
            table[slot, 0] = node
            table[slot, 1] = local
            fresh[found] = node
            found += 1
        local_ids[i] = local
    return found
