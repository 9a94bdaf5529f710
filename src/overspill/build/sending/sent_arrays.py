"""Arrays in the caller's memory as streams of raw elements: what a .npy file holds.

Bottleneck: the pipe. What is contiguous goes as it lies; of everything else one slice at a time is
copied, so that nothing is copied whole. Edges go in the order in which they lie, (2, E) or (E, 2),
since their reader takes either at the same cost; rows of features always row after row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.readers.npy import bits_dtype, is_lacking, named_bits
from overspill.build.sending.frames import npy_closing
from overspill.errors import InputError

Array = npt.NDArray[Any]
SLICE_BYTES = 1 << 20
_MOST_ID = np.uint64(2**63 - 1)


@dataclass
class Payload:
    """What one stream carries.

    Attributes:
        kind: "npy": elements as they follow a .npy header. "pairs": such elements, each edge's two
            int64 ids together. "arrow": an Arrow IPC stream.
        pieces: The bytes, each piece valid until the next is asked for.
        closing: What the bytes were; complete once the pieces are through.
        edge_axis: Along which axis edges lie, where that is certain whatever shape comes out.
    """

    kind: str
    pieces: Iterator[Any]
    closing: dict[str, Any] = field(default_factory=dict)
    edge_axis: int | None = None


def as_array(value: Any, name: str) -> Array:
    """An array of any library as numpy's, without a copy where that library can.

    Raises:
        InputError: The library refuses, or it holds what has no fixed size.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"{name} has masked values", path=name, remedy="fill them: .filled(...)")
    try:
        if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
            array = np.asarray(value)
        else:
            array = np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(
            f"{name}: the {type(value).__name__} gives no array: {error}",
            path=name,
            remedy="convert it to numpy's, in main memory",
        ) from error
    name = array.dtype.name  # ml_dtypes has types that numpy lacks
    return array.view(bits_dtype(name)) if is_lacking(name) else array


def rows_of(array: Array, name: str) -> Payload:
    """Rows of features, in C order."""
    _require_plain(array, name)
    return Payload("npy", pieces_of(array), npy_closing(array.dtype, array.shape, fortran=False))


def edges_of(array: Array, name: str) -> Payload:
    """Edges of shape (2, E) or (E, 2), in the order in which they lie; their reader judges them."""
    _require_plain(array, name)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    lying = array.T if fortran else array
    return Payload("npy", pieces_of(lying), npy_closing(array.dtype, array.shape, fortran=fortran))


def pair_of(sources: Array, targets: Array, name: str) -> Payload:
    """Two arrays of integers, (E,) each, as (2, E); of two types, in one that holds both."""
    require_pair(sources, targets, name)
    common = np.result_type(sources, targets)
    if common.kind not in "iu":  # uint64 beside a signed type
        common = np.dtype(np.int64)
    ends = enumerate((sources, targets))
    parts = (_converted(end, common, name, column) for column, end in ends)
    pieces = itertools.chain.from_iterable(parts)
    closing = npy_closing(common, (2, len(sources)), fortran=False)
    return Payload("npy", pieces, closing, edge_axis=1)


def require_pair(sources: Any, targets: Any, name: str, first: int = 0) -> None:
    """Refuse sources and targets that do not belong together.

    Raises:
        InputError: It names the row at which the shorter one ends.
    """
    if len(sources) != len(targets):
        raise InputError(
            f"{name} has {len(sources)} sources and {len(targets)} targets",
            path=name,
            row=first + min(len(sources), len(targets)),
            remedy="give one source and one target for each edge",
        )


def ids_from(part: Array, name: str, first: int, column: int) -> Array:
    """Integers as int64; InputError at one that does not fit."""
    if part.dtype.kind == "u" and part.dtype.itemsize == 8:
        wrong = np.flatnonzero(part > _MOST_ID)
        if len(wrong):
            raise InputError(
                "an id does not fit 63 bits",
                path=name,
                row=first + int(wrong[0]),
                column=str(column),
                value=str(int(part[wrong[0]])),
                remedy="number the nodes below 2**63, or give their ids as text",
            )
    return part.astype(np.int64, copy=False)


def slices(array: Array) -> Iterator[Array]:
    """C-contiguous parts in C order: the array itself, or copies of about `SLICE_BYTES`."""
    if array.flags.c_contiguous:
        yield array
        return
    rows = max(1, SLICE_BYTES * len(array) // array.nbytes)
    if rows == 1 and array.ndim > 1:
        for row in array:
            yield from slices(row)
        return
    for first in range(0, len(array), rows):
        yield np.ascontiguousarray(array[first : first + rows])


def flat_bytes(part: Array) -> memoryview:
    """The bytes of a C-contiguous array."""
    return part.reshape(-1).view(np.uint8).data


def pieces_of(array: Array) -> Iterator[memoryview]:
    """The bytes of an array in C order."""
    return (flat_bytes(part) for part in slices(array) if part.size)


def _converted(array: Array, dtype: np.dtype[Any], name: str, column: int) -> Iterator[memoryview]:
    if array.dtype == dtype:
        yield from pieces_of(array)
        return
    for first in range(0, len(array), SLICE_BYTES // 8):
        part = array[first : first + SLICE_BYTES // 8]
        if dtype == np.int64:
            part = ids_from(part, name, first, column)
        yield flat_bytes(part.astype(dtype, order="C", copy=False))


def _require_plain(array: Array, name: str) -> None:
    held = array.dtype
    if held.hasobject or (held.names is not None and named_bits(held) is None):
        raise InputError(
            f"{name} holds {held}, not numbers",
            path=name,
            value=str(held),
            remedy="convert it to an array of numbers",
        )
