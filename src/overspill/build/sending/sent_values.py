"""What a value of the caller's is: a table, a pair of ends, an array, several of these, or nothing.

Known by what it offers, never by its library, so that none is imported for it.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overspill.build.sending.sent_arrays import SLICE_BYTES, Array, as_array
from overspill.errors import InputError

_TABLE_METHODS = ("__arrow_c_stream__", "to_arrow_reader", "fetch_record_batch")
_COLUMN_METHODS = ("__arrow_c_array__", "__arrow_c_stream__", "__array__", "__dlpack__")
Prepare = Callable[[object], object]


@dataclass(frozen=True)
class Table:
    """Anything that gives Arrow batches with named columns."""

    held: Any


@dataclass(frozen=True)
class Whole:
    """One array."""

    array: Array


@dataclass(frozen=True)
class Pair:
    """Sources and targets: arrays of integers, else columns of any library or lists."""

    sources: Any
    targets: Any

    @property
    def is_integer(self) -> bool:
        """Whether both are numpy's integers."""
        return all(
            isinstance(end, np.ndarray) and end.dtype.kind in "iu"
            for end in (self.sources, self.targets)
        )

    def __len__(self) -> int:
        return max(len(self.sources), len(self.targets))


@dataclass(frozen=True)
class Several:
    """An iterable of the others."""

    items: Iterable[Any]


Value = Table | Whole | Pair | Several


def recognise(value: Any, name: str, *, edges: bool, prepare: Prepare) -> Value | None:
    """Tell what a value is.

    Args:
        value: Anything.
        name: What errors call it.
        edges: Whether it is to be edges, else rows of an array.
        prepare: Turns what only a higher floor understands into a numpy array.

    Returns:
        None where it is nothing that can be sent.

    Raises:
        InputError: It can be, by its kind, but not as it is.
    """
    value = _prepared(value, name, prepare)
    if value is None or isinstance(value, str | bytes | bytearray | os.PathLike | io.IOBase):
        return None
    if isinstance(value, list | tuple):
        return _of_list(value, name, edges=edges, prepare=prepare)
    if _is_column(value):
        return _of_column(value, name, edges=edges)
    if _offers(value, _TABLE_METHODS) or _is_record_batch(value):
        return Table(value)
    if _lies_elsewhere(value):
        return Several(_slices(value, edges=edges))
    if _offers(value, ("__array__", "__dlpack__")):
        return Whole(as_array(value, name))
    if hasattr(value, "tocoo"):
        raise InputError(
            f"{name} is a sparse matrix",
            path=name,
            remedy="pass its coordinates: coo = matrix.tocoo(); (coo.row, coo.col)",
        )
    if isinstance(value, Iterable) and not isinstance(value, Mapping | set | frozenset):
        return Several(value)
    return None


def _lies_elsewhere(value: Any) -> bool:
    """Whether it is an array that would be read whole, as of h5py or zarr, and gives slices too."""
    known = ("__array_interface__", "__dlpack__", "to_numpy")
    offered = all(hasattr(value, name) for name in ("__array__", "shape", "dtype", "__getitem__"))
    return offered and not _offers(value, known) and value.shape not in {(), (2, 2)}


def _slices(value: Any, *, edges: bool) -> Iterator[Any]:
    """Its slices of bounded size; edges as pairs, which no slice's shape makes ambiguous."""
    apart = edges and len(value.shape) == 2 and value.shape[0] == 2
    count = value.shape[1] if apart else value.shape[0]
    row_bytes = value.dtype.itemsize * math.prod(value.shape) // max(1, count)
    step = max(1, SLICE_BYTES // max(1, row_bytes))
    for first in range(0, max(1, count), step):
        if apart:
            yield tuple(np.asarray(value[end, first : first + step]) for end in (0, 1))
            continue
        part = np.asarray(value[first : first + step])
        yield tuple(part.T) if edges and value.shape[1:] == (2,) else part


def _prepared(value: Any, name: str, prepare: Prepare) -> Any:
    try:
        return prepare(value)
    except InputError as error:
        error.path = error.path or name
        raise


def _of_list(value: Any, name: str, *, edges: bool, prepare: Prepare) -> Value | None:
    held = [_prepared(item, name, prepare) for item in value]
    if edges and len(held) == 2 and all(_is_end(item) for item in held):
        return Pair(*(_end(item, name) for item in held))
    if held and all(_is_sendable(item, edges=edges) for item in held):
        return Several(held)
    if edges or not held or any(isinstance(item, str | os.PathLike) for item in held):
        return None
    return Whole(as_array(_nested(value, name), name))


def _is_end(item: Any) -> bool:
    """Whether it has one axis: a list of ids, an array, a column."""
    if isinstance(item, list | tuple):
        return not any(isinstance(id_, list | tuple) or hasattr(id_, "shape") for id_ in item[:1])
    if isinstance(item, np.ndarray):
        return item.ndim == 1
    shape = getattr(item, "shape", None)
    return _is_column(item) or (
        _offers(item, _COLUMN_METHODS) and shape is not None and len(shape) == 1
    )


def _end(item: Any, name: str) -> Any:
    """Integers as numpy's; what may hold nulls or text as it is."""
    if isinstance(item, list | tuple):
        array = np.asarray(item) if item else np.empty(0, np.int64)
        return array if array.dtype.kind in "iu" else list(item)
    if _is_column(item) and not _is_numpy_column(item):
        return item
    return as_array(item, name)


def _is_column(value: Any) -> bool:
    """One column of Arrow's: a pyarrow array, a Series."""
    typed = hasattr(value, "dtype") or hasattr(value, "type")
    return (
        typed
        and _offers(value, ("__arrow_c_array__", "__arrow_c_stream__"))
        and not _offers(value, ("columns", "schema"))
    )


def _is_numpy_column(value: Any) -> bool:
    return isinstance(getattr(value, "dtype", None), np.dtype) and hasattr(value, "__array__")


def _of_column(value: Any, name: str, *, edges: bool) -> Value:
    if edges:
        raise InputError(
            f"{name} is one column",
            path=name,
            remedy="give a table, or [sources, targets]",
        )
    nulls = getattr(value, "null_count", 0)  # a method in polars
    if nulls() if callable(nulls) else nulls:
        missing = np.asarray(value.is_null())
        raise InputError(
            f"{name} has a null where an array has numbers",
            path=name,
            row=int(np.flatnonzero(missing)[0]),
            remedy="fill it, or drop the row",
        )
    return Whole(as_array(value, name))


def _is_record_batch(value: Any) -> bool:
    return _offers(value, ("__arrow_c_array__",)) and _offers(value, ("schema", "columns"))


def _is_sendable(item: Any, *, edges: bool) -> bool:
    if isinstance(item, list | tuple):
        return edges and len(item) == 2 and all(_is_end(end) for end in item)
    # A number of numpy's or torch's is an array without axes.
    return getattr(item, "shape", None) != () and _offers(item, _TABLE_METHODS + _COLUMN_METHODS)


def _nested(value: Any, name: str) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"{name} is a list whose items differ in shape: {error}",
            path=name,
            remedy="give an array",
        ) from error


def _offers(value: Any, names: tuple[str, ...]) -> bool:
    return any(hasattr(value, name) for name in names)
