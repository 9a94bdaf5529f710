"""Whether a tensor alone holds its memory: no view, no array, no storage object beside it.

torch and Python count references; what the counts of a tensor that is surely alone look like
depends on their versions, so a fresh tensor tells.
"""

from __future__ import annotations

import functools
import sys

import torch


def holds_memory_alone(tensor: torch.Tensor) -> bool:
    """Whether nothing but this tensor object refers to its storage, and torch allocated it.

    Args:
        tensor: A strided CPU tensor.

    Returns:
        False also where this torch does not tell.
    """
    # What cannot be resized was not allocated by torch: numpy's memory, a file's, ....
    if not hasattr(torch._C, "_storage_Use_Count") or not tensor.untyped_storage().resizable():
        return False
    found, fresh = _counts(tensor), _fresh_counts()
    return found[0] <= fresh[0] and found[1] <= fresh[1]


@functools.cache
def _fresh_counts() -> tuple[int, int]:
    return _counts(torch.empty(1, device="cpu"))


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    """References to the storage, and to the one Python object that stands for it."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)
