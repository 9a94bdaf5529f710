"""Memory that is kept from batch to batch and grows to the largest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Buffer:
    """An array that grows by a quarter more than asked for, and never shrinks.

    Args:
        dtype: Of its elements.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._held: npt.NDArray[Any] = np.empty(0, dtype=dtype)

    def array(self, size: int, *, keep: int = 0) -> npt.NDArray[Any]:
        """The first `size` elements; when it grows, only the first `keep` keep their values."""
        if self._held.size < size:
            old, dtype = self._held[:keep], self._held.dtype
            if not keep:
                # The old one goes before the new one comes.
                old = self._held = np.empty(0, dtype=dtype)
            self._held = np.empty(size + size // 4, dtype=dtype)
            self._held[: old.size] = old
        return self._held[:size]

    def typed(self, size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """`size` elements of another type, for a buffer of bytes."""
        wanted = np.dtype(dtype)
        return self.array(size * wanted.itemsize).view(wanted)
