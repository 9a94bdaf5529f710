"""Tensors, and what holds tensors, into shared memory; the room is looked at before a byte moves.

Partition books are known by what they offer, not by their class, so that books of other packages
are too: `SharesTensors`, and what keeps ``partition_bounds`` (graphlearn_torch's range books).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import torch

from overspill.errors import NoRoomError, UnsupportedTensorError
from overspill.placement.final_home import Rooms
from overspill.tensors.backing import cpu_storage, file_behind
from overspill.tensors.chunks import byte_chunks
from overspill.tensors.layouts import bytes_of, tensor_over
from overspill.tensors.lifetime import discard
from overspill.tensors.rooms import measured_rooms
from overspill.tensors.share_in_place import PIECE_BYTES, moves_by_pieces, share_in_place
from overspill.tensors.shared_memory import SHARED_MEMORY, shared_storage
from overspill.tensors.spill import spill_tensor_to_disk
from overspill.tensors.ties import tied
from overspill.units import format_bytes

Key = TypeVar("Key")


@runtime_checkable
class SharesTensors(Protocol):
    """What holds tensors that processes should share, as partition books do."""

    def shared_tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors to share in place; none for what is small and computed, as a range book."""
        ...


@runtime_checkable
class RangeBook(Protocol):
    """A range partition book by its shape, graphlearn_torch's included: a few bounds, no table."""

    partition_bounds: torch.Tensor


Shareable = (
    torch.Tensor
    | SharesTensors
    | RangeBook
    | Mapping[Key, torch.Tensor | SharesTensors | RangeBook | None]
    | None
)


def share_memory(entity: Shareable[Key]) -> None:
    """Put tensors into shared memory, in place.

    Left alone are empty tensors, tensors in shared memory or on another device, disk-backed tensors
    (their file is shared already) and range books. A tensor whose storage no other tensor shares
    moves piece by piece: peak memory is its size and 64 MiB. Others are copied once by torch;
    memory that torch did not allocate, as numpy's, counts as kept by its owner beside the copy. A
    mapping that contains itself is gone through once. Not safe beside threads that use the tensors.

    Args:
        entity: A tensor, a partition book, a mapping of either, or None, which is nothing.

    Raises:
        NoRoomError: /dev/shm or memory cannot hold what would move; nothing has moved. If room
            vanished in the middle, each tensor is whole, in shared memory or where it was.
        UnsupportedTensorError: Something that cannot be shared: a sparse or nested tensor, or what
            is neither tensor nor book.
    """
    moving = _to_move(entity)
    _require_room(moving, measured_rooms() if moving else None)
    for tensor in moving:
        share_in_place(tensor)


def share_memory_for_ipc(
    tensors: Mapping[Key, torch.Tensor | None],
) -> dict[Key, torch.Tensor | None]:
    """A mapping to send to other processes: large values spilled, the rest in shared memory.

    Args:
        tensors: The tensors, which stay as they are: neither moved nor changed.

    Returns:
        A new dict in the same order. Values at or above the spill threshold are tensors over files
        (none while spilling is off), smaller ones copies in shared memory, detached either way;
        what is empty, shared or disk-backed already, and None, is passed on. Values over the same
        memory, or a part of another one's, are stored once, and share it in the receiver too.

    Raises:
        NoRoomError: /dev/shm or memory cannot hold the copies; no file is left.
        UnsupportedTensorError: A value is no tensor, or can be neither spilled nor shared.
    """
    for tensor in tensors.values():
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise UnsupportedTensorError(
                f"not a tensor: {type(tensor).__name__}", remedy="convert it: torch.as_tensor(...)"
            )
    found = dict(tensors)
    held = [(key, tensor) for key, tensor in tensors.items() if tensor is not None]
    groups = tied([(key, tensor) for key, tensor in held if _needs_sharing(tensor)])
    spilled: list[torch.Tensor] = []
    try:
        copies = []
        for group in groups:
            on_disk = spill_tensor_to_disk(group.whole)
            if on_disk is None:
                copies.append(group)
            else:
                spilled.append(on_disk)
                found |= group.over(on_disk)
        wanted = sum(group.whole.numel() * group.whole.element_size() for group in copies)
        _require_shm(wanted, wanted, measured_rooms() if copies else None)
        for group in copies:
            found |= group.over(_shared_copy(group.whole))
    except BaseException:
        for tensor in spilled:
            discard(tensor)
        raise
    return found


