"""Columns of Arrow as ids, without a copy where the bits are the same.

Ids are integers that fit 63 bits and a sign, text of every kind, and floats and decimals that are
whole; nothing passes through a float that was none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from overspill.build.readers.edges import Ids, RawIds, Strings, id_remedy
from overspill.errors import InputError

_MOST = 2**63 - 1
# By hand: Arrow's own `to_pandas_dtype` imports pandas in older releases, which need not be there.
_DTYPES = {
    pa.bool_(): np.dtype(np.bool_),
    **{pa.from_numpy_dtype(name): np.dtype(name) for name in ("f2", "f4", "f8")},
    **{
        pa.from_numpy_dtype(f"{sign}{size}"): np.dtype(f"{sign}{size}")
        for sign in "iu"
        for size in (1, 2, 4, 8)
    },
    pa.null(): np.dtype(np.int64),  # of an empty column that nobody gave a type
}
# Beyond these, a float no longer tells one whole number from the next.
_EXACT = {2: 2**11, 4: 2**24, 8: 2**53}


@dataclass(frozen=True)
class Where:
    """What errors call a column, and the number they give to the first row at hand."""

    path: str
    column: str
    first: int

    def wrong(
        self, told: str, place: int, *, value: object = None, remedy: str | None = None
    ) -> InputError:
        """An error about one cell."""
        return InputError(
            told,
            path=self.path,
            row=self.first + place,
            column=self.column,
            value=None if value is None else str(value)[:80],
            remedy=remedy,
        )


def holds_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is text, as ids."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        test(kind)
        for test in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
        )
    )


def require_ids(kind: pa.DataType, path: str, column: str) -> None:
    """Refuse a column that cannot hold ids, whatever its cells."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    whole = types.is_decimal(kind) and kind.scale == 0
    # A column of nothing but nulls has a type of its own; its first row tells more.
    known = types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)
    if not (known or whole or holds_text(kind)):
        raise InputError(
            f"edge ids must be integers or text; column {column!r} of {path} holds {kind}",
            path=path,
            column=column,
            value=str(kind),
            remedy="name the columns of ids: columns=(...), or save them as int64",
        )


def ids_of(array: pa.Array, where: Where) -> RawIds:
    """The ids of one column.

    Raises:
        InputError: A cell is null, no whole number, or beyond 64 bits with a sign.
    """
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise where.wrong("an id is null", first_null(array), remedy=id_remedy(""))
    if holds_text(array.type):
        return _strings_of(array, where)
    if types.is_decimal(array.type):
        return _whole_decimals(array, where)
    values = numbers_of(array)
    if values.dtype.kind == "f":
        return _whole_floats(values, where)
    if values.dtype == np.uint64 and len(values) and values.max() > _MOST:
        place = int(np.argmax(values > np.uint64(_MOST)))
        raise where.wrong(
            "an id does not fit 63 bits",
            place,
            value=int(values[place]),
            remedy="save the ids as text, or as int64 with the same bits",
        )
    return cast("Ids", values.astype(np.int64, copy=False))


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The dtype of a column of numbers or truth values."""
    return _DTYPES[kind]


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers or truth values of a column without nulls; numbers are not copied.

    Arrow's own `to_numpy` imports pandas wherever that is installed: 25 MiB of memory.
    """
    count, first, data = len(array), array.offset, array.buffers()[1] if len(array) else None
    dtype = dtype_of(array.type)
    if data is None:
        return np.empty(0, dtype)
    if types.is_boolean(array.type):
        held = np.frombuffer(data, np.uint8, offset=first // 8)
        bits = np.unpackbits(held, bitorder="little", count=first % 8 + count)
        return bits[first % 8 :].view(np.bool_)
    return np.frombuffer(data, dtype, count, first * dtype.itemsize)


def first_null(array: pa.Array) -> int:
    """Where the first null of a column lies that has one."""
    return int(np.argmax(numbers_of(array.is_null())))


def _whole_floats(values: npt.NDArray[Any], where: Where) -> Ids:
    most = _EXACT[values.dtype.itemsize]
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(values) < most) & (np.trunc(values) == values))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise where.wrong(
            f"an id is a float that is no exact integer below 2**{most.bit_length() - 1}",
            place,
            value=values[place],
            remedy="save the ids as int64; where cells were null, drop their rows first",
        )
    return values.astype(np.int64)


def _whole_decimals(array: pa.Array, where: Where) -> Ids:
    try:
        return numbers_of(array.cast(pa.int64()))
    except pa.ArrowInvalid as error:
        cells = array.to_pylist()
        place = next(n for n, cell in enumerate(cells) if not -_MOST - 1 <= int(cell) <= _MOST)
        raise where.wrong("an id does not fit 64 bits", place, value=cells[place]) from error


def _strings_of(array: pa.Array, where: Where) -> Strings:
    if types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    elif types.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    _require_utf8(array, where)
    if not len(array):
        return Strings(np.zeros(1, np.int64), np.empty(0, np.uint8))
    _, offsets, data = array.buffers()
    wide = types.is_large_string(array.type) or types.is_large_binary(array.type)
    width = np.dtype(np.int64 if wide else np.int32)
    held = np.frombuffer(offsets, width, len(array) + 1, array.offset * width.itemsize)
    text = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Strings(held.astype(np.int64, copy=False), text)


def _require_utf8(array: pa.Array, where: Where) -> None:
    # Files may hold any bytes under the name of a string: their readers do not look.
    wide = types.is_large_string(array.type) or types.is_large_binary(array.type)
    try:
        array.view(pa.large_string() if wide else pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        for place, cell in enumerate(array.view(pa.large_binary() if wide else pa.binary())):
            held = cell.as_py()
            try:
                held.decode()
            except UnicodeDecodeError as error:
                value = held.decode("utf-8", "replace")
                raise where.wrong("an id is not UTF-8", place, value=value) from error
        raise
