"""The most-used rows of a dataset, held once in memory for all processes of a loader.

Bottleneck: making them, one pass over the counts and one over the chosen rows, read in file order;
using them costs a hash lookup a row. Which rows: those of the most uses a byte, found by a
histogram in memory that does not grow with the graph. Where the chosen ids are 0, 1, ..., as in a
dataset that was built with ``order="degree"``, there is no table and no lookup.

Limits: uses are predicted by the degree, or given by the caller; rows of edges have no degree, so
that they are chosen by given counts alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError, NoRoomError, StaleFileError
from overspill.graph.dataset import Dataset
from overspill.graph.reading.array_keys import ArrayKey, Owner, record_of
from overspill.graph.reading.choice import Uses, share_budget
from overspill.graph.reading.degrees import DegreeUses
from overspill.graph.reading.given_counts import GivenUses
from overspill.graph.reading.ordered import read_in_order
from overspill.graph.reading.row_table import (
    Ids,
    copy_rows,
    fill_table,
    is_first_ids,
    slot_count,
    table_bytes,
    table_dtype,
    warm_row_table,
    whole_lines,
)
from overspill.graph.rows import open_rows, row_bytes
from overspill.kernels.row_table import list_missing
from overspill.settings import current_settings
from overspill.storage.records import FileRecord
from overspill.tensors.headroom import memory_headroom
from overspill.tensors.layouts import tensor_over
from overspill.tensors.rooms import shared_memory_room
from overspill.tensors.shared_memory import SHARED_MEMORY, shared_storage
from overspill.units import format_bytes

_REMEDY = "give hot_rows a smaller size"
_BLOCK_ROWS = 1 << 16
Counts = npt.NDArray[Any] | torch.Tensor


@dataclass(frozen=True)
class _Span:
    """A part of the memory: (rows, columns) of a dtype, from a byte on."""

    start: int
    rows: int
    columns: int
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * np.dtype(self.dtype).itemsize


class HotRows:
    """Rows in memory, with a table that finds them.

    Pickled to a worker it is the same memory again, not a copy. Read-only once made, so that
    threads and processes may use it at the same time.

    Attributes:
        nbytes: Memory of rows and tables together; at most the budget.
    """

    def __init__(
        self,
        identifier: str,
        memory: torch.Tensor,
        tables: Mapping[Owner, _Span],
        rows: Mapping[ArrayKey, _Span],
    ) -> None:
        self._identifier, self._memory = identifier, memory
        self._tables, self._rows = dict(tables), dict(rows)

    @classmethod
    def chosen_by_degree(
        cls, dataset: Dataset, keys: Sequence[ArrayKey], budget_bytes: int, *, shared: bool = True
    ) -> HotRows:
        """Hold the rows of the nodes of the highest out-degree, over all edge types.

        Sampling reaches a node as the source of edges: see `overspill.graph.reading.degrees`.
        Costs a pass over the edges, unless the dataset has the layout "csr".

        Args:
            dataset: The dataset.
            keys: Node arrays; all arrays of a node type hold the same nodes.
            budget_bytes: The most that rows and tables take; a budget that is more than the whole
                is no harm. Choosing takes no more before they are allocated, or 48 MiB where that
                is more.
            shared: Whether other processes shall use them: they lie in /dev/shm then.

        Raises:
            InputError: An edge array, which has no degrees, or no such array.
            NoRoomError: Neither /dev/shm nor memory may have the budget taken from it.
            StaleFileError: A file of the dataset changed.
        """
        edges = [key for key in keys if not isinstance(key[0], str)]
        if edges:
            raise InputError(
                f"rows of edges have no degree to be chosen by: {edges[0]}",
                remedy="choose edge rows by counts, or leave them out",
            )
        dataset.require_files("degrees are counted over all edges")
        uses: dict[Owner, Uses] = {
            owner: DegreeUses(dataset, owner, budget_bytes)
            for owner in _owners(keys)
            if isinstance(owner, str)
        }
        return cls._chosen(dataset, keys, uses, budget_bytes, shared)

    @classmethod
    def chosen_by_counts(
        cls,
        dataset: Dataset,
        keys: Sequence[ArrayKey],
        counts: Mapping[Owner, Counts],
        budget_bytes: int,
        *,
        shared: bool = True,
    ) -> HotRows:
        """Hold the rows that were used most.

        Args:
            dataset: The dataset.
            keys: Node or edge arrays.
            counts: How often each row was used, by node or edge type: whole numbers, (rows,).
            budget_bytes: The most that rows and tables take.
            shared: As for `chosen_by_degree`.

        Raises:
            InputError: Counts of a type are missing, of another length, negative, or no integers.
            NoRoomError: As for `chosen_by_degree`.
            StaleFileError: A file of the dataset changed.
        """
        uses = {
            owner: GivenUses(owner, counts.get(owner), record_of(dataset, key).shape[0])
            for owner, key in _owners(keys).items()
        }
        return cls._chosen(dataset, keys, uses, budget_bytes, shared)

    @classmethod
    def _chosen(
        cls,
        dataset: Dataset,
        keys: Sequence[ArrayKey],
        uses: Mapping[Owner, Uses],
        budget_bytes: int,
        shared: bool,
    ) -> HotRows:
        records = {key: record_of(dataset, key) for key in keys}
        counts = {owner: records[key].shape[0] for owner, key in _owners(keys).items()}
        costs = {owner: _row_cost(owner, count, records) for owner, count in counts.items()}
        # What is left over by lines, and by the one slot that every table has more.
        spare = sum(2 * 64 + table_bytes(0, count) for count in counts.values()) + 64 * len(keys)
        whole = sum(costs[owner] * count for owner, count in counts.items()) + spare
        budget_bytes = min(budget_bytes, whole)
        _require_room(budget_bytes, shared)
        chosen = share_budget(uses, costs, max(0, budget_bytes - spare))
        layout = _Layout()
        tables = {owner: layout.table(chosen[owner], count) for owner, count in counts.items()}
        rows = {key: layout.rows(chosen[key[0]].size, row_bytes(records[key])) for key in keys}
        memory = _memory(layout.nbytes, shared)
        made = cls(dataset.manifest.identifier, memory, tables, rows)
        for owner, ids in chosen.items():
            if tables[owner].rows:
                fill_table(made._view(tables[owner]), ids)
        for key in keys:
            warm_row_table(row_bytes(records[key]), records[key].shape[0])
            made._load(dataset, key, chosen[key[0]])
        return made

    @property
    def nbytes(self) -> int:
        """Memory of rows and tables."""
        return self._memory.numel()

    def holds(self, key: ArrayKey) -> bool:
        """Whether rows of this array are held."""
        return key in self._rows and self._rows[key].rows > 0

    def count(self, key: ArrayKey) -> int:
        """How many rows of this array are held."""
        return self._rows[key].rows if key in self._rows else 0

    def copy(self, key: ArrayKey, ids: Ids, out: npt.NDArray[np.uint8]) -> tuple[Ids, Ids]:
        """Copy the rows that are held.

        Args:
            key: An array that is held.
            ids: int64 (ids,), within the array.
            out: (ids, bytes a row), filled where the row is held.

        Returns:
            The ids whose rows are not, and their places in `out`.
        """
        rest = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
        held = self._view(self._tables[key[0]]), self._view(self._rows[key])
        missing = copy_rows(held, (ids, np.empty(0, np.int64)), out, rest)
        return rest[0][:missing], rest[1][:missing]

    def rest(self, key: ArrayKey, ids: Ids) -> Ids:
        """The ids whose rows are not held, in order."""
        rest = np.empty(ids.size, np.int64)
        table = self._view(self._tables[key[0]])
        return rest[: list_missing(table, self._rows[key].rows, ids, rest)]

    def require_of(self, dataset: Dataset) -> None:
        """Refuse to be used for another dataset (StaleFileError)."""
        if dataset.manifest.identifier != self._identifier:
            raise StaleFileError(
                "the hot rows were read from another dataset",
                path=str(dataset.path),
                remedy="choose them again from this one",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return HotRows, (self._identifier, self._memory, self._tables, self._rows)

    def __repr__(self) -> str:
        held = ", ".join(f"{key}: {span.rows}" for key, span in self._rows.items())
        return f"HotRows({format_bytes(self.nbytes)}, {held})"

    def _view(self, span: _Span) -> npt.NDArray[Any]:
        part = self._memory.numpy()[span.start : span.start + span.nbytes]
        return part.view(span.dtype).reshape(span.rows, span.columns)

    def _load(self, dataset: Dataset, key: ArrayKey, ids: Ids) -> None:
        record = record_of(dataset, key)
        if not ids.size or not row_bytes(record):
            return
        array = open_rows(dataset.open_reader, record)
        read_in_order(array, ids, self._view(self._rows[key]))
        array.check_unchanged()


class _Layout:
    """Where each part lies in the memory."""

    def __init__(self) -> None:
        self.nbytes = 0

    def table(self, ids: Ids, count: int) -> _Span:
        slots = 0 if is_first_ids(ids) else slot_count(ids.size)
        return self._take(slots, 2, table_dtype(count).name)

    def rows(self, count: int, size: int) -> _Span:
        return self._take(count, size, "uint8")

    def _take(self, rows: int, columns: int, dtype: str) -> _Span:
        span = _Span(self.nbytes, rows, columns, dtype)
        self.nbytes += whole_lines(span.nbytes)
        return span


def _row_cost(owner: Owner, count: int, records: Mapping[ArrayKey, FileRecord]) -> int:
    """Bytes that one row of a type takes, of all its arrays and in the table."""
    rows = sum(row_bytes(record) for key, record in records.items() if key[0] == owner)
    return rows + table_bytes(1, count) - table_bytes(0, count)


def _owners(keys: Sequence[ArrayKey]) -> dict[Owner, ArrayKey]:
    """An array of each node or edge type."""
    return {key[0]: key for key in keys}


def _require_room(nbytes: int, shared: bool) -> None:
    held = current_settings()
    memory = memory_headroom(held)
    if memory is not None and memory < nbytes:
        raise _no_room("memory", nbytes, memory, None)
    spare = shared_memory_room(held).spare_bytes if shared else None
    if spare is not None and spare < nbytes:
        raise _no_room(SHARED_MEMORY, nbytes, spare, SHARED_MEMORY)


def _no_room(what: str, nbytes: int, available: int, path: str | None) -> NoRoomError:
    larger = ", or enlarge /dev/shm (docker run --shm-size)" if path else ", or free memory"
    return NoRoomError(
        f"{what} has {format_bytes(available)} to spare, and {format_bytes(nbytes)} of hot rows "
        "were to be held",
        path=path,
        needed_bytes=nbytes,
        available_bytes=available,
        remedy=_REMEDY + larger,
    )


def _memory(nbytes: int, shared: bool) -> torch.Tensor:
    if shared and nbytes:
        return tensor_over(shared_storage(nbytes), torch.uint8, (nbytes,))
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
