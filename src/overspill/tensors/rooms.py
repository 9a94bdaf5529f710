"""What there is now: memory, /dev/shm, the spill directory's disk; for the policy to decide on."""

from __future__ import annotations

import logging
import os

from overspill.errors import SpillDirError, UnavailableError
from overspill.linux import libc
from overspill.linux.cgroups import available_memory_bytes, binding_memory_group
from overspill.linux.mounts import free_disk_bytes, total_disk_bytes
from overspill.placement.final_home import Rooms, default_memory_reserve, default_shm_reserve
from overspill.placement.spill import Headroom
from overspill.settings import Settings, current_settings
from overspill.storage.workspace import run_room
from overspill.tensors.shared_memory import SHARED_MEMORY, is_mounted

logger = logging.getLogger("overspill")


def measured_rooms() -> Rooms:
    """Measure what a tensor could be placed in now; makes nothing.

    Returns:
        The rooms; None in them where something cannot be measured, which stands against nothing.

    Raises:
        SettingsError: A setting in the environment cannot be understood.
    """
    settings = current_settings()
    memory = _memory(settings)
    threshold = Headroom(
        memory_bytes=memory, spill_dir=None, min_bytes=settings.min_bytes
    ).threshold_bytes
    shm_free, shm_reserve, shm_refusal = _shared_memory(settings)
    disk_bytes, disk_refusal = _disk(settings)
    return Rooms(
        threshold_bytes=threshold,
        memory_bytes=memory,
        memory_reserve_bytes=_memory_reserve(settings),
        shm_bytes=shm_free,
        shm_reserve_bytes=shm_reserve,
        shm_refusal=shm_refusal,
        disk_bytes=disk_bytes,
        disk_refusal=disk_refusal,
    )


def _memory(settings: Settings) -> int | None:
    limit = settings.memory_limit_bytes
    try:
        measured = available_memory_bytes()
    except UnavailableError as error:
        logger.warning("the headroom is unknown: %s", str(error))
        return limit
    return measured if limit is None else min(limit, measured)


def _memory_reserve(settings: Settings) -> int:
    if settings.random_access_reserve_bytes is not None:
        return settings.random_access_reserve_bytes
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = binding_memory_group()
    limits = [group.limit_bytes if group is not None else None, settings.memory_limit_bytes]
    return default_memory_reserve(min([total, *(one for one in limits if one is not None)]))


def _shared_memory(settings: Settings) -> tuple[int | None, int, str | None]:
    """What is free, what stays free, and why it cannot be used."""
    wanted = settings.shm_reserve_bytes
    if libc.SUPPORTED and not is_mounted():
        return None, wanted or 0, f"there is no {SHARED_MEMORY}"
    try:
        free, total = free_disk_bytes(SHARED_MEMORY), total_disk_bytes(SHARED_MEMORY)
    except UnavailableError as error:
        logger.warning("the room in %s is unknown: %s", SHARED_MEMORY, str(error))
        return None, wanted or 0, None
    return free, default_shm_reserve(total) if wanted is None else wanted, None


def _disk(settings: Settings) -> tuple[int | None, str | None]:
    if not libc.SUPPORTED:
        return None, "files can be mapped on 64-bit Linux alone"
    if settings.spill_dir is None:
        return None, "spilling is off: no spill directory is set"
    try:
        return run_room(settings.spill_dir), None
    except SpillDirError as error:
        return None, error.message
