"""Which partition holds a node or an edge: by ranges of ids, or by a table with one entry an id.

A range book is a few numbers, found by binary search. A table book is as large as the graph has
ids; it takes the narrowest unsigned dtype, lives in a file or in shared memory, and travels as its
table does. `overspill.share_memory` knows both by `shared_tensors`.
"""

from __future__ import annotations

import operator
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from overspill.errors import InputError, UnsupportedTensorError

_INTEGERS = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32}
)
# torch gathers from signed integers in every version, from wide unsigned ones only in later ones.
_UNSIGNED = ((torch.uint8, torch.uint8), (torch.uint16, torch.int16), (torch.uint32, torch.int32))
_GATHERED_AS = dict(_UNSIGNED)
_MOST_PARTITIONS = 1 << 32
_LARGEST_ID = (1 << 63) - 1


class PartitionBook(ABC):
    """Tells the partition of each id: ``book[ids]``. Safe between threads."""

    @property
    @abstractmethod
    def num_partitions(self) -> int:
        """How many partitions there are, empty ones included."""

    @property
    @abstractmethod
    def num_ids(self) -> int:
        """How many ids there are: 0 to this, exclusive."""

    @abstractmethod
    def _partitions_of(self, ids: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def shared_tensors(self) -> tuple[torch.Tensor, ...]:
        """What `overspill.share_memory` puts into shared memory."""

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        """Look partitions up.

        Args:
            ids: Ids of any shape and any integer dtype but torch.uint64, which int64 cannot hold.

        Returns:
            The partitions, int64, of the same shape.

        Raises:
            InputError: An id is negative or past the end.
            UnsupportedTensorError: The ids are no dense CPU tensor of such integers.
        """
        if not _is_plain(ids):
            raise UnsupportedTensorError(
                f"a partition book is asked for a tensor of integer ids, not {_kind(ids)}",
                remedy="pass a dense CPU tensor of ids, for example of torch.int64",
            )
        wide = ids.to(torch.int64)
        if wide.numel():
            lowest, highest = wide.aminmax()
            if int(lowest) < 0 or int(highest) >= self.num_ids:
                wrong = int(lowest) if int(lowest) < 0 else int(highest)
                raise InputError(
                    f"the partition book knows the ids 0 to {self.num_ids}, exclusive",
                    value=str(wrong),
                    remedy="ask for ids of this graph",
                )
        return self._partitions_of(wide)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_partitions={self.num_partitions}, num_ids={self.num_ids})"
        )


class RangePartitionBook(PartitionBook):
    """Partitions that hold consecutive ids each; any of them may be empty.

    Attributes:
        partition_bounds: Where each partition ends, exclusive, int64 (num_partitions,).
    """

    def __init__(self, bounds: torch.Tensor | Sequence[int]) -> None:
        """Take the ends of the ranges.

        Args:
            bounds: The end of each partition, exclusive, not decreasing; the first begins at 0.
                Integers, as ids are.

        Raises:
            InputError: No bound, a negative one, one past int64, no integers, or bounds that
                decrease.
        """
        ends = _ends(bounds)
        if ends is None or int(ends[0]) < 0 or bool((ends[1:] < ends[:-1]).any()):
            raise InputError(
                "the bounds of a range book must be one row of integers, ends that never decrease",
                value=reprlib.repr(bounds),
                remedy="pass the exclusive end of each partition, in order",
            )
        self.partition_bounds = ends

    @property
    def num_partitions(self) -> int:
        """How many partitions there are, empty ones included."""
        return self.partition_bounds.numel()

    @property
    def num_ids(self) -> int:
        """How many ids there are."""
        return int(self.partition_bounds[-1])

    def partition_range(self, partition: int) -> tuple[int, int]:
        """The first id of a partition and the one after its last.

        Raises:
            InputError: There is no such partition.
        """
        number = _whole(partition)
        if number is None or not 0 <= number < self.num_partitions:
            raise InputError(
                f"there are {self.num_partitions} partitions, from 0",
                value=repr(partition),
                remedy=f"ask for 0 to {self.num_partitions - 1}",
            )
        first = int(self.partition_bounds[number - 1]) if number else 0
        return first, int(self.partition_bounds[number])

    def shared_tensors(self) -> tuple[torch.Tensor, ...]:
        """None: a few bounds are sent as they are."""
        return ()

    def _partitions_of(self, ids: torch.Tensor) -> torch.Tensor:
        # The first partition that ends past the id: an empty one ends where the one before does.
        return torch.searchsorted(self.partition_bounds, ids, right=True)


