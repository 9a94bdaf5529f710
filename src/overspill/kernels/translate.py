"""Translate raw ids into their ranks among sorted distinct ids.

Bottleneck: cache misses, and where the ids lie in a file, its pages. Algorithm: lookups come in
order of the raw ids and with the block in which each would stand; a binary search within that block
touches nothing outside it, and neighbouring lookups share its cache lines.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]


@kernel
def rank_ids(raw: Ids, order: Ids, blocks: Ids, ids: Ids, block_ids: int, ranks: Ids) -> int:
    """Find the positions of some raw ids among the sorted ids.

    Args:
        raw: (n,) ids to look up.
        order: (m,) which of them, best in their order.
        blocks: (m,) for each of those, the block of the ids in which it would stand; -1 before all.
        ids: Sorted, distinct; may be a mapping.
        block_ids: Ids in a block; the last may hold fewer.
        ranks: (n,) filled at the places `order` names: with positions, or -1 for what is not
            among the ids.

    Returns:
        How many are among the ids.
    """
    found = 0
    for at in range(order.shape[0]):
        ranks[order[at]] = -1
        if blocks[at] < 0:
            continue
        value = raw[order[at]]
        low = blocks[at] * block_ids
        high = end = min(low + block_ids, ids.shape[0])
        while low < high:
            middle = (low + high) // 2
            if ids[middle] < value:
                low = middle + 1
            else:
                high = middle
        if low < end and ids[low] == value:
            ranks[order[at]] = low
            found += 1
    return found
