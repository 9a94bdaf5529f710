"""Tensors that lie over the same memory under several names, to be stored once and stay tied.

Sorted by where they begin, so that whatever holds a tensor comes before it, and of all that came
before, the one that reaches furthest holds it if any does: n log n, however many views there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from overspill.tensors.backing import cpu_storage
from overspill.tensors.layouts import tensor_over

Key = TypeVar("Key")


@dataclass
class Tied(Generic[Key]):
    """One tensor that is to be stored, and the names under which it, or a part of it, is known.

    Attributes:
        whole: What is to be stored.
        names: The tensor under each name; `whole` and its like among them.
    """

    whole: torch.Tensor
    names: list[tuple[Key, torch.Tensor]] = field(default_factory=list)

    def over(self, stored: torch.Tensor) -> dict[Key, torch.Tensor]:
        """What each name stands for, once `whole` is stored.

        Args:
            stored: A contiguous tensor with the values of `whole`.
        """
        return {key: self._part(tensor, stored) for key, tensor in self.names}

    def _part(self, tensor: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        if tensor is self.whole or _layout(tensor) == _layout(self.whole):
            return stored
        first = _span(tensor)[0] - _span(self.whole)[0] + _span(stored)[0]
        return tensor_over(
            stored.untyped_storage(),
            tensor.dtype,
            tensor.shape,
            stride=tensor.stride(),
            offset=first // tensor.element_size(),
        )


def tied(named: Sequence[tuple[Key, torch.Tensor]]) -> list[Tied[Key]]:
    """Put together what lies over the same memory.

    Args:
        named: Names and tensors, none of them empty.

    Returns:
        Groups: tensors of one layout over one memory, and a contiguous tensor with those that lie
        within it. What only overlaps, or has no strided memory in the open, is alone.
    """
    alone = [Tied(tensor, [(key, tensor)]) for key, tensor in named if cpu_storage(tensor) is None]
    groups: dict[tuple[object, ...], Tied[Key]] = {}
    furthest: Tied[Key] | None = None
    open_ones = [one for one in named if cpu_storage(one[1]) is not None]
    for key, tensor in sorted(open_ones, key=lambda one: _order(one[1])):
        layout = _layout(tensor)
        group = groups.get(layout)
        if group is None and furthest is not None and _holds(furthest.whole, tensor):
            group = furthest
        if group is None:
            group = groups[layout] = Tied(tensor)
            if _holds(tensor, tensor) and (furthest is None or _reaches(tensor, furthest.whole)):
                furthest = group
        group.names.append((key, tensor))
    return [*alone, *groups.values()]


def _holds(whole: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor is a plain view within a contiguous one, and on whole elements of it."""
    if not whole.is_contiguous() or any(one.is_conj() or one.is_neg() for one in (whole, tensor)):
        return False
    if whole.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
        return False
    (start, stop), (first, last) = _span(whole), _span(tensor)
    return start <= first and last <= stop and (first - start) % tensor.element_size() == 0


def _reaches(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    another = tensor.untyped_storage()._cdata != other.untyped_storage()._cdata
    return another or _span(tensor)[1] > _span(other)[1]


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    first, last = _span(tensor)
    return tensor.untyped_storage()._cdata, first, -last, not tensor.is_contiguous()


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    place = (tensor.untyped_storage()._cdata, int(tensor.storage_offset()))
    flags = (tensor.is_conj(), tensor.is_neg())
    return *place, tensor.dtype, tuple(tensor.shape), tensor.stride(), flags


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor lies over: the first, and past the last."""
    size, first = tensor.element_size(), int(tensor.storage_offset())
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * size, (first + reach + 1) * size
