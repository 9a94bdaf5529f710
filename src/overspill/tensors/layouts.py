"""Tensors laid over storages, for every dtype, and the bytes beneath them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def tensor_over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    shape: Sequence[int],
    *,
    stride: Sequence[int] | None = None,
    offset: int = 0,
) -> torch.Tensor:
    """A tensor over a storage; contiguous unless strides are given. Copies and reads nothing.

    Args:
        storage: The memory.
        dtype: The dtype of the elements.
        shape: The shape.
        stride: The strides, in elements.
        offset: Where the first element lies, in elements.
    """
    steps = contiguous_stride(shape) if stride is None else stride
    return torch.empty(0, dtype=dtype, device="cpu").set_(
        storage, offset, tuple(shape), tuple(steps)
    )


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major tensor, as torch gives them: a size of zero counts as one."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as uint8 (nbytes,); works for dtypes without a view."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    storage = tensor.untyped_storage()
    return tensor_over(storage, torch.uint8, (tensor.numel() * size,), offset=start)
