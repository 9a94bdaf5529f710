"""Rows of several batches read together: each distinct row once, in file order.

Bottleneck: the device. Batches share rows, and rows share pages, so that N batches read together
take fewer and longer reads than one after the other: on a power law, a half or less. Algorithm: the
distinct ids of as many batches as fit are found by a hash table and sorted; their rows are read in
file order into a buffer (see `ordered`); each batch is copied from there when it is asked for.

Measured on a trace of Zipf popularity in a group of 1 GiB, 20 batches of 50,000 rows of 512 B: 2.3
times the rate of random pages, 2.3 times that of one batch after the other. It does not pay where
few rows are shared, nor where the page cache can hold the file, which a scan does not fill (0.7
times): such a file is read through the cache, one batch after the other. Of rows that lie there
already nothing is read, which is found out by a look at some of them.

Limits: the buffer is all the memory there is. Batches whose distinct rows exceed it are read in
several groups, and a batch that exceeds it alone is gathered alone, so that nothing is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.build.moving.row_warming import warm_row_kernels
from overspill.errors import InputError, NoRoomError
from overspill.graph.dataset import Dataset
from overspill.graph.reading.array_keys import ArrayKey, record_of
from overspill.graph.reading.ordered import read_in_order
from overspill.graph.reading.row_reader import RowReader
from overspill.graph.reading.row_table import (
    Ids,
    copy_rows,
    fill_table,
    slot_count,
    table_bytes,
    table_dtype,
    warm_row_table,
)
from overspill.graph.rows import row_bytes
from overspill.kernels.row_table import collect_ids

_ID_BYTES = 8
_CACHED_SHARE = 0.9


def warm_lookahead(dataset: Dataset, keys: Iterable[ArrayKey]) -> None:
    """Compile, or load from the cache, what reading these arrays together will use.

    A parent does this before it starts workers, as `overspill.graph.warm` does for the rest.
    """
    records = [record_of(dataset, key) for key in keys]
    warm_row_kernels(row_bytes(record) for record in records)
    for record in records:
        warm_row_table(row_bytes(record), record.shape[0])


class ReadingBuffer:
    """Memory for the rows of several batches of one array, used again and again.

    It is allocated on first use, in the process that uses it; one thread at a time.

    Args:
        reader: What is read through.
        key: The array.
        budget_bytes: The most that it takes; exactly `nbytes` of it are used.

    Attributes:
        rows: How many distinct rows fit.
        nbytes: Memory of rows, ids and table.

    Raises:
        InputError: No such array.
        NoRoomError: Not even one row fits.
    """

    def __init__(self, reader: RowReader, key: ArrayKey, budget_bytes: int) -> None:
        record = reader.record(key)
        self._row_bytes, self._count = row_bytes(record), record.shape[0]
        fixed = table_bytes(0, self._count)
        each = self._row_bytes + _ID_BYTES + table_bytes(1, self._count) - fixed
        self.rows = min((budget_bytes - fixed) // each, self._count)
        if self.rows < 1 <= self._count:
            raise NoRoomError(
                f"no row of {key} fits the memory for reading ahead",
                needed_bytes=fixed + each,
                available_bytes=budget_bytes,
                remedy="allow more memory, or look ahead over fewer batches",
            )
        self.nbytes = fixed + self.rows * each
        self._held: tuple[npt.NDArray[np.uint8], Ids, npt.NDArray[Any]] | None = None

    def memory(self) -> tuple[npt.NDArray[np.uint8], Ids, npt.NDArray[Any]]:
        """Rows uint8 (rows, bytes a row), ids int64 (rows,), and the table's slots (slots, 2)."""
        if self._held is None:
            slots = slot_count(self.rows)
            self._held = (
                np.empty((self.rows, self._row_bytes), np.uint8),
                np.empty(self.rows, np.int64),
                np.empty((slots, 2), table_dtype(self._count)),
            )
        return self._held


class SharedReading:
    """The rows of some batches, read together as the first of them is asked for.

    Batches are best asked for in order; one that is asked for again after a later one may be read
    again. One thread at a time; a buffer serves one reading at a time.

    Args:
        reader: What to read through; its hot rows are left out of what is read.
        key: The array.
        lists: The ids of each batch: int64 (ids,). They are not copied: leave them as they are.
        buffer: Where the rows lie meanwhile.

    Raises:
        InputError: No such array, or ids out of range.
    """

    def __init__(
        self, reader: RowReader, key: ArrayKey, lists: Sequence[Ids], *, buffer: ReadingBuffer
    ) -> None:
        self._reader, self._key, self._buffer = reader, key, buffer
        self._lists = [reader.checked(key, ids) for ids in lists]
        self._first = self._end = 0  # which batches lie in the buffer
        self._rows = 0  # how many rows of it are theirs
        self._cached = False

    def __len__(self) -> int:
        return len(self._lists)

    def read(self) -> None:
        """Read what the first `copy` would have to read: as many of the batches as fit.

        Raises:
            InputError: The ids were changed.
            StaleFileError: The file was cut, replaced or removed since it was opened.
            MappingError: The disk refused to read.
        """
        if self._lists:
            self._read_from(0)

    def copy(self, i: int, out: torch.Tensor) -> None:
        """Copy the rows of a batch, in the order of its ids.

        Args:
            i: Which of `lists`.
            out: As for `RowReader.gather`.

        Raises:
            InputError: There is no such batch, `out` does not fit, or the ids were changed.
            StaleFileError: The file was cut, replaced or removed since it was opened.
            MappingError: The disk refused to read.
        """
        if not 0 <= i < len(self._lists):
            raise InputError(
                f"no batch {i} among {len(self._lists)}",
                value=str(i),
                remedy="count batches from 0",
            )
        if self._cached or not (self._first <= i < self._end or self._read_from(i)):
            self._reader.gather(self._key, self._lists[i], out=out)
            return
        reader, ids = self._reader, self._lists[i]
        filled = reader.bytes_for(self._key, ids.size, out)
        reader.count_rows(self._key, ids.size)
        ids, places = reader.copy_hot(self._key, ids, filled)
        rows, _, slots = self._buffer.memory()
        none = np.empty(0, np.int64)
        table = slots[: slot_count(self._rows)]
        wanted = ids, none if places is None else places
        if copy_rows((table, rows), wanted, filled, (none, none)):
            raise self._changed()

    def _read_from(self, i: int) -> bool:
        """Read the rows of as many batches as fit; False where it is better gathered alone."""
        rows, distinct, slots = self._buffer.memory()
        self._first = self._end = 0
        slots.fill(-1)
        found, end = 0, i
        for ids in self._lists[i:]:
            reached = collect_ids(slots, self._reader.without_hot(self._key, ids), distinct, found)
            if reached < 0:
                break
            found, end = reached, end + 1
        if end == i:
            return False
        held = distinct[:found]
        held.sort()
        array = self._reader.array(self._key)
        if found and not 0 <= held[0] <= held[-1] < self._reader.record(self._key).shape[0]:
            raise self._changed()
        array.check_unchanged()
        self._cached = array.fits_cache() or array.present_share(held) > _CACHED_SHARE
        if self._cached:
            return False
        fill_table(slots[: slot_count(found)], held)
        read_in_order(array, held, rows[:found])
        array.check_unchanged()  # a cut within a page leaves zeros in it, and no error
        self._first, self._end, self._rows = i, end, found
        return True

    def _changed(self) -> InputError:
        return InputError(
            f"ids of rows of {self._key} changed after they were given to be read together",
            remedy="leave the lists as they are until their batches were copied",
        )
