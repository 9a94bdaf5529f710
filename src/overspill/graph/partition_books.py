"""Which partition holds a node or an edge: by ranges of ids, or by a table with one entry an id.

A range book is a few numbers, found by binary search. A table book is as large as the graph has
ids; it takes the narrowest unsigned dtype, lives in a file or in shared memory, and pickles by path
where it is disk-backed. `overspill.share_memory` knows both by `shared_tensors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from overspill.errors import InputError, UnsupportedTensorError
from overspill.tensors.backing import is_disk_backed
from overspill.tensors.handles import TensorHandle, handle

_INTEGERS = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32}
)
# torch gathers from signed integers in every version, from wide unsigned ones only in later ones.
_UNSIGNED = ((torch.uint8, torch.uint8), (torch.uint16, torch.int16), (torch.uint32, torch.int32))
_GATHERED_AS = dict(_UNSIGNED)


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
            UnsupportedTensorError: The ids are no tensor of such integers.
        """
        if not isinstance(ids, torch.Tensor) or ids.dtype not in _INTEGERS:
            kind = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise UnsupportedTensorError(
                f"a partition book is asked for a tensor of integer ids, not {kind}",
                remedy="pass a tensor of ids, for example of torch.int64",
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
            InputError: No bound, a negative one, no integers, or bounds that decrease.
        """
        given = torch.as_tensor(bounds, device="cpu")
        # A copy: a caller's later write must not move ids between partitions.
        ends = given.to(torch.int64, copy=True).contiguous()
        wrong = ends.dim() != 1 or ends.numel() == 0 or given.dtype not in _INTEGERS
        if wrong or int(ends[0]) < 0 or bool((ends[1:] < ends[:-1]).any()):
            raise InputError(
                "the bounds of a range book must be one row of integers, ends that never decrease",
                value=str(given.flatten()[:8].tolist()),
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
        if not 0 <= partition < self.num_partitions:
            raise InputError(
                f"there are {self.num_partitions} partitions, from 0", value=str(partition)
            )
        first = int(self.partition_bounds[partition - 1]) if partition else 0
        return first, int(self.partition_bounds[partition])

    def shared_tensors(self) -> tuple[torch.Tensor, ...]:
        """None: a few bounds are sent as they are."""
        return ()

    def _partitions_of(self, ids: torch.Tensor) -> torch.Tensor:
        # The first partition that ends past the id: an empty one ends where the one before does.
        return torch.searchsorted(self.partition_bounds, ids, right=True)


class TensorPartitionBook(PartitionBook):
    """A table with one entry an id, in the narrowest unsigned dtype; pickles by path from disk.

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
            InputError: Not one dimension, or a partition that is negative or past the number.
            UnsupportedTensorError: No integers.
        """
        if not isinstance(partitions, torch.Tensor) or partitions.dtype not in _INTEGERS:
            raise UnsupportedTensorError("a partition table is a tensor of integers")
        if partitions.dim() != 1:
            raise InputError(
                "a partition table has one dimension", value=str(tuple(partitions.shape))
            )
        lowest, highest = _bounds(partitions)
        count = highest + 1 if num_partitions is None else num_partitions
        if lowest < 0 or highest >= count or count > 1 << 32:
            raise InputError(
                f"a partition table for {count} partitions holds 0 to {count}, exclusive",
                value=str(lowest if lowest < 0 else highest),
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
        # A handle, because plain pickle and Ray's would take the bytes.
        sent = handle(table) if is_disk_backed(table) else table
        return _book, (sent, self._num_partitions)

    def __deepcopy__(self, memo: dict[int, object]) -> TensorPartitionBook:
        # By way of __reduce__ it would open the same file again: an alias and no copy.
        return _book(self.partitions.clone(), self._num_partitions)


def narrowest_dtype(num_partitions: int) -> torch.dtype:
    """The narrowest unsigned dtype that holds every partition of so many: 0 to the last."""
    for dtype, _signed in _UNSIGNED:
        if num_partitions <= 1 << 8 * dtype.itemsize:
            return dtype
    raise InputError("no more than 2**32 partitions", value=str(num_partitions))


def _book(table: torch.Tensor | TensorHandle, num_partitions: int) -> TensorPartitionBook:
    # Not through __init__, which would read the whole table again.
    book = TensorPartitionBook.__new__(TensorPartitionBook)
    held = table.open() if isinstance(table, TensorHandle) else table
    book.partitions = held.view(narrowest_dtype(num_partitions))
    book._num_partitions = num_partitions
    return book


def _bounds(table: torch.Tensor) -> tuple[int, int]:
    if table.numel() == 0:
        return 0, -1
    if table.dtype in (torch.uint16, torch.uint32):
        # No reductions for these in torch; a piece at a time, so that no wide copy is made.
        pieces = [piece.to(torch.int64).aminmax() for piece in torch.split(table, 1 << 20)]
        return min(int(low) for low, _ in pieces), max(int(high) for _, high in pieces)
    low, high = table.aminmax()
    return int(low), int(high)
