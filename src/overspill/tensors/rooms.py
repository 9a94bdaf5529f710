"""What there is now: memory, /dev/shm, the spill directory's disk; for the policy to decide on."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from overspill.errors import SpillDirError, UnavailableError
from overspill.linux import libc
from overspill.linux.mounts import free_disk_bytes, total_disk_bytes
from overspill.placement.final_home import Rooms, default_shm_reserve
from overspill.placement.spill import Headroom
from overspill.settings import Settings, current_settings
from overspill.storage.workspace import run_room
from overspill.tensors.headroom import memory_headroom, memory_reserve
from overspill.tensors.shared_memory import SHARED_MEMORY, is_mounted

logger = logging.getLogger("overspill")


@dataclass(frozen=True)
class SharedMemoryRoom:
    """What there is in /dev/shm.

    Attributes:
        free_bytes: What is free, or None where that cannot be told.
        reserve_bytes: What stays free of it.
        refusal: Why it cannot be used at all, or None.
    """

    free_bytes: int | None
    reserve_bytes: int
    refusal: str | None = None

    @property
    def spare_bytes(self) -> int | None:
        """What may be taken beside the reserve; None where that cannot be told."""
        if self.refusal is not None:
            return 0
        return None if self.free_bytes is None else max(0, self.free_bytes - self.reserve_bytes)


def measured_rooms() -> Rooms:
    """Measure what a tensor could be placed in now; makes nothing.

    Returns:
        The rooms; None in them where something cannot be measured, which stands against nothing.

    Raises:
        SettingsError: A setting in the environment cannot be understood.
    """
    settings = current_settings()
    memory = memory_headroom(settings)
    threshold = Headroom(
        memory_bytes=memory, spill_dir=None, min_bytes=settings.min_bytes
    ).threshold_bytes
    shm = shared_memory_room(settings)
    if shm.free_bytes is None and shm.refusal is None:
        logger.warning("the room in %s is unknown", SHARED_MEMORY)
    disk_bytes, disk_refusal = _disk(settings)
    return Rooms(
        threshold_bytes=threshold,
        memory_bytes=memory,
        memory_reserve_bytes=memory_reserve(settings, settings.memory_limit_bytes),
        shm_bytes=shm.free_bytes,
        shm_reserve_bytes=shm.reserve_bytes,
        shm_refusal=shm.refusal,
        disk_bytes=disk_bytes,
        disk_refusal=disk_refusal,
    )


def shared_memory_room(held: Settings) -> SharedMemoryRoom:
    """Measure /dev/shm; a mount that cannot be inspected stands against nothing.

    Args:
        held: The settings in force.
    """
    wanted = held.shm_reserve_bytes
    if libc.SUPPORTED and not is_mounted():
        return SharedMemoryRoom(None, wanted or 0, f"there is no {SHARED_MEMORY}")
    try:
        free, total = free_disk_bytes(SHARED_MEMORY), total_disk_bytes(SHARED_MEMORY)
    except UnavailableError as error:
        logger.debug("%s cannot be inspected: %s", SHARED_MEMORY, str(error))
        return SharedMemoryRoom(None, wanted or 0)
    return SharedMemoryRoom(free, default_shm_reserve(total) if wanted is None else wanted)


def _disk(settings: Settings) -> tuple[int | None, str | None]:
    if not libc.SUPPORTED:
        return None, "files can be mapped on 64-bit Linux alone"
    if settings.spill_dir is None:
        return None, "spilling is off: no spill directory is set"
    try:
        return run_room(settings.spill_dir), None
    except SpillDirError as error:
        return None, error.message
