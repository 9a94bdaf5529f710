"""Ids as people pass them: turned into int64 or into strings, held against their range."""

from __future__ import annotations

from collections.abc import Sequence, Sized
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
        raise InputError(
            "an id is larger than any int64",
            value=str(int(held.max())),
            remedy="look up ids as the input has them: from -2**63 to 2**63 - 1",
        )
    return np.ascontiguousarray(held, dtype=np.int64)


def require_within(ids: _Ids, count: int, *, what: str, counted: str = "nodes") -> None:
    """Refuse ids outside ``range(count)``: one pass over them, no copy.

    Raises:
        InputError: Names the first such id and its place, how many there are, and the range.
    """
    outside, first = first_outside(ids, count)
    if outside:
        raise InputError(
            f"{outside} of {ids.size} {what} are out of range: the first is {int(ids[first])} at "
            f"position {first}, and there are {count} {counted}",
            row=first,
            value=str(int(ids[first])),
            remedy=f"pass ids from 0 to {count - 1}" if count else "there is none to name",
        )


def as_texts(ids: Any) -> list[str] | None:
    """Strings as people pass them: a list, an array of numpy's, or what turns into one.

    Returns:
        The strings; none of no ids of any kind; None where they are something else.

    Raises:
        InputError: Strings among other things, one string alone, bytes, or several dimensions.
    """
    if isinstance(ids, str | bytes):
        raise InputError(
            "one string was passed where ids are wanted", remedy="pass a list of strings"
        )
    held = ids
    if hasattr(ids, "__array__") and not isinstance(ids, torch.Tensor):
        array = np.asarray(ids)
        if array.dtype.kind == "S":
            raise InputError("ids are bytes, not text", remedy="decode them: ids.astype(str)")
        if array.dtype.kind not in "UOT" or array.ndim != 1:
            return None if array.size else []
        held = array.tolist()
    if not isinstance(held, list | tuple):
        return [] if _is_empty(ids) else None
    texts = [text for text in held if isinstance(text, str)]
    if texts and len(texts) < len(held):
        place = next(at for at, text in enumerate(held) if not isinstance(text, str))
        raise InputError(
            f"ids are text, but the one at position {place} is {held[place]!r}",
            row=place,
            value=repr(held[place]),
            remedy="pass strings alone, or whole numbers alone",
        )
    return list(texts) if texts or not held else None


def _is_empty(ids: object) -> bool:
    if isinstance(ids, torch.Tensor):  # has a length, but not with no dimension
        return ids.numel() == 0
    return isinstance(ids, Sized) and len(ids) == 0
