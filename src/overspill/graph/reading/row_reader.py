"""What one process gathers through: rows of node arrays by id, of edge arrays by place.

Bottleneck: the device, or the copy: see `overspill.graph.paged`. Rows that are hot are copied out
of shared memory, and the others alone are asked for. Every row is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.graph.dataset import Dataset
from overspill.graph.item_reader import ItemReader
from overspill.graph.node_ids import require_within, whole_ids
from overspill.graph.reading.array_keys import ArrayKey, record_of
from overspill.graph.reading.counters import SlotCounts
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.rows import bytes_for, open_rows, row_bytes, take_checked
from overspill.storage.records import FileRecord

_Ids = npt.NDArray[np.int64]


class RowReader:
    """Gathers rows of a dataset's arrays.

    Made by the process that uses it; it does not pickle. One thread at a time, since it counts.
    Mappings are made on the first use of an array and live as long as the reader. It is for epochs:
    an array that the page cache holds easily is read whole once that pays (`expect_reuse`).

    Args:
        dataset: The dataset.
        hot: Rows that are held in memory, made for this dataset; None for none.
        counts: Where to count; None counts for `counts` of this reader alone.

    Attributes:
        dataset: The dataset.
        hot: The hot rows.
        counts: What was read so far.

    Raises:
        InputError: The hot rows are of another dataset.
    """

    def __init__(
        self, dataset: Dataset, hot: HotRows | None = None, *, counts: SlotCounts | None = None
    ) -> None:
        if hot is not None:
            hot.require_of(dataset)
        self.dataset, self.hot = dataset, hot
        self.counts = SlotCounts() if counts is None else counts
        self._arrays: dict[ArrayKey, ItemReader] = {}

    def record(self, key: ArrayKey) -> FileRecord:
        """What the manifest says of an array (InputError where there is none)."""
        return record_of(self.dataset, key)

    def array(self, key: ArrayKey) -> ItemReader:
        """The random reader of an array, its rows as items."""
        held = self._arrays.get(key)
        if held is None:
            held = self._arrays[key] = open_rows(self.dataset.open_reader, self.record(key))
            held.expect_reuse()
        return held

    def check_unchanged(self) -> None:
        """Refuse to go on over files that changed: one system call for each array used so far.

        Raises:
            StaleFileError: A file was cut, replaced or removed since it was opened.
        """
        for array in self._arrays.values():
            array.check_unchanged()

    def gather(
        self,
        key: ArrayKey,
        ids: torch.Tensor | npt.NDArray[Any] | Sequence[int],
        *,
        out: torch.Tensor,
    ) -> None:
        """Copy rows into a tensor, in the order asked for.

        Costs a copy of each row, by as many threads as torch uses where it is in the page cache;
        what is neither there nor hot is read, each page once, in file order. Beside
        `PagedArray.take`'s memory, 16 bytes an id where there are hot rows.

        Args:
            key: ("node type", "array") or (("source", "relation", "target"), "array").
            ids: Node ids, or places of edges in CSC order; repeats are fine.
            out: Contiguous CPU tensor of the array's dtype, (ids, ...), filled.

        Raises:
            InputError: No such array, ids out of range (names the first), or an `out` that does
                not fit.
            StaleFileError: The file was cut, replaced or removed since it was opened.
            MappingError: The disk refused to read.
        """
        wanted = self.checked(key, ids)
        filled = self.bytes_for(key, wanted.size, out)
        array = self.array(key)
        array.check_unchanged()
        self.count_rows(key, wanted.size)
        rest, places = self.copy_hot(key, wanted, filled)
        take_checked(array, rest, filled, places=places)

    def checked(self, key: ArrayKey, ids: torch.Tensor | npt.NDArray[Any] | Sequence[int]) -> _Ids:
        """Ids as int64, held against the array's range (InputError)."""
        wanted, count = whole_ids(ids), self.record(key).shape[0]
        if isinstance(key[0], str):
            require_within(wanted, count, what=f"ids of node type {key[0]!r}")
        else:
            what = f"places of edges of type {key[0]}"
            require_within(wanted, count, what=what, counted="edges")
        return wanted

    def bytes_for(self, key: ArrayKey, rows: int, out: torch.Tensor) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor that rows go into: uint8 (rows, bytes a row) (InputError)."""
        return bytes_for(self.record(key), rows, out)

    def copy_hot(
        self, key: ArrayKey, ids: _Ids, filled: npt.NDArray[np.uint8]
    ) -> tuple[_Ids, _Ids | None]:
        """Copy the rows that are hot, and count.

        Returns:
            The ids whose rows are not, and their places in `filled`; None: they are in order.
        """
        if self.hot is None or not self.hot.holds(key):
            return ids, None
        rest, places = self.hot.copy(key, ids, filled)
        self.counts.add(hot_lookups=ids.size, hot_hits=ids.size - rest.size)
        return rest, places

    def without_hot(self, key: ArrayKey, ids: _Ids) -> _Ids:
        """The ids whose rows are not hot, in order."""
        if self.hot is None or not self.hot.holds(key):
            return ids
        return self.hot.rest(key, ids)

    def count_rows(self, key: ArrayKey, rows: int) -> None:
        """Count rows that were asked for."""
        self.counts.add(rows=rows, bytes_asked=rows * row_bytes(self.record(key)))
