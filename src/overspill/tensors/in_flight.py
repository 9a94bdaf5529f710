"""Storages on their way from a DataLoader worker: shared memory, or a file where that is too small.

A block of /dev/shm is memory from the moment it is reserved, so a large /dev/shm in a small control
group is no room: what is large must fit in the memory as well, which costs a reading of the group's
files for each.

What does not fit goes to a nameless file of the spill directory's disk and is mapped by torch
itself, which sends its descriptor, so that the kernel frees it when the last process lets go,
however that ends.

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

import torch
from torch.multiprocessing.reductions import rebuild_storage_fd
from torch.utils.data import get_worker_info

from overspill.errors import MappingError, NoRoomError, UnavailableError
from overspill.linux.blocks import write_all
from overspill.linux.cgroups import available_memory_bytes
from overspill.linux.mapping import require_mappable
from overspill.linux.mounts import free_disk_bytes, total_disk_bytes
from overspill.placement.batches import SMALL_BYTES, SharedRoom, place_batch
from overspill.placement.final_home import default_shm_reserve
from overspill.settings import Settings, current_settings
from overspill.storage.nameless_files import open_nameless_file
from overspill.tensors.layouts import bytes_of, tensor_over
from overspill.tensors.registry import storage_owner
from overspill.tensors.shared_memory import SHARED_MEMORY, shared_storage

Reduced = tuple[Any, ...]
# Tells torch's own allocations from those that are made here.
INSIDE = threading.local()

logger = logging.getLogger("overspill")


def storage_to_send(nbytes: int) -> torch.UntypedStorage:
    """A storage that a worker hands over without a copy: shared memory, or a nameless file.

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
    room = _room(held, nbytes)
    placement = place_batch(nbytes, room)
    reason = placement.reason
    if placement.home == "shm":
        INSIDE.making = True
        try:
            return shared_storage(nbytes)
        except NoRoomError as error:  # another worker was faster
            if not spilled:
                raise
            reason = error.message
        finally:
            INSIDE.making = False
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
        """Reduce a storage, through a file where it does not fit."""
        if get_worker_info() is None or storage.device.type != "cpu":
            return self._stock(storage)
        if _NAMELESS.holds(storage):
            return self._sent(storage)
        nbytes = storage.nbytes()
        if nbytes == 0 or storage.is_shared() or not _are_spilled(current_settings()):
            return self._stock(storage)
        moved = storage_to_send(nbytes)
        source = tensor_over(storage, torch.uint8, (nbytes,))
        if _NAMELESS.holds(moved):
            fd = moved._share_fd_cpu_()[0]
            write_all(fd, bytes_of(source).numpy().data, 0, path="a batch's file")
        else:
            tensor_over(moved, torch.uint8, (nbytes,)).copy_(source)
        return self._sent(moved)

    def _sent(self, storage: torch.UntypedStorage) -> Reduced:
        by_name = torch.multiprocessing.get_sharing_strategy() == "file_system"  # type: ignore[no-untyped-call]
        if not by_name or not _NAMELESS.holds(storage):
            return self._stock(storage)
        # By descriptor under the other strategy too, which would copy it into /dev/shm.
        fd, nbytes = storage._share_fd_cpu_()
        return _received, (DupFd(fd), nbytes)


class _NamelessStorages:
    """The storages of this process that are nameless files; found by address, held weakly."""

    def __init__(self) -> None:
        self._owners: dict[int, Callable[[], object]] = {}
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        # Another thread of the parent may have held it at the moment of the fork.
        self._lock = threading.Lock()

    def enter(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            alive = {at: owner for at, owner in self._owners.items() if owner() is not None}
            self._owners = {**alive, storage.data_ptr(): storage_owner(storage)}

    def holds(self, storage: torch.UntypedStorage) -> bool:
        owner = self._owners.get(storage.data_ptr())
        return owner is not None and owner() is not None


_NAMELESS = _NamelessStorages()


def _are_spilled(held: Settings) -> bool:
    # Without a directory there is nothing else to turn to: the last byte of /dev/shm serves.
    return held.spill_batches and held.spill_dir is not None


def _room(held: Settings, nbytes: int) -> SharedRoom:
    try:
        free, total = free_disk_bytes(SHARED_MEMORY), total_disk_bytes(SHARED_MEMORY)
    except UnavailableError:
        return SharedRoom(free_bytes=None, reserve_bytes=0)
    if not _are_spilled(held):
        return SharedRoom(free_bytes=free, reserve_bytes=0)
    reserve = held.shm_reserve_bytes
    return SharedRoom(
        free_bytes=free,
        reserve_bytes=default_shm_reserve(total) if reserve is None else reserve,
        memory_bytes=_spare_memory() if nbytes > SMALL_BYTES else None,
    )


def _spare_memory() -> int | None:
    # Every worker may take as much at this moment, and as much again for its next samples.
    worker = get_worker_info()
    claims = 2 * (1 if worker is None else worker.num_workers)
    try:
        available = available_memory_bytes()
    except UnavailableError:
        return None  # what cannot be measured does not block
    return available // claims


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