def _to_move(entity: object) -> list[torch.Tensor]:
    """The tensors that must move, one for each storage."""
    found: dict[int, torch.Tensor] = {}
    for tensor in _tensors_of(entity):
        if _needs_sharing(tensor):
            # Not by address: numpy's memory may lie under several storages, and each moves alone.
            found.setdefault(tensor.untyped_storage()._cdata, tensor)
    return list(found.values())


def _tensors_of(entity: object, within: tuple[object, ...] = ()) -> Iterator[torch.Tensor]:
    if entity is None:
        return
    if isinstance(entity, torch.Tensor):
        yield entity
    elif isinstance(entity, SharesTensors):
        yield from entity.shared_tensors()
    elif isinstance(entity, Mapping):
        if any(entity is outer for outer in within):
            return  # its tensors come where it was entered
        for value in entity.values():
            yield from _tensors_of(value, (*within, entity))
    elif not isinstance(getattr(entity, "partition_bounds", None), torch.Tensor):
        raise UnsupportedTensorError(
            f"a {type(entity).__name__} cannot be put into shared memory",
            remedy="pass a tensor, a partition book, or a mapping of them",
        )


def _needs_sharing(tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu":
        return False
    if cpu_storage(tensor) is None and not tensor.is_quantized:
        raise UnsupportedTensorError(
            f"a {tensor.layout} tensor on {tensor.device} cannot be put into shared memory",
            remedy="share its components, for example indices() and values()",
        )
    if tensor.numel() == 0 or tensor.is_shared():  # type: ignore[no-untyped-call]
        return False
    return file_behind(tensor) is None


def _require_room(moving: list[torch.Tensor], rooms: Rooms | None) -> None:
    nbytes = staying = extra = 0
    for tensor in moving:
        # No name for the storage: a reference to it would count as another holder.
        size = tensor.untyped_storage().nbytes()
        nbytes += size
        if not tensor.untyped_storage().resizable():
            # Whose memory torch did not allocate keeps it: the array beneath it lives on.
            staying += size
        else:
            # Torch frees it once it is copied: held twice for as long, one tensor at a time.
            extra = max(extra, PIECE_BYTES if moves_by_pieces(tensor) else size)
    _require_shm(nbytes, staying + extra, rooms)


def _require_shm(shm_bytes: int, memory_bytes: int, rooms: Rooms | None) -> None:
    if rooms is None:
        return
    there = None if rooms.shm_bytes is None else rooms.shm_bytes - rooms.shm_reserve_bytes
    if rooms.shm_refusal is not None or (there is not None and there < shm_bytes):
        raise NoRoomError(
            rooms.shm_refusal
            or f"{SHARED_MEMORY} has {format_bytes(rooms.shm_bytes or 0)} free, and "
            f"{format_bytes(shm_bytes)} were to be shared beside a reserve of "
            f"{format_bytes(rooms.shm_reserve_bytes)}",
            path=SHARED_MEMORY,
            needed_bytes=shm_bytes,
            available_bytes=max(0, there or 0),
            remedy="enlarge /dev/shm (docker run --shm-size), or spill to disk with OVERSPILL_DIR",
        )
    if rooms.memory_bytes is not None and rooms.memory_bytes < memory_bytes:
        raise NoRoomError(
            f"sharing {format_bytes(shm_bytes)} takes {format_bytes(memory_bytes)} of memory on "
            f"its way, and {format_bytes(rooms.memory_bytes)} can still be had",
            needed_bytes=memory_bytes,
            available_bytes=rooms.memory_bytes,
            remedy="allocate it with allocate_preshared, or spill to disk with OVERSPILL_DIR",
        )


def _shared_copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        copied = tensor.detach().clone()
        copied.share_memory_()  # type: ignore[no-untyped-call]
        return copied
    shape = tuple(tensor.shape)
    storage = shared_storage(tensor.numel() * tensor.element_size())
    filled = bytes_of(tensor_over(storage, tensor.dtype, shape)).numpy()
    done = 0
    for chunk in byte_chunks(tensor.detach().as_subclass(torch.Tensor)):
        filled[done : done + chunk.nbytes] = chunk
        done += chunk.nbytes
    return tensor_over(storage, tensor.dtype, shape)
