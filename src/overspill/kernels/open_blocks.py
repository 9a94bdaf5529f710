"""Blocks that ranges have open in a pool, and what takes the place of one that is full.

For the loops that stage edges; called once a block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]
# Places in the state array of every loop that stages.
FREE, FULL = 0, 1


@kernel
def replace_block(index: int, tables: tuple[Ids, Ids, Ids, Ids, Ids], state: Ids) -> bool:
    """Put a range's block on the list of full ones, and open a free one in its place.

    Args:
        index: The range.
        tables: A range's open block and its fill; a stack of free blocks, of which there is one at
            least; the full blocks and their ranges.
        state: Free blocks and full blocks; updated.

    Returns:
        Whether there is a free block left.
    """
    opened, fill, free, full_blocks, full_ranges = tables
    full_blocks[state[FULL]] = opened[index]
    full_ranges[state[FULL]] = index
    state[FULL] += 1
    state[FREE] -= 1
    opened[index] = free[state[FREE]]
    fill[index] = 0
    return bool(state[FREE] > 0)
