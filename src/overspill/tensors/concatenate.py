"""Chunks of rows into whole tensors in their final homes, giving each chunk back as it is copied.

Bottleneck: the copy. Outputs on disk hold no memory. Outputs in shared memory are reserved a chunk
at a time, so that the memory of the chunks and that of the outputs never add up: peak memory is
the outputs and one chunk. That counts on the list holding the only references; a chunk that
somebody else holds too is seen, and its memory is then wanted on top.

Limits: where torch is set to share by name (file_system), outputs in shared memory are reserved
whole before the first chunk is given back.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from overspill.errors import InputError, UnsupportedTensorError
from overspill.placement.final_home import Demand, Rooms, place_finally
from overspill.placement.spill import Home
from overspill.storage.spill_records import TensorRecord
from overspill.tensors.backing import cpu_storage
from overspill.tensors.chunks import copyable
from overspill.tensors.dtypes import is_mappable
from overspill.tensors.layouts import tensor_over
from overspill.tensors.ownership import holds_memory_alone
from overspill.tensors.preshared import (
    log_passed_over,
    log_placement,
    no_home,
    storage_in_final_home,
)
from overspill.tensors.rooms import measured_rooms
from overspill.tensors.shared_memory import SharedSegment, open_segment
from overspill.tensors.spill import record_of

Chunk = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Field:
    """What all chunks' tensors of one field have in common, and their rows together."""

    dtype: torch.dtype
    row_shape: tuple[int, ...]
    rows: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class _Output:
    """One output: each of its fields is a block of rows in it."""

    tensor: torch.Tensor
    blocks: tuple[torch.Tensor, ...]
    segment: SharedSegment | None
    row_bytes: int

    def write(self, fields: Sequence[torch.Tensor], done: int) -> None:
        for number, (block, rows) in enumerate(zip(self.blocks, fields, strict=True)):
            if self.segment is not None:
                start = (number * len(block) + done) * self.row_bytes
                self.segment.reserve(start, len(rows) * self.row_bytes)
            source = copyable(rows)
            block[done : done + len(rows)].view(source.dtype).copy_(source)


def concatenate_chunks(
    chunks: list[Chunk],
    *,
    fields: Sequence[int | Sequence[int]] | None = None,
    random_access: bool = False,
) -> Chunk:
    """Concatenate chunks field by field into tensors in their final homes, consuming the list.

    Every home is chosen before the first byte moves, as `allocate_preshared` chooses it. Each chunk
    is taken from the list as it is copied, so that its memory comes back: peak memory is the
    outputs and one chunk, of which outputs on disk hold none.

    Args:
        chunks: A list of chunks of rows, each a tuple of tensors with the same number of rows.
            Emptied.
        fields: The outputs: a field's number, or several numbers, which are stacked: ``[(0, 1),
            2]`` makes an edge index (2, rows) of the first two fields and the third as it is.
            None makes one output a field.
        random_access: Whether the outputs will be written at random later on.

    Returns:
        The outputs, (rows, ...) each, or (fields, rows, ...) for stacked ones.

    Raises:
        InputError: No list, no chunk at all or one that is no tuple or has no field; chunks of
            different numbers of fields, of different dtypes or shapes in one field, or of
            different numbers of rows; `fields` that do not name each field once. The list is as
            it was.
        UnsupportedTensorError: Not a strided CPU tensor; or of a quantized dtype.
        NoRoomError: No safe home. If room vanished in the middle, what was copied is in the list
            again, as its last chunk.
    """
    groups, layout = _checked(chunks, fields)
    with ExitStack() as closing:
        outputs = _allocated(groups, layout, chunks, random_access, closing)
        _fill(outputs, groups, chunks)
    return tuple(output.tensor for output in outputs)


def _fill(outputs: list[_Output], groups: list[tuple[int, ...]], chunks: list[Chunk]) -> None:
    chunks.reverse()  # to be taken from the end, which costs nothing
    done = 0
    try:
        while chunks:
            rows = len(chunks[-1][0])
            for output, group in zip(outputs, groups, strict=True):
                output.write([chunks[-1][number].detach() for number in group], done)
            done += rows
            chunks.pop()
    except BaseException:
        chunks.reverse()
        if done:
            chunks.append(_copied(outputs, groups, done))
        raise