class TensorPartitionBook(PartitionBook):
    """A table with one entry an id, in the narrowest unsigned dtype.

    It travels as a tensor does. Disk-backed, it crosses a process boundary by path, in a few
    hundred bytes: through torch.multiprocessing, cloudpickle, Ray and loky. Plain ``pickle`` and
    ``torch.save`` take the bytes and never a path, so that a checkpoint outlives the file; through
    a pickler of yet another kind send ``overspill.handle(book.partitions)``. Receiving it raises
    `StaleFileError` where the file is gone. ``copy.copy`` shares the table; ``copy.deepcopy``
    copies it into memory.

    Attributes:
        partitions: The partition of each id, (num_ids,).
    """

    def __init__(self, partitions: torch.Tensor, num_partitions: int | None = None) -> None:
        """Take a table, narrowing it unless it is narrow already.

        Reads the table once. A table of the right dtype is kept without a copy, disk-backed or in
        shared memory as it is; another is copied.

        Args:
            partitions: The partition of each id: one dimension, integers.
            num_partitions: How many there are; None takes the largest that occurs, plus one.

        Raises:
            InputError: Not one dimension, a partition that is negative or past the number, or a
                number of partitions that is none or above 2**32.
            UnsupportedTensorError: No dense CPU tensor of integers.
        """
        if not _is_plain(partitions):
            raise UnsupportedTensorError(
                f"a partition table is a tensor of integers, not {_kind(partitions)}",
                remedy="pass a dense CPU tensor, for example of torch.uint8",
            )
        if partitions.dim() != 1:
            raise InputError(
                "a partition table has one dimension",
                value=str(tuple(partitions.shape)),
                remedy="pass one entry an id: table.flatten()",
            )
        lowest, highest = _bounds(partitions)
        count = highest + 1 if num_partitions is None else _whole(num_partitions)
        if count is None or not 0 <= count <= _MOST_PARTITIONS:
            raise InputError(
                "a partition table is for a whole number of partitions, up to 2**32",
                value=repr(num_partitions if count is None else count),
                remedy="pass how many partitions there are, or None",
            )
        if lowest < 0 or highest >= count:
            raise InputError(
                f"a partition table for {count} partitions holds 0 to {count}, exclusive",
                value=str(lowest if lowest < 0 else highest),
                remedy="raise num_partitions, or number the partitions from 0",
            )
        self._num_partitions = count
        self.partitions = partitions.to(narrowest_dtype(count))

    @property
    def num_partitions(self) -> int:
        """How many partitions there are, empty ones included."""
        return self._num_partitions

    @property
    def num_ids(self) -> int:
        """How many ids there are."""
        return self.partitions.numel()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the table."""
        return self.partitions.dtype

    def shared_tensors(self) -> tuple[torch.Tensor, ...]:
        """The table."""
        return (self.partitions,)

    def _partitions_of(self, ids: torch.Tensor) -> torch.Tensor:
        signed = _GATHERED_AS[self.partitions.dtype]
        found = self.partitions.view(signed)[ids].to(torch.int64)
        return found & ((1 << 8 * self.partitions.element_size()) - 1)

    def __reduce__(self) -> tuple[Any, ...]:
        # torch 2.13's plain pickle loses wide unsigned dtypes; the number of partitions tells them.
        table = self.partitions.view(_GATHERED_AS[self.partitions.dtype])
        # The tensor and not its handle: each pickler's own table decides between path and bytes.
        return _book, (table, self._num_partitions)

    def __deepcopy__(self, memo: dict[int, object]) -> TensorPartitionBook:
        # By way of __reduce__ it would open the same file again: an alias and no copy.
        return _book(self.partitions.clone(), self._num_partitions)


def narrowest_dtype(num_partitions: int) -> torch.dtype:
    """The narrowest unsigned dtype that holds every partition of so many: 0 to the last."""
    for dtype, _signed in _UNSIGNED:
        if num_partitions <= 1 << 8 * dtype.itemsize:
            return dtype
    raise InputError(
        "no more than 2**32 partitions",
        value=str(num_partitions),
        remedy="use fewer partitions, or a range book",
    )


def checked_book(table: torch.Tensor, num_partitions: int) -> TensorPartitionBook:
    """A book over a table of the narrowest dtype that was checked when it was written.

    Nothing of it is read.
    """
    return _book(table, num_partitions)


def _book(table: torch.Tensor, num_partitions: int) -> TensorPartitionBook:
    # Not through __init__, which would read the whole table again.
    book = TensorPartitionBook.__new__(TensorPartitionBook)
    book.partitions = table.view(narrowest_dtype(num_partitions))
    book._num_partitions = num_partitions
    return book


def _is_plain(ids: object) -> bool:
    """Whether this is a dense CPU tensor of integers that can be read."""
    return (
        isinstance(ids, torch.Tensor)
        and ids.dtype in _INTEGERS
        and ids.layout is torch.strided
        and ids.device.type == "cpu"
        and not ids.is_nested
        and not is_lazy(ids)
    )


def _kind(given: object) -> str:
    if not isinstance(given, torch.Tensor):
        return type(given).__name__
    return f"{given.dtype}, {given.layout}, on {given.device}"


def _whole(number: object) -> int | None:
    """A whole number as an int; None for what is none, as 2.0 and True are not."""
    try:
        return None if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return None


def _ends(bounds: torch.Tensor | Sequence[int]) -> torch.Tensor | None:
    """The bounds as int64, in one row with at least one; None where they are something else."""
    if isinstance(bounds, torch.Tensor):
        if not _is_plain(bounds) or bounds.dim() != 1 or bounds.numel() == 0:
            return None
        # A copy: a caller's later write must not move ids between partitions.
        return bounds.to(torch.int64, copy=True).contiguous()
    try:
        numbers = [_whole(one) for one in bounds]
    except TypeError:  # nothing that has an order
        return None
    ends = [one for one in numbers if one is not None and abs(one) <= _LARGEST_ID]
    if not ends or len(ends) < len(numbers):
        return None
    return torch.tensor(ends, dtype=torch.int64, device="cpu")


def _bounds(table: torch.Tensor) -> tuple[int, int]:
    if table.numel() == 0:
        return 0, -1
    if table.dtype in (torch.uint16, torch.uint32):
        # No reductions for these in torch; a piece at a time, so that no wide copy is made.
        pieces = [piece.to(torch.int64).aminmax() for piece in torch.split(table, 1 << 20)]
        return min(int(low) for low, _ in pieces), max(int(high) for _, high in pieces)
    low, high = table.aminmax()
    return int(low), int(high)
