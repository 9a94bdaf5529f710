"""Storages on their way from a DataLoader worker: shared memory, or a file where that is too small.

A block of /dev/shm is memory from the moment it is reserved, so a large /dev/shm in a small control
group is no room: what is large must fit in the memory as well, which costs a reading of the group's
files for each.

Nothing made here has a name: shared memory is a nameless segment, and what does not fit there goes
to a nameless file of the spill directory's disk. Either is mapped by torch and sent by its
descriptor, so that the kernel frees it when the last process lets go, however that ends. Under the
file_system strategy torch would make names, which a worker that is killed leaves for as long as its
parent lives; there the small, which may be many and would each take a descriptor, go as bytes.

Limits: filled through the mapping, at half the speed of write(2), since the callers scatter into
it. The file is not synced: a device that fails while a batch waits shows when the batch is read.
Two views of one ordinary storage, sent in one batch, arrive as two copies.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any, cast

import numpy as np
import torch
from torch.multiprocessing.reductions import rebuild_storage_fd
from torch.utils.data import get_worker_info

from overspill.errors import MappingError, NoRoomError, UnsupportedTensorError
from overspill.linux.blocks import write_all
from overspill.linux.mapping import require_mappable
from overspill.linux.remedies import OPEN_FILES
from overspill.placement.batches import SMALL_BYTES, SharedRoom, place_batch
from overspill.settings import Settings, current_settings
from overspill.storage.nameless_files import open_nameless_file
from overspill.tensors.headroom import memory_headroom
from overspill.tensors.layouts import tensor_over
from overspill.tensors.registry import storage_owner
from overspill.tensors.rooms import shared_memory_room
from overspill.tensors.shared_memory import (
    SHARED_MEMORY,
    open_segment,
    shared_storage,
    shares_by_name,
)
from overspill.tensors.torch_errors import told_by_torch

Reduced = tuple[Any, ...]
# Tells torch's own allocations from those that are made here.
INSIDE = threading.local()

logger = logging.getLogger("overspill")


def storage_to_send(nbytes: int) -> torch.UntypedStorage:
    """A storage that a worker hands over without a copy: shared memory, or a nameless file.

    Where batches are spilled and torch shares by name, a small one is memory, and sent as bytes.

    Args:
        nbytes: Its size, at least 1.

    Raises:
        NoRoomError: It does not fit in /dev/shm, and batches are not spilled, or there is no spill
            directory.
        SpillDirError: The spill directory cannot be used.
        DiskRefusedError: The disk refused.
    """
    held = current_settings()
    spilled = _are_spilled(held)
    if _goes_as_bytes(nbytes, spilled=spilled):
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
    room = _room(held, nbytes)
    placement = place_batch(nbytes, room)
    reason = placement.reason
    if placement.home == "shm":
        try:
            return _in_shared_memory(nbytes)
        except NoRoomError as error:  # another worker was faster
            if not spilled:
                raise
            reason = error.message
    if not spilled:
        raise NoRoomError(
            f"a batch does not fit in shared memory: {reason}",
            path=SHARED_MEMORY,
            needed_bytes=nbytes,
            available_bytes=room.free_bytes,
            remedy="enlarge /dev/shm (docker run --shm-size), use fewer workers, or set "
            "OVERSPILL_DIR and call overspill.spill_batches()",
        )
    return _in_nameless_file(nbytes, held, reason)


class InFlight:
    """torch's reducer of storages in ForkingPickler, watching the room within a worker.

    Args:
        stock: torch's own.
    """

    def __init__(self, stock: Callable[[Any], Reduced]) -> None:
        self._stock = stock

    def __call__(self, storage: torch.UntypedStorage) -> Reduced:
        """Reduce a storage, through a file where it does not fit.

        Raises:
            UnsupportedTensorError: A user's own shared mapping of a file, which torch cannot send.
            NoRoomError: There is no room to send it through; also as `storage_to_send` raises.
        """
        if storage.device.type != "cpu" or storage.nbytes() == 0:
            return self._stock(storage)
        held = _NAMELESS.at(storage)
        if held is not None:
            # The one that has the descriptor: numpy's round trip gives another over its memory.
            return self._sent(held)
        lost = _has_no_descriptor(storage)
        if get_worker_info() is None or not _are_spilled(current_settings()):
            return self._stock(_filled(shared_storage, storage) if lost else storage)
        if storage.is_shared() and not lost:
            return self._sent(storage)
        if _goes_as_bytes(storage.nbytes(), spilled=True):
            return _received_bytes, (_bytes(storage).tobytes(),)
        return self._sent(_filled(storage_to_send, storage))

    def _sent(self, storage: torch.UntypedStorage) -> Reduced:
        try:
            if not shares_by_name() or not _NAMELESS.holds(storage):
                return self._stock(storage)
            # By descriptor under the other strategy too, which would copy it into /dev/shm.
            fd, nbytes = storage._share_fd_cpu_()
            return _received, (DupFd(fd), nbytes)
        except (OSError, RuntimeError) as error:
            # An error of ours: torch's would be lost in the queue's thread, and the receiver wait.
            raise _unsent(error, storage.nbytes()) from error


class _NamelessStorages:
    """The storages of this process without a name that torch's strategy would copy under one.

    Found by address, held weakly; every nameless file, and shared memory where torch shares by
    name.
    """

    def __init__(self) -> None:
        self._owners: dict[int, Callable[[], torch.UntypedStorage | None]] = {}
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        # Another thread of the parent may have held it at the moment of the fork.
        self._lock = threading.Lock()

    def enter(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            alive = {at: owner for at, owner in self._owners.items() if owner() is not None}
            self._owners = {**alive, storage.data_ptr(): storage_owner(storage)}

    def at(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """The one that holds this storage's memory; often, but not always, the same object."""
        owner = self._owners.get(storage.data_ptr())
        held = owner() if owner is not None else None
        return held if held is not None and held.nbytes() >= storage.nbytes() else None

    def holds(self, storage: torch.UntypedStorage) -> bool:
        return self.at(storage) is not None


