"""One value as an element of any stored dtype, refused where it does not fit."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.storage.records import STORED_DTYPES, numpy_view_dtype

_QUIET_NAN = {"bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E}


def fill_element(value: Any, dtype: str) -> npt.NDArray[Any]:
    """The value as an array of one element; what numpy lacks comes as unsigned bits.

    Args:
        value: A number or a truth value; NaN and infinities where the dtype has them.
        dtype: A name of `STORED_DTYPES`.

    Raises:
        InputError: An integer or bool dtype cannot hold the value exactly, or a floating one not
            within its range. Floating dtypes round to nearest.
    """
    kind = numpy_view_dtype(dtype)
    try:
        _require_number(value)
        if dtype in _QUIET_NAN:
            element = _code(float(value), dtype)
        elif kind.kind in "fc":
            element = _rounded(value, kind)
        else:
            element = _exact(value, kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the fill value {value!r} does not fit {dtype}",
            value=repr(value),
            remedy=f"choose a value that {dtype} can hold",
        ) from error
    return np.array([element], kind)


def _require_number(value: Any) -> None:
    # numpy's types would read a text, and take None for NaN.
    if not isinstance(value, Number | np.generic):
        raise TypeError("not a number")


def _exact(value: Any, kind: np.dtype[Any]) -> int:
    whole = int(value)
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    if whole != value or not low <= whole <= high:
        raise ValueError("not exactly")
    return whole


def _rounded(value: Any, kind: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore"):
        element = kind.type(value)
    if np.isinf(element) and not np.isinf(complex(value)):
        raise OverflowError("beyond the largest")
    return element


def _code(value: float, dtype: str) -> int:
    """The bits of the nearest value, the even ones of two as near."""
    if math.isnan(value):
        return _QUIET_NAN[dtype]
    values = _values(dtype)
    if math.isinf(value):
        return int(np.flatnonzero(values == value)[:1].item())
    usable = np.isfinite(values) & (np.signbit(values) == np.signbit(value))
    if abs(value) > values[usable].max(initial=-values[usable].min()):
        raise OverflowError("beyond the largest")
    distances = np.abs(np.where(usable, values, math.inf) - value)
    nearest = np.flatnonzero(distances == distances.min())
    return int(min(nearest, key=lambda code: code % 2))


def _values(dtype: str) -> npt.NDArray[np.float64]:
    """The value of every bit pattern."""
    codes = np.arange(256 ** STORED_DTYPES[dtype][1], dtype=np.uint32)
    if dtype == "bfloat16":
        with np.errstate(invalid="ignore"):  # signalling NaNs are among them
            return (codes << 16).view(np.float32).astype(np.float64)
    if dtype == "float8_e5m2":  # the upper half of a float16
        return (codes << 8).astype(np.uint16).view(np.float16).astype(np.float64)
    exponents, mantissas = (codes >> 3 & 15).astype(np.float64), (codes & 7) / 8
    sizes = np.where(exponents == 0, mantissas * 2.0**-6, (1 + mantissas) * 2.0 ** (exponents - 7))
    sizes[codes & 127 == 127] = math.nan  # no infinities, one NaN of each sign
    return np.where(codes & 128, -sizes, sizes)
