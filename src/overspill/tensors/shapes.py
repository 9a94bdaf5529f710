"""Shapes as callers give them, checked once."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch

from overspill.errors import InputError, UnsupportedTensorError

_LARGEST = 2**63 - 1  # bytes of a file, and what torch holds a size and a stride in


def checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of non-negative ints.

    Raises:
        InputError: A size is negative or no integer.
    """
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError as error:
        raise InputError(
            f"not a shape: {shape!r}", value=repr(shape), remedy="give a sequence of integers"
        ) from error
    if any(size < 0 for size in sizes):
        raise InputError(
            f"a shape cannot be negative: {sizes}", value=str(sizes), remedy="give sizes from 0"
        )
    return sizes


def checked_nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The bytes of a contiguous tensor.

    Raises:
        InputError: More than a file or an address space can hold; or, of an empty tensor, a size
            or a stride that torch cannot hold.
        UnsupportedTensorError: The dtype is not a torch dtype.
    """
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedTensorError(
            f"not a torch dtype: {dtype!r}", remedy="pass, for example, torch.float32"
        )
    nbytes = math.prod(shape) * dtype.itemsize
    # torch may overflow where no byte is needed: a size of zero counts as one in strides, and the
    # elements are counted from the left, in 64 unsigned bits, up to the first zero.
    longest_stride = math.prod(max(size, 1) for size in shape[1:])
    counted = math.prod(shape[: shape.index(0)]) if 0 in shape else 0
    if max(nbytes, longest_stride, counted // 2, *shape) > _LARGEST:
        raise InputError(
            f"a tensor of shape {shape} and {dtype} overflows",
            value=str(shape),
            remedy="bytes, sizes and strides must each be less than 2**63",
        )
    return nbytes
