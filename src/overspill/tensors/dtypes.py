"""The table of torch dtypes by name, and which of them can live in a mapped file.

Names are numpy's where numpy has the dtype and torch's where it has not ("bfloat16",
"float8_e4m3fn"): the two agree wherever both exist.
"""

from __future__ import annotations

import torch

from overspill.errors import UnsupportedTensorError

# A quantized tensor carries a quantizer beside its storage, which no mapping can hold.
_QUANTIZED = frozenset({"qint8", "qint32", "quint8", "quint4x2", "quint2x4"})


def _names() -> dict[str, torch.dtype]:
    found = {held for held in vars(torch).values() if isinstance(held, torch.dtype)}
    return {str(dtype).removeprefix("torch."): dtype for dtype in found}


_BY_NAME = _names()
MAPPABLE_DTYPES = tuple(_BY_NAME[name] for name in sorted(_BY_NAME.keys() - _QUANTIZED))


def is_mappable(dtype: object) -> bool:
    """Whether tensors of this dtype can live in a mapped file: every one but the quantized."""
    return isinstance(dtype, torch.dtype) and dtype_name(dtype) not in _QUANTIZED


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as files and handles carry it, for example ``"bfloat16"``."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """The mappable dtype of this name.

    Args:
        name: numpy's name, or torch's where numpy has no such dtype.

    Returns:
        The dtype.

    Raises:
        UnsupportedTensorError: This torch knows no such dtype, or it cannot be mapped.
    """
    dtype = _BY_NAME.get(name)
    if dtype is None or name in _QUANTIZED:
        raise UnsupportedTensorError(
            f"dtype {name!r} cannot live in a mapped file",
            remedy=f"one of {', '.join(dtype_name(known) for known in MAPPABLE_DTYPES)}",
        )
    return dtype
