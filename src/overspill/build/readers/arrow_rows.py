"""Columns of Arrow as rows of an array, without a copy where the bits are the same.

Rows are of numbers, booleans, times (as the integers they are stored as), or of lists of a constant
number of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from overspill.build.readers.arrow_ids import (
    Where,
    dtype_of,
    first_null,
    holds_text,
    numbers_of,
)
from overspill.build.readers.table import Layout
from overspill.errors import InputError

_FILL = "fill the cell, or leave the row out"


def layout_of(fields: Sequence[pa.Field], path: str) -> tuple[Layout, int | None]:
    """How the rows of some columns look; with it the length of list cells, None where rows tell.

    Raises:
        InputError: A column is text or of another type that no array holds, or types differ.
    """
    layouts = [_layout(field, path) for field in fields]
    first = layouts[0]
    for field, other in zip(fields, layouts, strict=True):
        if other[0].dtype != first[0].dtype or other[0].unit != first[0].unit:
            raise InputError(
                f"columns of one array differ in type: {fields[0].name!r} of {path} holds "
                f"{fields[0].type}, {field.name!r} {field.type}",
                path=path,
                column=field.name,
                value=str(field.type),
                remedy="name columns of one type, or give each an array of its own",
            )
        if len(fields) > 1 and (other[0].row_shape or other[1] is None):
            raise InputError(
                f"column {field.name!r} of {path} holds lists, so it is an array by itself",
                path=path,
                column=field.name,
                value=str(field.type),
                remedy="name one column of lists, or several of plain numbers",
            )
    if len(fields) > 1:
        return Layout(first[0].dtype, (len(fields),), first[0].unit), 0
    return first


def _layout(field: pa.Field, path: str) -> tuple[Layout, int | None]:
    kind = field.type
    shape: tuple[int, ...] = ()
    length: int | None = 0
    if isinstance(kind, pa.BaseExtensionType):
        # With a permutation the values lie in another order than the shape tells: k numbers then.
        if isinstance(kind, pa.FixedShapeTensorType) and _as_shaped(kind.permutation):
            shape = tuple(kind.shape)
        kind = kind.storage_type
    if types.is_fixed_size_list(kind):
        shape, length, kind = shape or (kind.list_size,), kind.list_size, kind.value_type
    elif types.is_list(kind) or types.is_large_list(kind):
        length, kind = None, kind.value_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    return Layout(_number_name(kind, field, path), shape, _unit(kind)), length


def _as_shaped(permutation: list[int] | None) -> bool:
    return permutation is None or permutation == sorted(permutation)


def _number_name(kind: pa.DataType, field: pa.Field, path: str) -> str:
    if types.is_temporal(kind) and kind.bit_width in (32, 64):
        return f"int{kind.bit_width}"
    if types.is_floating(kind) or types.is_integer(kind):
        return str(dtype_of(kind).name)
    if types.is_boolean(kind):
        return "bool"
    text = holds_text(kind)
    raise InputError(
        f"column {field.name!r} of {path} holds {field.type}, which no array can",
        path=path,
        column=field.name,
        value=str(field.type),
        remedy="encode the text as numbers first"
        if text
        else "cast it to an integer, a float or a boolean type, or to lists of these",
    )


def _unit(kind: pa.DataType) -> str:
    return str(kind) if types.is_temporal(kind) else ""


def rows_of(
    arrays: Sequence[pa.Array], layout: Layout, wheres: Sequence[Where]
) -> npt.NDArray[Any]:
    """The rows of some columns, (n, *row_shape).

    Raises:
        InputError: A cell is null, or a list of another length.
    """
    columns = [_cells_of(array, layout, where) for array, where in zip(arrays, wheres, strict=True)]
    if len(columns) == 1:
        return columns[0].reshape(len(arrays[0]), *layout.row_shape)
    return np.stack(columns, 1)


def _cells_of(array: pa.Array, layout: Layout, where: Where) -> npt.NDArray[Any]:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise where.wrong("a cell is null", first_null(array), remedy=_FILL)
    kind = array.type
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        array = _flattened(array, int(np.prod(layout.row_shape)), where)
    if types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    values = numbers_of(array)
    return np.asarray(values, dtype=np.dtype(layout.dtype))


def _flattened(array: pa.Array, length: int, where: Where) -> pa.Array:
    if not types.is_fixed_size_list(array.type):
        lengths = numbers_of(pc.list_value_length(array))
        wrong = lengths != length
        if wrong.any():
            place = int(np.argmax(wrong))
            raise where.wrong(
                f"a list has {lengths[place]} elements where others have {length}",
                place,
                value=array[place].as_py(),
                remedy="pad the lists to one length",
            )
    flat = array.flatten()
    if types.is_dictionary(flat.type):
        flat = flat.dictionary_decode()
    if flat.null_count:
        place = first_null(flat) // max(1, length)
        raise where.wrong(
            "an element of a list is null", place, value=array[place].as_py(), remedy=_FILL
        )
    return flat


def first_length(array: pa.Array) -> int | None:
    """The length of the first list that is not null; None where there is none."""
    lengths = pc.list_value_length(array).drop_null()
    return int(lengths[0].as_py()) if len(lengths) else None