def _copied(outputs: list[_Output], groups: list[tuple[int, ...]], done: int) -> Chunk:
    found = {
        number: block[:done]
        for output, group in zip(outputs, groups, strict=True)
        for number, block in zip(group, output.blocks, strict=True)
    }
    return tuple(found[number] for number in sorted(found))


def _checked(
    chunks: list[Chunk], fields: Sequence[int | Sequence[int]] | None
) -> tuple[list[tuple[int, ...]], list[_Field]]:
    """The outputs' fields and each field's layout."""
    _require_chunks(chunks)
    layout = [_field(tensor) for tensor in chunks[0]]
    for number, chunk in enumerate(chunks):
        _require_like(chunk, layout, number)
    rows = sum(len(chunk[0]) for chunk in chunks)
    layout = [replace(field, rows=rows) for field in layout]
    groups = _groups(fields, len(layout))
    for group in groups:
        if len({layout[number] for number in group}) > 1:
            raise InputError(
                f"the fields {group} differ in dtype or shape and cannot be stacked",
                value=str([(layout[one].dtype, layout[one].row_shape) for one in group]),
                remedy="make an output of each, or convert them first",
            )
    return groups, layout


def _require_chunks(chunks: object) -> None:
    if not isinstance(chunks, list):
        raise InputError(
            f"the chunks come in a list, which is emptied, not in a {type(chunks).__name__}",
            remedy="pass list(chunks), and keep no other reference to them",
        )
    if not chunks:
        raise InputError("there are no chunks to concatenate", remedy="pass at least one")
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, tuple | list) or not chunk:
            kind = "is empty" if isinstance(chunk, tuple | list) else type(chunk).__name__
            raise InputError(
                f"chunk {number} is no tuple of tensors with the same number of rows: {kind}",
                remedy="make each chunk a tuple with one tensor a field: (tensor,) for one field",
            )


def _groups(fields: Sequence[int | Sequence[int]] | None, held: int) -> list[tuple[int, ...]]:
    """The numbers of the fields that make each output."""
    if fields is None:
        return [(number,) for number in range(held)]
    try:
        groups = [_group(one) for one in fields]
    except TypeError:  # not a sequence, or of something else than integers
        groups = []
    if sorted(number for group in groups for number in group) != [*range(held)] or () in groups:
        raise InputError(
            f"the fields {fields!r} are not each of the {held} fields once",
            value=repr(fields),
            remedy=f"name each of 0 to {held - 1} once, as in [(0, 1), 2]; (0, 1) stacks two",
        )
    return groups


def _group(one: int | Sequence[int]) -> tuple[int, ...]:
    numbers = one if isinstance(one, Sequence) else (one,)
    if any(isinstance(number, bool) for number in numbers):
        raise TypeError("a switch is no number of a field")
    return tuple(map(operator.index, numbers))


def _field(tensor: torch.Tensor) -> _Field:
    strided = isinstance(tensor, torch.Tensor) and cpu_storage(tensor) is not None
    if not strided or not is_mappable(tensor.dtype):
        kind = type(tensor).__name__
        if isinstance(tensor, torch.Tensor):
            kind = f"a {kind} of {tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise UnsupportedTensorError(
            f"a chunk holds {kind}, which is no strided CPU tensor of a mappable dtype",
            remedy="pass plain tensors, in tuples",
        )
    if tensor.dim() == 0:
        raise InputError(
            "a chunk's tensor has no rows: it has no dimension",
            remedy="give it one: tensor[None] is one row",
        )
    return _Field(tensor.dtype, tuple(tensor.shape[1:]), 0)


def _require_like(chunk: Chunk, layout: list[_Field], number: int) -> None:
    found = [_field(tensor) for tensor in chunk]
    if found != layout:
        raise InputError(
            f"chunk {number} differs from the first in its fields, their dtypes or shapes",
            value=str([(field.dtype, field.row_shape) for field in found]),
            remedy=f"make it like {[(field.dtype, field.row_shape) for field in layout]}",
        )
    rows = {len(tensor) for tensor in chunk}
    if len(rows) > 1:
        raise InputError(
            f"the fields of chunk {number} have different numbers of rows",
            value=str(sorted(rows)),
            remedy="make every field of a chunk as long as the others",
        )


