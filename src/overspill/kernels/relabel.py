"""Give the nodes of a batch their local ids, in order of discovery, with an open hash table.

A node of a tree has the key ``tree * nodes of the graph + node``; without trees a node is its key.

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


@kernel
def relabel_in_trees(
    table: Table,
    shift: int,
    edges: tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int32]],
    local_ids: npt.NDArray[np.int64],
    found_nodes: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]],
    counts: tuple[int, int],
) -> int:
    """As `relabel`, where each tree has nodes of its own.

    Args:
        table: As in `relabel`, its entries keys.
        shift: As in `relabel`.
        edges: (edges,) global ids of sources, int64 (edges,) local ids of destinations, and int32,
            by local id, the trees of destinations.
        local_ids: Filled: int64 (edges,).
        found_nodes: All nodes of the batch, their global ids and trees, extended.
        counts: Nodes so far, and nodes of the graph.

    Returns:
        Nodes now; or -1 - i where value i is no node of the graph.
    """
    values, columns, trees_of_targets = edges
    ids, trees = found_nodes
    found, num_nodes = counts
    for i in range(values.size):
        node = np.int64(values[i])
        if node < 0 or node >= num_nodes:
            return -1 - i
        tree = trees_of_targets[columns[i]]
        key = np.int64(tree) * num_nodes + node
        slot = _slot(table, shift, key)
        local = np.int64(table[slot, 1])
        if local < 0:
            local = np.int64(found)
            table[slot, 0] = key
            table[slot, 1] = local
            ids[found] = node
            trees[found] = tree
            found += 1
        local_ids[i] = local
    return found


@kernel
def first_places(
    table: Table,
    shift: int,
    ids: npt.NDArray[np.int64],
    first: int,
    is_first: npt.NDArray[np.bool_],
) -> None:
    """Tell which nodes stand at the place that they are known by.

    Args:
        table: As in `relabel`, every id in it.
        shift: As in `relabel`.
        ids: int64 (nodes,) global ids.
        first: The place of the first of them.
        is_first: Filled for them: bool.
    """
    for i in range(ids.size):
        is_first[i] = table[_slot(table, shift, ids[i]), 1] == first + i


@kernel
def keep_known(
    table: Table,
    shift: int,
    targets: tuple[npt.NDArray[np.int64], int, npt.NDArray[np.int32], int],
    edges: tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]],
    out: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]],
    done: int,
) -> int:
    """Keep the edges whose sources are nodes of the batch too.

    Args:
        table: Of the sources, as in `relabel` or `relabel_in_trees`.
        shift: As in `relabel`.
        targets: int64 (destinations, 2), extents; the local id of the first; int32 trees of
            them, empty without trees; and nodes of the sources' type in the graph.
        edges: (edges,) sources of all edges of the extents, one after the other; their int64 times,
            and int64 (destinations,) up to which time they count; both empty without times.
        out: Filled from `done` on: int64 rows, columns and places; places may be empty.
        done: Edges that were kept before.

    Returns:
        Edges that are kept now; or -1 - i where source i is no node of the graph.
    """
    extents, first_local, trees, num_nodes = targets
    sources, times, limits = edges
    rows, columns, places = out
    at = 0
    for i in range(extents.shape[0]):
        base = np.int64(trees[i]) * num_nodes if trees.size else 0
        for place in range(extents[i, 0], extents[i, 1]):
            node = np.int64(sources[at])
            if node < 0 or node >= num_nodes:
                return -1 - at
            if times.size == 0 or times[at] <= limits[i]:
                local = table[_slot(table, shift, base + node), 1]
                if local >= 0:
                    rows[done] = local
                    columns[done] = first_local + i
                    if places.size:
                        places[done] = place
                    done += 1
            at += 1
    return done