_NAMELESS = _NamelessStorages()


def _are_spilled(held: Settings) -> bool:
    # Without a directory there is nothing else to turn to: the last byte of /dev/shm serves.
    return held.spill_batches and held.spill_dir is not None


def _goes_as_bytes(nbytes: int, *, spilled: bool) -> bool:
    return spilled and nbytes <= SMALL_BYTES and shares_by_name()


def _has_no_descriptor(storage: torch.UntypedStorage) -> bool:
    """Whether torch would fail to send a storage, in a thread where nobody sees it.

    Raises:
        UnsupportedTensorError: Nor can a copy stand for it, since its writes reach a file.
    """
    # from_file(shared=False) says that it is shared, and keeps no descriptor.
    if shares_by_name() or not storage.is_shared() or storage._share_fd_cpu_()[0] >= 0:
        return False
    if storage.filename is None:
        return True
    raise UnsupportedTensorError(
        f"a mapping of {storage.filename} cannot be sent while spilling is off",
        remedy="set OVERSPILL_DIR, so that it goes by its path; or send a clone() of it, whose "
        "writes do not reach the file",
    )


def _unsent(error: OSError | RuntimeError, nbytes: int) -> NoRoomError:
    if isinstance(error, OSError):
        told, number = error.strerror or str(error), error.errno
    else:
        told, number = told_by_torch(error)
    return NoRoomError(
        f"a batch cannot be sent: {told}",
        errno=number,
        needed_bytes=nbytes,
        remedy=OPEN_FILES.get(number or 0, "raise the limits on open files and mappings"),
    )


