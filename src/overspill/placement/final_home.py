"""The final home of a tensor that will be shared, chosen before its first byte is written.

A tensor that is made in its final home is never copied again when it is shared. Written in order,
a file serves it at the disk's speed and costs no memory, so the disk comes first; a scatter would
turn each of its writes into a page of I/O, so there memory comes first, with room to spare. No home
is ever chosen that could end in SIGBUS (a full /dev/shm) or in a kill for want of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from overspill.placement.spill import Placement
from overspill.units import format_bytes

# The large figures are the field's; the fractions make small containers work.
LARGEST_MEMORY_RESERVE_BYTES = 16 << 30
MEMORY_RESERVE_SHARE = 8
LARGEST_SHM_RESERVE_BYTES = 2 << 30
SHM_RESERVE_SHARE = 8
# What is smaller stays a plain tensor below the threshold, though /dev/shm be full.
LEAST_MOVED_BYTES = 1 << 20
REMEDY = (
    "enlarge /dev/shm (docker run --shm-size) and the memory limit, or set OVERSPILL_DIR to a "
    "directory on a disk with that much room"
)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is to be placed.

    Attributes:
        nbytes: Its size.
        random_access: Whether it is written in no particular order, as a scatter writes.
        freed_bytes: Memory that its caller gives back while it is being filled.
    """

    nbytes: int
    random_access: bool = False
    freed_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """What was measured and set at the moment of the question.

    Attributes:
        threshold_bytes: Below this size a plain tensor does.
        memory_bytes: Memory that can still be had, or None where it cannot be measured.
        memory_reserve_bytes: What stays free of it beside a randomly written tensor.
        shm_bytes: What is free in /dev/shm, or None where the mount cannot be inspected.
        shm_reserve_bytes: What stays free of it.
        shm_refusal: Why shared memory cannot be used at all, or None.
        disk_bytes: What the spill directory's disk may still give, or None where it does not tell.
        disk_refusal: Why the disk cannot be used at all, or None.
    """

    threshold_bytes: int
    memory_bytes: int | None
    memory_reserve_bytes: int = 0
    shm_bytes: int | None
    shm_reserve_bytes: int = 0
    shm_refusal: str | None = None
    disk_bytes: int | None = None
    disk_refusal: str | None = None


def default_memory_reserve(limit_bytes: int) -> int:
    """Memory left free beside a randomly written tensor, under a limit on memory."""
    return min(LARGEST_MEMORY_RESERVE_BYTES, limit_bytes // MEMORY_RESERVE_SHARE)


def default_shm_reserve(mount_bytes: int) -> int:
    """Room left free in a /dev/shm of this size."""
    return min(LARGEST_SHM_RESERVE_BYTES, mount_bytes // SHM_RESERVE_SHARE)


def place_finally(demand: Demand, rooms: Rooms) -> Placement:
    """Choose the final home.

    Args:
        demand: What is to be placed.
        rooms: What was measured and set.

    Returns:
        "memory" (a plain tensor), "shm" or "disk", and why; "none" where no home is safe, with
        what stands against each of them.
    """
    if demand.nbytes == 0:
        return Placement("memory", "there are no bytes to place")
    size = format_bytes(demand.nbytes)
    against_disk = _against_disk(demand, rooms)
    if demand.nbytes < rooms.threshold_bytes and _lack_of_memory(demand, rooms, reserve=0) is None:
        # Sharing a plain tensor moves it into /dev/shm: the next send would be its end. A scatter
        # goes on in memory all the same, for on the disk it would be the slower by far.
        beyond = None if demand.random_access else _beyond_shm(demand, rooms)
        if beyond is None or demand.nbytes < LEAST_MOVED_BYTES or against_disk is not None:
            threshold = format_bytes(rooms.threshold_bytes)
            return Placement("memory", f"{size} is below the threshold of {threshold}")
        return Placement("disk", beyond)
    against_shm = _against_shm(demand, rooms)
    order = [("disk", against_disk), ("shm", against_shm)]
    if demand.random_access:
        order.reverse()
    (first, obstacle), (second, last) = order
    if obstacle is None:
        kind = "random access" if demand.random_access else "written in order"
        return Placement("shm" if first == "shm" else "disk", f"{size}, {kind}, fits")
    if last is None:
        return Placement("shm" if second == "shm" else "disk", obstacle)
    return Placement("none", f"{obstacle}; {last}")


def _against_shm(demand: Demand, rooms: Rooms) -> str | None:
    if rooms.shm_refusal is not None:
        return rooms.shm_refusal
    reserve = rooms.memory_reserve_bytes if demand.random_access else 0
    return _beyond_shm(demand, rooms) or _lack_of_memory(demand, rooms, reserve=reserve)


def _beyond_shm(demand: Demand, rooms: Rooms) -> str | None:
    reserve = rooms.shm_reserve_bytes
    if rooms.shm_bytes is None or rooms.shm_bytes >= demand.nbytes + reserve:
        return None
    return (
        f"/dev/shm has {format_bytes(rooms.shm_bytes)} free, and "
        f"{format_bytes(demand.nbytes)} were wanted beside a reserve of {format_bytes(reserve)}"
    )


def _lack_of_memory(demand: Demand, rooms: Rooms, *, reserve: int) -> str | None:
    if rooms.memory_bytes is None:
        return None
    if rooms.memory_bytes + demand.freed_bytes >= demand.nbytes + reserve:
        return None
    beside = f" beside a reserve of {format_bytes(reserve)}" if reserve else ""
    return (
        f"{format_bytes(rooms.memory_bytes)} of memory can still be had, and "
        f"{format_bytes(demand.nbytes - demand.freed_bytes)} were wanted{beside}"
    )


def _against_disk(demand: Demand, rooms: Rooms) -> str | None:
    if rooms.disk_refusal is not None:
        return rooms.disk_refusal
    if rooms.disk_bytes is not None and rooms.disk_bytes < demand.nbytes:
        return (
            f"the spill directory's disk may give {format_bytes(max(0, rooms.disk_bytes))}, and "
            f"{format_bytes(demand.nbytes)} were wanted"
        )
    return None


def best_offer(demand: Demand, rooms: Rooms) -> int | None:
    """The most bytes that any home could have taken; None where no home told."""
    offers = []
    if rooms.shm_refusal is None:
        reserve = rooms.memory_reserve_bytes if demand.random_access else 0
        told = []
        if rooms.shm_bytes is not None:
            told.append(rooms.shm_bytes - rooms.shm_reserve_bytes)
        if rooms.memory_bytes is not None:
            told.append(rooms.memory_bytes + demand.freed_bytes - reserve)
        offers += [min(told)] if told else []
    if rooms.disk_refusal is None and rooms.disk_bytes is not None:
        offers.append(rooms.disk_bytes)
    return max(0, *offers) if offers else None
