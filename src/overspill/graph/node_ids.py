"""Node ids as people pass them: turned into int64, held against their range, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.kernels.gather import first_outside

_Ids = npt.NDArray[np.int64]


def whole_ids(ids: torch.Tensor | npt.NDArray[Any] | Sequence[int]) -> _Ids:
    """Turn ids into a contiguous int64 array; int64 tensors and arrays are not copied.

    Args:
        ids: One dimension of whole numbers.

    Returns:
        int64 (ids,).

    Raises:
        InputError: Another number of dimensions, or not whole numbers: a mask is no list of ids.
    """
    try:
        held = ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    except (ValueError, TypeError) as error:  # lists of unequal lists, bfloat16
        raise InputError(f"ids cannot be read: {error}", remedy="pass whole numbers") from error
    if held.size == 0 and not isinstance(ids, torch.Tensor | np.ndarray):
        held = held.astype(np.int64)  # numpy makes floats of an empty list
    if held.ndim != 1 or held.dtype.kind not in "iu":
        raise InputError(
            f"ids must be one dimension of whole numbers, not {held.dtype} of shape {held.shape}",
            remedy="of a boolean mask pass mask.nonzero().view(-1)",
        )
    if held.dtype == np.uint64 and held.size and int(held.max()) > np.iinfo(np.int64).max:
        raise InputError("an id is larger than any int64", value=str(int(held.max())))
    return np.ascontiguousarray(held, dtype=np.int64)


def require_within(ids: _Ids, count: int, *, what: str) -> None:
    """Refuse ids outside ``range(count)``: one pass over them, no copy.

    Raises:
        InputError: Names the first such id and its place, how many there are, and the range.
    """
    outside, first = first_outside(ids, count)
    if outside:
        raise InputError(
            f"{outside} of {ids.size} {what} are out of range: the first is {int(ids[first])} at "
            f"position {first}, and there are {count} nodes",
            row=first,
            value=str(int(ids[first])),
            remedy=f"pass ids from 0 to {count - 1}" if count else "there is no node to name",
        )


def lookup_ids(raw: _Ids, wanted: _Ids, *, what: str) -> _Ids:
    """Find raw ids in a strictly increasing array.

    Args:
        raw: int64 (nodes,), strictly increasing.
        wanted: int64 (ids,).
        what: Names the ids in an error.

    Returns:
        int64 (ids,), their places.

    Raises:
        InputError: An id is not there.
    """
    order = np.argsort(wanted)  # in order, a search touches pages near those of the one before
    places = np.empty(wanted.size, dtype=np.int64)
    places[order] = np.searchsorted(raw, wanted[order])
    clipped = np.minimum(places, max(raw.size - 1, 0))
    missing = np.flatnonzero(raw[clipped] != wanted) if raw.size else np.arange(wanted.size)
    if missing.size:
        first = int(missing[0])
        raise InputError(
            f"{missing.size} of {wanted.size} {what} belong to no node: the first is "
            f"{int(wanted[first])} at position {first}",
            row=first,
            value=str(int(wanted[first])),
            remedy="pass ids that the edges named; node_ids() lists them",
        )
    return places