class _Memory:
    """A storage's memory for numpy; after ``Tensor.numpy()`` torch would not resize it again."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage  # numpy keeps this object, and so the memory
        self.__array_interface__ = {
            "version": 3,
            "shape": (storage.nbytes(),),
            "typestr": "|u1",
            "data": (storage.data_ptr(), False),
        }


def _bytes(storage: torch.UntypedStorage) -> np.ndarray:
    return np.asarray(_Memory(storage))


def _filled(
    make: Callable[[int], torch.UntypedStorage], source: torch.UntypedStorage
) -> torch.UntypedStorage:
    moved = make(source.nbytes())
    if _NAMELESS.holds(moved):
        write_all(moved._share_fd_cpu_()[0], _bytes(source).data, 0, path="a batch's file")
    else:
        tensor_over(moved, torch.uint8, (moved.nbytes(),)).copy_(
            tensor_over(source, torch.uint8, (source.nbytes(),))
        )
    return moved


def _room(held: Settings, nbytes: int) -> SharedRoom:
    there = shared_memory_room(held)
    free = 0 if there.refusal else there.free_bytes
    if free is None or not _are_spilled(held):
        return SharedRoom(free_bytes=free, reserve_bytes=0)
    return SharedRoom(
        free_bytes=free,
        reserve_bytes=there.reserve_bytes,
        memory_bytes=_spare_memory(held) if nbytes > SMALL_BYTES else None,
    )


def _spare_memory(held: Settings) -> int | None:
    # Every worker may take as much at this moment, and as much again for its next samples.
    worker = get_worker_info()
    claims = 2 * (1 if worker is None else worker.num_workers)
    headroom = memory_headroom(held)
    return None if headroom is None else headroom // claims


def _in_shared_memory(nbytes: int) -> torch.UntypedStorage:
    segment = open_segment(nbytes, by_descriptor=True)
    if segment is None:  # the system cannot make one: torch's own, whose names may be left
        INSIDE.making = True
        try:
            return shared_storage(nbytes)
        finally:
            INSIDE.making = False
    with segment:
        segment.reserve(0, nbytes)
    if shares_by_name():
        _NAMELESS.enter(segment.storage)
    return segment.storage


def _in_nameless_file(nbytes: int, held: Settings, reason: str) -> torch.UntypedStorage:
    assert held.spill_dir is not None
    fd = open_nameless_file(
        held.spill_dir,
        nbytes,
        disk_limit_bytes=held.disk_limit_bytes,
        allow_cow_disk=held.allow_cow_disk,
    )
    try:
        made = _mapped(fd, nbytes)  # keeps a descriptor of its own
    except (MappingError, RuntimeError) as error:
        raise NoRoomError(
            f"a file for a batch cannot be mapped: {str(error).splitlines()[0]}",
            path=str(held.spill_dir),
            needed_bytes=nbytes,
            remedy="raise the limits on open files and mappings (ulimit -n, -v; vm.max_map_count)",
        ) from error
    finally:
        os.close(fd)
    _NAMELESS.enter(made)
    logger.info("a batch of %d bytes goes through a file in %s: %s", nbytes, held.spill_dir, reason)
    return made


def _mapped(fd: int, nbytes: int) -> torch.UntypedStorage:
    require_mappable(nbytes)  # torch would leave its copy of the descriptor open
    made = torch.UntypedStorage._new_shared_fd_cpu(fd, nbytes)  # type: ignore[attr-defined]
    return cast(torch.UntypedStorage, made)


def _received(descriptor: Any, nbytes: int) -> torch.UntypedStorage:
    rebuilt = rebuild_storage_fd(torch.UntypedStorage, descriptor, nbytes)  # type: ignore[no-untyped-call]
    storage = cast(torch.UntypedStorage, rebuilt)
    _NAMELESS.enter(storage)
    return storage


def _received_bytes(data: bytes) -> torch.UntypedStorage:
    # Not over the bytes themselves, which nobody may write to, nor resize.
    held = torch.empty(len(data), dtype=torch.uint8, device="cpu").untyped_storage()
    _bytes(held)[:] = np.frombuffer(data, dtype=np.uint8)
    return held
