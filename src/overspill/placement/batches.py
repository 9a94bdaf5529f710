"""Whether a batch on its way from a worker goes through shared memory or through a file."""

from __future__ import annotations

from dataclasses import dataclass

from overspill.placement.spill import Placement
from overspill.units import format_bytes

# What the reserve is kept for: labels, ids and sizes, which go torch's own way to the last.
SMALL_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class SharedRoom:
    """What there is in /dev/shm, whose blocks are memory.

    Attributes:
        free_bytes: What is free, or None where the mount cannot be inspected.
        reserve_bytes: What large tensors leave free.
        memory_bytes: Memory that a large tensor may take; None where that stands against nothing.
    """

    free_bytes: int | None
    reserve_bytes: int
    memory_bytes: int | None = None


def place_batch(nbytes: int, room: SharedRoom) -> Placement:
    """Choose between shared memory and a file for a tensor that a worker hands over.

    Args:
        nbytes: Its size.
        room: What there is.

    Returns:
        "shm" where it fits, for all but the small beside the reserve and in the memory, or where
        nobody can tell; else "disk", with the figures.
    """
    size = format_bytes(nbytes)
    if room.free_bytes is None:
        return Placement("shm", "the room in /dev/shm is unknown")
    large = nbytes > SMALL_BYTES
    reserve = room.reserve_bytes if large else 0
    if nbytes + reserve > room.free_bytes:
        beside = f" beside a reserve of {format_bytes(reserve)}" if reserve else ""
        free = format_bytes(room.free_bytes)
        return Placement("disk", f"/dev/shm has {free} free, and {size} were wanted{beside}")
    if large and room.memory_bytes is not None and nbytes > room.memory_bytes:
        memory = format_bytes(room.memory_bytes)
        return Placement("disk", f"it may take {memory} of the memory, and {size} were wanted")
    return Placement("shm", f"{size} fit in /dev/shm")
