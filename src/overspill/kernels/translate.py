"""Translate raw ids into their ranks among sorted distinct ids.

Bottleneck: cache misses. Algorithm: an index of equally wide spans of the raw values narrows the
search to the ids of one span, then a binary search; on evenly spread ids that is one or two misses
a lookup where a plain binary search has twenty. Limits: ids so clustered that they share one span
fall back to the plain binary search's speed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]


@kernel
def rank_ids(raw: Ids, ids: Ids, spans: Ids, shift: int, ranks: Ids) -> int:
    """Find each raw id's position in the sorted ids.

    Args:
        raw: (n,) ids to look up.
        ids: Sorted, distinct, at least one; may be a mapping.
        spans: ``spans[k]`` is the first position whose id is at least ``ids[0] + (k << shift)``;
            one more entry than spans.
        shift: Width of a span, as a power of two.
        ranks: (n,) filled with positions.

    Returns:
        The first position of `raw` that is not among the ids, or n.
    """
    # Differences of int64 values need all 64 bits, so they are taken without a sign.
    lowest = np.uint64(ids[0])
    for at in range(raw.shape[0]):
        value = raw[at]
        if value < ids[0] or value > ids[-1]:
            return at
        span = np.int64((np.uint64(value) - lowest) >> np.uint64(shift))
        low, high = spans[span], spans[span + 1]
        while low < high:
            middle = (low + high) // 2
            if ids[middle] < value:
                low = middle + 1
            else:
                high = middle
        if low == ids.shape[0] or ids[low] != value:
            return at
        ranks[at] = low
    return len(raw)
