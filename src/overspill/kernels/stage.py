"""Stage edges for the parts that own their targets, and within a part by range of target.

Bottleneck: memory bandwidth and the first-level data cache's translations. Algorithm: that of
`overspill.kernels.partition`, but each part has ranges of its own, and an edge's part is looked up
first: where parts are ranges of ids, a guide of 4,096 places tells the first part that an id can be
in, and the next bounds are tried from there; else the id is hashed as `overspill.kernels.route`
does. Limits: parts times ranges is the number of open blocks: a few thousand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel
from overspill.kernels.open_blocks import replace_block
from overspill.kernels.sample import mixed

Ids = npt.NDArray[np.int64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def stage_edges(
    edges: tuple[Ids, Ids, Ids, int],
    limits: tuple[int, int, int],
    parts: tuple[Ids, Ids, Ids, int, int],
    pool: npt.NDArray[Any],
    tables: tuple[Ids, Ids, Ids, Ids, Ids],
    state: Ids,
) -> int:
    """Append edges to the blocks of their parts' ranges until edges or free blocks run out.

    What is stored of a target is its number less the first of its part; of scattered parts, its
    number.

    Args:
        edges: Source ids, target ids, edge ids (empty where records have two columns), and the
            first position to take.
        limits: What sources, targets and edge ids must be below; none may be negative. Others stop
            the loop.
        parts: Where each part's range of ids begins, and all end (empty where they are scattered);
            how many low bits of a target its range within the part leaves out, one a part; the
            guide; how many low bits of a target the guide leaves out; ranges a part.
        pool: (blocks, capacity, 2 or 3), int32 or int64: the staged blocks.
        tables: A range's open block and its fill; a stack of free blocks; the full blocks and
            their ranges, numbered over all parts. The stack holds one block at least on entry.
        state: As in `open_blocks`; updated.

    Returns:
        The first position not taken: stopped by a limit, or because the stack is empty.
    """
    sources, targets, ids, start = edges
    source_limit, target_limit, id_limit = limits
    bounds, shifts, guide, guide_shift, ranges = parts
    opened, fill = tables[0], tables[1]
    scattered = bounds.shape[0] == 0
    capacity = pool.shape[1]
    with_ids = pool.shape[2] == 3
    position = start
    while position < sources.shape[0]:
        source, target = sources[position], targets[position]
        if source < 0 or source >= source_limit or target < 0 or target >= target_limit:
            break
        if with_ids and (ids[position] < 0 or ids[position] >= id_limit):
            break
        if scattered:
            state_of = np.uint64(target) + _GOLDEN
            part = np.int64(mixed(state_of) % np.uint64(shifts.shape[0]))
            local = target
        else:
            part = guide[target >> guide_shift]
            while target >= bounds[part + 1]:
                part += 1
            local = target - bounds[part]
        index = part * ranges + (local >> shifts[part])
        block, at = opened[index], fill[index]
        pool[block, at, 0] = source
        pool[block, at, 1] = local
        if with_ids:
            pool[block, at, 2] = ids[position]
        position += 1
        fill[index] = at + 1
        if at + 1 == capacity and not replace_block(index, tables, state):
            break
    return position


@kernel
def find_parts(ids: Ids, parts: tuple[Ids, Ids, Ids, int, int], found: Ids) -> None:
    """Give the part of each of some nodes.

    Args:
        ids: The nodes, all of which there are.
        parts: As in `stage_edges`.
        found: Filled, (ids,).
    """
    bounds, shifts, guide, guide_shift, _ = parts
    for place in range(ids.shape[0]):
        if bounds.shape[0] == 0:
            state_of = np.uint64(ids[place]) + _GOLDEN
            found[place] = np.int64(mixed(state_of) % np.uint64(shifts.shape[0]))
        else:
            part = guide[ids[place] >> guide_shift]
            while ids[place] >= bounds[part + 1]:
                part += 1
            found[place] = part
