"""Where a CSR's arrays go, and the scratch beside them: memory, shared memory or files."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import DiskRefusedError
from overspill.graph.csr_columns import Column, FileColumn, MemoryColumn
from overspill.graph.csr_plan import Shape, Sizes, sizes_in_memory, sizes_within
from overspill.placement.final_home import Demand, Rooms, place_finally
from overspill.placement.spill import Home
from overspill.storage.spill_records import TensorRecord
from overspill.tensors.backing import file_behind
from overspill.tensors.layouts import tensor_over
from overspill.tensors.lifetime import discard
from overspill.tensors.preshared import storage_in_final_home
from overspill.tensors.rooms import measured_rooms

logger = logging.getLogger("overspill")

# What is taken where nobody set a limit: more made no chunk's writes faster.
_USUAL_LIMIT_BYTES = 1 << 30
_USUAL_SHARE = 4
_UNKNOWN_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a CSR is made.

    Attributes:
        sizes: The sizes to work with.
        rooms: What its outputs may take, what the sizes count being taken off.
        memory_bytes: What outputs and further scratch may take of memory; None: not known.
        in_memory: Whether all outputs are scattered into memory; else they are written in order.
    """

    sizes: Sizes
    rooms: Rooms
    memory_bytes: int | None
    in_memory: bool


def plan_homes(shape: Shape, output_bytes: tuple[int, ...], limit_bytes: int | None) -> Plan:
    """Plan for the memory that there is.

    Args:
        shape: What is to be arranged.
        output_bytes: The size of each output.
        limit_bytes: The most memory that outputs and scratch may take; None: what there is.

    Returns:
        The plan; in memory where every output may be scattered to (`allocate_preshared`), the
        scratch beside it.

    Raises:
        NoRoomError: Not even the smallest scratch fits.
    """
    rooms = measured_rooms()
    known = [one for one in (limit_bytes, rooms.memory_bytes) if one is not None]
    most = min(known, default=None)
    direct = sizes_in_memory(shape)
    # The rows' numbers are taken like any other scratch.
    kept = shape.edges * shape.row_bytes
    beside = _less_memory(rooms, direct.scratch_bytes - kept)
    within = limit_bytes is None or sum(output_bytes) + direct.scratch_bytes <= limit_bytes
    if within and _hold(beside, output_bytes, kept):
        left = None if most is None else most - (direct.scratch_bytes - kept)
        return Plan(sizes=direct, rooms=beside, memory_bytes=left, in_memory=True)
    usual = min(_USUAL_LIMIT_BYTES, most // _USUAL_SHARE) if most is not None else _UNKNOWN_BYTES
    sizes = sizes_within(shape, usual if limit_bytes is None or most is None else most)
    logger.info("a CSR of %d edges is arranged in bands: memory does not hold it", shape.edges)
    left = None if most is None else most - sizes.scratch_bytes
    limited = replace(rooms, memory_bytes=left)
    return Plan(sizes=sizes, rooms=limited, memory_bytes=left, in_memory=False)


def _hold(rooms: Rooms, output_bytes: tuple[int, ...], scratch_bytes: int) -> bool:
    """Whether all outputs may be scattered to, with room for the scratch left."""
    for nbytes in output_bytes:
        home = place_finally(Demand(nbytes=nbytes, random_access=True), rooms).home
        if home not in ("memory", "shm"):
            return False
        rooms = _less(rooms, nbytes, home)
    return rooms.memory_bytes is None or rooms.memory_bytes >= scratch_bytes


def _less(rooms: Rooms, nbytes: int, home: Home) -> Rooms:
    if home == "disk":
        left = rooms.disk_bytes
        return rooms if left is None else replace(rooms, disk_bytes=left - nbytes)
    if home == "shm" and rooms.shm_bytes is not None:
        rooms = replace(rooms, shm_bytes=rooms.shm_bytes - nbytes)
    return _less_memory(rooms, nbytes)


def _less_memory(rooms: Rooms, nbytes: int) -> Rooms:
    left = rooms.memory_bytes
    return rooms if left is None else replace(rooms, memory_bytes=max(0, left - nbytes))


class Homes:
    """Makes columns; when its block ends by an error, nothing of them is left.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._rooms = plan.rooms
        self._left = plan.memory_bytes
        self._random = plan.in_memory
        self._most = plan.sizes.bucket_edges
        self._held: dict[int, torch.Tensor] = {}
        self._columns: dict[int, Column] = {}

    def output(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, what: str
    ) -> tuple[torch.UntypedStorage, Column]:
        """An output's storage in its final home, and the column over it.

        Raises:
            NoRoomError: No home is safe, or each refused.
        """
        return self._made(shape, np.dtype(dtype), what, self._rooms, random=self._random)

    def _made(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        what: str,
        rooms: Rooms,
        *,
        random: bool,
    ) -> tuple[torch.UntypedStorage, Column]:
        nbytes = math.prod(shape) * dtype.itemsize
        demand = Demand(nbytes=nbytes, random_access=random)
        holds = TensorRecord(dtype.name, shape)
        storage, home = storage_in_final_home(demand, what, rooms, holds=holds)
        self._rooms = _less(self._rooms, nbytes, home)
        if home != "disk":
            self._take(nbytes)
        held = tensor_over(storage, torch.uint8, (nbytes,))
        array = held.numpy().view(dtype).reshape(shape)
        file = file_behind(held) if home == "disk" else None
        column: Column
        if file is None:
            column = MemoryColumn(array, self._most)
        else:
            self._held[id(array)] = held
            column = FileColumn(array, self._most, file.path)
        self._columns[id(column)] = column
        return storage, column

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Column:
        """A column for a while: in memory where there is room, else in a file.

        Raises:
            NoRoomError: As `output`.
        """
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if self._left is not None and self._left < nbytes:
            rooms = replace(self._rooms, memory_bytes=self._left)
            return self._made(shape, kind, "scratch of a CSR", rooms, random=False)[1]
        self._take(nbytes)
        return MemoryColumn(np.empty(shape, kind), self._most)

    def _take(self, nbytes: int) -> None:
        if self._left is not None:
            self._left -= nbytes

    def give_back(self, column: Column) -> None:
        """Free a column that `take` made."""
        self._columns.pop(id(column), None)
        column.close(synced=False)
        held = self._held.pop(id(column.array), None)
        if held is not None:
            discard(held)
        else:
            self._take(-column.array.nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with ExitStack() as closing:
                for column in self._columns.values():
                    closing.callback(column.close, synced=kind is None)
        except DiskRefusedError:
            self._discard()  # should one refuse to sync, none is kept
            raise
        if kind is not None:
            self._discard()

    def _discard(self) -> None:
        for held in self._held.values():
            discard(held)
        self._held.clear()
