"""Partition edges by destination range into staged blocks.

Bottleneck: memory bandwidth and the first-level data cache's translations. Algorithm: each range
has one open block in a pool; an edge goes to the end of its range's block; a full block is put on
a list for the writer and replaced by a free one. So every write to the file is a whole block, and
the memory is the pool's whatever the number of edges (radix partition with staged buffers: facts
measured for the project give 60 to 85 million edges a second and core). A hub, a target with a
notable share of all edges, has ranges of its own, told apart by source.
Limits: a few hundred ranges; more want a second level.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel
from overspill.kernels.open_blocks import replace_block

Ids = npt.NDArray[np.int64]
# Places in the state array, behind those of `open_blocks`.
LARGEST_SOURCE, LARGEST_TARGET, LOOPS = 2, 3, 4
# Columns of a hub's rule.
FIRST_RANGE, FIRST_SOURCE, SHIFT, LAST = 0, 1, 2, 3


@kernel
def scatter_edges(
    edges: tuple[Ids, Ids, Ids, int],
    limits: tuple[int, int, int, int, int],
    pool: npt.NDArray[Any],
    tables: tuple[Ids, Ids, Ids, Ids, Ids],
    hubs: tuple[Ids, Ids],
    state: Ids,
) -> int:
    """Append edges to their ranges' blocks until the edges or the free blocks run out.

    Args:
        edges: Source ids, target ids, edge ids (empty where records have two columns), and the
            first position to take.
        limits: Shift and base (an edge belongs to range ``(target - base) >> shift``), then what
            sources, targets and edge ids must be below; sources and edge ids must not be negative,
            targets not below the base. Others stop the loop.
        pool: (blocks, capacity, 2 or 3), int32 or int64: the staged blocks.
        tables: A range's open block and its fill; a stack of free blocks; the full blocks and
            their ranges. The stack holds one block at least on entry.
        hubs: A table of targets, a power of two long, where a hub stands at the place that its
            low bits say and others are -1; and a rule for each (first range, first source, shift,
            last): source s goes to ``first range + min(last, (s - first source) >> shift)``.
        state: Free blocks, full blocks, largest source and largest target seen, edges whose ends
            are the same number; updated.

    Returns:
        The first position not taken: stopped by a limit, or because the stack is empty.
    """
    sources, targets, ids, start = edges
    shift, base, source_limit, target_limit, id_limit = limits
    opened, fill = tables[0], tables[1]
    hub_targets, rules = hubs
    mask = hub_targets.shape[0] - 1
    capacity = pool.shape[1]
    with_ids = pool.shape[2] == 3
    largest_source, largest_target = state[LARGEST_SOURCE], state[LARGEST_TARGET]
    loops = state[LOOPS]
    position = start
    while position < sources.shape[0]:
        source, target = sources[position], targets[position]
        if source < 0 or source >= source_limit or target < base or target >= target_limit:
            break
        if with_ids and (ids[position] < 0 or ids[position] >= id_limit):
            break
        largest_source = max(largest_source, source)
        largest_target = max(largest_target, target)
        if source == target:
            loops += 1
        index = (target - base) >> shift
        hub = target & mask
        if hub_targets[hub] == target:
            place = (source - rules[hub, FIRST_SOURCE]) >> rules[hub, SHIFT]
            index = rules[hub, FIRST_RANGE] + min(rules[hub, LAST], place)
        block, at = opened[index], fill[index]
        pool[block, at, 0] = source
        pool[block, at, 1] = target
        if with_ids:
            pool[block, at, 2] = ids[position]
        position += 1
        fill[index] = at + 1
        if at + 1 == capacity and not replace_block(index, tables, state):
            break
    state[LARGEST_SOURCE], state[LARGEST_TARGET] = largest_source, largest_target
    state[LOOPS] = loops
    return position
