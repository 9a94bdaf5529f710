"""One tensor into shared memory in place: piece by piece where nobody else holds its memory.

Bottleneck: the copy. torch's own ``share_memory_()`` copies the whole storage while it still holds
the source, so a big tensor doubles on its way. Here each piece is reserved, copied, and given back
to the kernel at the source before the next: the peak is one tensor and one piece. That needs the
storage to be this tensor's alone, since torch cannot swap the memory beneath other views from
Python; for the others, and for shared memory by name, torch's own way is taken.

As after torch's own, numpy arrays made of the tensor before are left without their memory.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from overspill.errors import MappingError
from overspill.linux import libc
from overspill.linux.pages import PAGE_BYTES, advise
from overspill.tensors.layouts import tensor_over
from overspill.tensors.ownership import holds_memory_alone
from overspill.tensors.registry import MAPPED
from overspill.tensors.shared_memory import (
    SharedSegment,
    open_segment,
    refused_by_torch,
    require_segment_size,
    shares_by_name,
)

PIECE_BYTES = 64 << 20


def moves_by_pieces(tensor: torch.Tensor) -> bool:
    """Whether a tensor in memory can move without being held twice."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or shares_by_name():
        return False
    if tensor.is_conj() or tensor.is_neg() or (tensor.requires_grad and not tensor.is_leaf):
        return False
    if tensor.untyped_storage().nbytes() <= PIECE_BYTES or tensor.is_pinned():
        return False
    return holds_memory_alone(tensor)


def share_in_place(tensor: torch.Tensor) -> None:
    """Move a CPU tensor's storage into shared memory; the caller has seen to the room.

    Raises:
        NoRoomError: /dev/shm gave out in the middle; the tensor is as it was.
    """
    segment = open_segment(tensor.untyped_storage().nbytes()) if moves_by_pieces(tensor) else None
    if segment is None:
        if libc.SUPPORTED:
            require_segment_size(tensor.untyped_storage().nbytes())
        try:
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise refused_by_torch(error, tensor.untyped_storage().nbytes()) from error
        return
    with segment:
        _move(tensor.untyped_storage(), segment)
        # Not set_(), which counts as a write: a pending backward pass would refuse the tensor.
        tensor.data = tensor_over(
            segment.storage,
            tensor.dtype,
            tensor.shape,
            stride=tensor.stride(),
            offset=int(tensor.storage_offset()),
        )


def leave_spill_files_alone() -> None:
    """Make torch's ``share_memory_()`` know that a spill file is shared memory already.

    It knows under the file_descriptor strategy; under file_system it would copy the whole file
    into /dev/shm. Idempotent; every other storage goes torch's own way.
    """
    stock = torch.UntypedStorage.share_memory_
    if hasattr(stock, "_leaves_spill_files_alone"):
        return

    @functools.wraps(stock)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        record = MAPPED.at(self.data_ptr()) if self.device.type == "cpu" else None
        if record is not None and record.ours and record.shared:
            return self
        return stock(self, *args, **kwargs)

    share_memory_._leaves_spill_files_alone = True  # type: ignore[attr-defined]
    torch.UntypedStorage.share_memory_ = share_memory_  # type: ignore[method-assign]


def _move(storage: torch.UntypedStorage, segment: SharedSegment) -> None:
    nbytes = storage.nbytes()
    source = tensor_over(storage, torch.uint8, (nbytes,))
    target = tensor_over(segment.storage, torch.uint8, (nbytes,))
    done = 0
    try:
        while done < nbytes:
            size = min(PIECE_BYTES, nbytes - done)
            segment.reserve(done, size)
            target[done : done + size].copy_(source[done : done + size])
            # Counted before the source lets go: from here on the copy is the only one.
            done += size
            _let_go(storage.data_ptr() + done - size, size)
    except BaseException:
        _move_back(source, target, segment, done)
        raise


def _move_back(
    source: torch.Tensor, target: torch.Tensor, segment: SharedSegment, done: int
) -> None:
    for start in range(0, done, PIECE_BYTES):
        stop = min(start + PIECE_BYTES, done)
        source[start:stop].copy_(target[start:stop])
        segment.free(start, stop - start)


def _let_go(address: int, nbytes: int) -> None:
    """Give the whole pages of a range of anonymous memory back; a hint."""
    first = -(-address // PAGE_BYTES) * PAGE_BYTES
    last = (address + nbytes) // PAGE_BYTES * PAGE_BYTES
    if last <= first:
        return
    try:
        advise(first, last - first, "dontneed")
    except MappingError:  # locked in memory: it goes with the tensor
        return
