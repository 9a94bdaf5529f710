"""Count how often ids of a range occur.

Bottleneck: one cache miss an id. Plain loops over given counters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel


@kernel
def count_ids(ids: npt.NDArray[Any], first: int, counts: npt.NDArray[np.uint32]) -> None:
    """Add one to the counter of each id in the range of the counters; others are passed over.

    Args:
        ids: Whole numbers (ids,).
        first: The id that the first counter is for.
        counts: uint32 (range,); stays at its largest value instead of turning over.
    """
    for i in range(ids.size):
        place = np.int64(ids[i]) - first
        if place >= 0 and place < counts.size and counts[place] != np.uint32(0xFFFFFFFF):
            counts[place] += np.uint32(1)