def _allocated(
    groups: list[tuple[int, ...]],
    layout: list[_Field],
    chunks: list[Chunk],
    random_access: bool,
    closing: ExitStack,
) -> list[_Output]:
    rooms = measured_rooms()
    freed = _freed_bytes(chunks, len(layout))
    outputs = []
    for group in groups:
        field = layout[group[0]]
        demand = Demand(
            nbytes=field.nbytes * len(group),
            random_access=random_access,
            freed_bytes=sum(freed[number] for number in group),
        )
        what = f"{len(group)} x {(field.rows, *field.row_shape)} {field.dtype}"
        shape: tuple[int, ...] = (len(group), field.rows, *field.row_shape)
        holds = record_of(shape if len(group) > 1 else shape[1:], field.dtype)
        storage, segment, rooms = _storage(demand, rooms, what, holds)
        if segment is not None:
            closing.enter_context(segment)
        whole = tensor_over(storage, field.dtype, shape)
        outputs.append(
            _Output(
                tensor=whole if len(group) > 1 else whole[0],
                blocks=tuple(whole.unbind()),
                segment=segment,
                row_bytes=field.row_bytes,
            )
        )
    return outputs


def _storage(
    demand: Demand, rooms: Rooms, what: str, holds: TensorRecord
) -> tuple[torch.UntypedStorage, SharedSegment | None, Rooms]:
    """A storage, its segment if it is reserved piece by piece, and the room that is left then."""
    placement = place_finally(demand, rooms)
    if placement.home == "none":
        raise no_home(demand, rooms, placement, what)
    segment = open_segment(demand.nbytes) if placement.home == "shm" else None
    if segment is None:
        # Taken whole, before any chunk gives its memory back.
        demand = replace(demand, freed_bytes=0)
        # By these rooms: memory that was taken and not yet written to does not show in new ones.
        storage, home = storage_in_final_home(demand, what, rooms, holds=holds)
        return storage, None, _less(rooms, demand, home)
    log_passed_over(demand, placement, what)
    log_placement(demand, placement, what, segment.storage)
    return segment.storage, segment, _less(rooms, demand, "shm")


def _less(rooms: Rooms, demand: Demand, home: Home) -> Rooms:
    """What is left of the rooms once the demand has been met in one of them."""
    disk, shm, memory = rooms.disk_bytes, rooms.shm_bytes, rooms.memory_bytes
    if home == "disk":
        return rooms if disk is None else replace(rooms, disk_bytes=disk - demand.nbytes)
    if home == "shm" and shm is not None:
        rooms = replace(rooms, shm_bytes=shm - demand.nbytes)
    if memory is None:
        return rooms
    return replace(rooms, memory_bytes=memory + demand.freed_bytes - demand.nbytes)


def _freed_bytes(chunks: list[Chunk], fields: int) -> list[int]:
    """Memory that comes back with each field's tensors, except for the largest, held longest."""
    sizes: list[list[int]] = [[] for _ in range(fields)]
    for at in range(len(chunks)):
        alone = _held_by_container_alone(chunks, at)
        for number in range(fields):
            sizes[number].append(_comes_back(chunks[at], number) if alone else 0)
    return [sum(held) - max(held, default=0) for held in sizes]


def _comes_back(chunk: Chunk, number: int) -> int:
    if not _held_by_container_alone(chunk, number) or not holds_memory_alone(chunk[number]):
        return 0
    return chunk[number].untyped_storage().nbytes()


def _held_by_container_alone(container: Sequence[object], number: int) -> bool:
    # Nothing but the count tells beforehand who else holds an object: a weak reference does only
    # once it has been let go of. What the count of one held by nobody else looks like depends on
    # the interpreter and its version, so a fresh one, counted in just this way, tells. By number,
    # because a variable, or zip(), would hold one more.
    return _references(container, number) <= _references([object()], 0)


def _references(container: Sequence[object], number: int) -> int:
    return sys.getrefcount(container[number])
