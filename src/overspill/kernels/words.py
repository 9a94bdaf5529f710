"""The words that bytes are copied in: the fewer of them, the sooner a loop is through."""

from __future__ import annotations

from typing import Any

import numpy as np

# Widest first; unsigned everywhere, so that a kernel is compiled once for a width.
WORDS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(word) for word in (np.uint64, np.uint32, np.uint16, np.uint8)
)


def widest_word(sizes: int) -> np.dtype[Any]:
    """The widest word that sizes and addresses are multiples of.

    Args:
        sizes: All of them, in bytes, combined by ``|``.
    """
    return next(word for word in WORDS if sizes % word.itemsize == 0)
