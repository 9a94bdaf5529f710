"""Compiles the kernels of random reads before anything depends on their being ready."""

from __future__ import annotations

import numpy as np

from overspill.kernels.gather import (
    copy_fetched,
    copy_items,
    copy_present,
    first_outside,
    next_window,
)
from overspill.kernels.words import WORDS


def warm_reading() -> None:
    """Compile, or load from the cache, every kernel that a `PagedArray` uses.

    A parent does this before it starts workers: forked ones inherit the code, others find it in
    the cache. Some seconds with a cold cache, 0.2 s with a warm one, nothing the second time.
    """
    ids = np.zeros(1, dtype=np.int64)
    layout, present = (0, 1, 1, 12), np.ones(1, dtype=np.uint8)
    first_outside(ids, 1)
    for word in WORDS:
        words, rows = np.zeros(2, dtype=word), np.zeros((1, 2), dtype=word)
        copy_items(words, ids, 1, rows)
        copy_present(words, (ids, ids), layout, present, rows, ids.copy())
        copy_fetched(words, (ids, ids), layout, (ids, ids + 1), rows)
    next_window(ids, 0, layout, 1, (ids.copy(), ids.copy()))
