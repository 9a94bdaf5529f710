"""The tensors that make a CSR: checked, and read in slices."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError, UnsupportedTensorError
from overspill.graph.csr_plan import SLICE_EDGES
from overspill.kernels.gather import first_outside
from overspill.kernels.words import widest_word
from overspill.tensors.backing import cpu_storage
from overspill.tensors.chunks import copyable
from overspill.tensors.dtypes import is_mappable
from overspill.tensors.layouts import bytes_of

Array = npt.NDArray[Any]
_ID_DTYPES = (torch.int64, torch.int32)
# One below the largest int64, so that the number of columns is an int64 too.
_MOST_COLUMNS = 2**63 - 1


@dataclass(frozen=True)
class Items:
    """What goes along with each edge, as words.

    Attributes:
        read: Gives the words of a slice, (n, words), contiguous.
        words: Words an edge.
        dtype: Of a word.
    """

    read: Callable[[int, int], Array]
    words: int
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes an edge."""
        return self.words * self.dtype.itemsize


def checked_count(value: int, name: str) -> int:
    """A count as an int.

    Raises:
        InputError: No integer, or negative.
    """
    try:
        count = operator.index(value)
    except TypeError as error:
        raise InputError(
            f"{name} is no integer: {value!r}",
            value=repr(value),
            remedy="give a number of rows or columns, from 0",
        ) from error
    if count < 0:
        raise InputError(
            f"{name} cannot be negative: {count}",
            value=str(count),
            remedy="give a number of rows or columns, from 0",
        )
    return count


def id_reader(ids: torch.Tensor, name: str) -> Callable[[int, int], npt.NDArray[np.int64]]:
    """Ids as contiguous int64, slice by slice; a slice that is this already is not copied.

    Raises:
        InputError: Not a one-dimensional int64 or int32 CPU tensor.
    """
    if not isinstance(ids, torch.Tensor) or cpu_storage(ids) is None:
        raise InputError(
            f"{name} is no strided CPU tensor",
            column=name,
            remedy="pass one: torch.from_numpy(array), or tensor.cpu()",
        )
    if ids.dtype not in _ID_DTYPES:
        raise InputError(
            f"{name} is of {ids.dtype}; ids are int64 or int32",
            column=name,
            value=str(ids.dtype),
            remedy=f"check what {name} holds, then convert it with .to(torch.int64)",
        )
    if ids.dim() != 1:
        raise InputError(
            f"{name} has {ids.dim()} dimensions, {tuple(ids.shape)}; one is wanted",
            column=name,
            value=str(tuple(ids.shape)),
            remedy="pass edge_index[0] and edge_index[1], say",
        )
    held = ids.as_subclass(torch.Tensor).numpy()
    return lambda start, stop: np.ascontiguousarray(held[start:stop], np.int64)


def checked_ids(
    read: Callable[[int, int], npt.NDArray[np.int64]],
    edges: int,
    *,
    limit: int | None,
    name: str,
) -> int:
    """Read all ids once.

    Args:
        read: Gives them.
        edges: How many there are.
        limit: One more than the largest allowed; None: as far as int64 goes.
        name: What to call them.

    Returns:
        The largest, or -1 where there is none.

    Raises:
        InputError: One is out of range; with the first such position and its value.
    """
    most = _MOST_COLUMNS if limit is None else min(limit, _MOST_COLUMNS)
    largest = -1
    for start in range(0, edges, SLICE_EDGES):
        ids = read(start, min(start + SLICE_EDGES, edges))
        low, high = int(ids.min()), int(ids.max())  # by vectors, where a search goes one by one
        if low < 0 or high >= most:
            _count, position = first_outside(ids, most)
            raise _out_of_range(int(ids[position]), start + position, limit, name)
        largest = max(largest, high)
    return largest


def _out_of_range(value: int, position: int, limit: int | None, name: str) -> InputError:
    allowed = "0 and more" if limit is None else f"0 to {limit - 1}" if limit else "none at all"
    counted = "num_rows" if name == "row" else "num_cols"
    return InputError(
        f"{name}[{position}] is {value}; allowed are ids of {allowed}",
        row=position,
        column=name,
        value=str(value),
        remedy=f"check the edges, or raise {counted}" if limit is not None else "check the edges",
    )


def position_items() -> Items:
    """The position of each edge."""

    def read(start: int, stop: int) -> Array:
        return np.arange(start, stop, dtype=np.uint64)[:, None]

    return Items(read, 1, np.dtype(np.uint64))


def weight_items(weights: torch.Tensor, edges: int) -> Items | None:
    """Weights as the widest words that their size allows; None where they have no bytes.

    Raises:
        InputError: No strided CPU tensor, or not one entry an edge.
        UnsupportedTensorError: A quantized dtype.
    """
    if not isinstance(weights, torch.Tensor):
        raise InputError(
            "weights is no tensor", column="weights", remedy="convert it: torch.as_tensor(...)"
        )
    if not is_mappable(weights.dtype):
        raise UnsupportedTensorError(
            f"weights are of {weights.dtype} (quantized)",
            remedy="dequantize them: weights.dequantize()",
        )
    if cpu_storage(weights) is None:
        raise InputError(
            "weights is no strided CPU tensor",
            column="weights",
            remedy="make it one: weights.cpu().to_dense()",
        )
    if weights.dim() == 0 or len(weights) != edges:
        raise InputError(
            f"weights has the shape {tuple(weights.shape)}; its first axis must be {edges} edges",
            column="weights",
            value=str(tuple(weights.shape)),
            remedy="give one row of weights an edge, in the order of row and col",
        )
    nbytes = math.prod(weights.shape[1:]) * weights.element_size()
    if nbytes == 0:
        return None
    word = widest_word(nbytes)
    plain = weights.detach().as_subclass(torch.Tensor)

    def read(start: int, stop: int) -> Array:
        part = plain[start:stop].resolve_conj().resolve_neg()
        part = part if part.is_contiguous() else copyable(part).contiguous()
        held = bytes_of(part).numpy()
        if held.__array_interface__["data"][0] % word.itemsize:
            held = held.copy()  # a view whose offset is no multiple of a word
        return held.view(word).reshape(stop - start, -1)

    return Items(read, nbytes // word.itemsize, word)
