"""What memory this process may still take: what the system has left, within the limit that is set.

OVERSPILL_MEMORY_LIMIT means one thing wherever something is planned: the most anonymous and shared
memory that this process, with the workers it starts, may come to. What it holds already counts, so
the limit is never itself the room that is left.
"""

from __future__ import annotations

import logging
import os

from overspill.errors import UnavailableError
from overspill.linux.cgroups import available_memory_bytes, binding_memory_group
from overspill.linux.processes import process_memory
from overspill.placement.final_home import default_memory_reserve
from overspill.settings import Settings

logger = logging.getLogger("overspill")


def memory_headroom(held: Settings) -> int | None:
    """Bytes that this process may still take.

    Reads the control groups' files and, where a limit is set, this process's use, about 1 ms a GiB
    that it has resident.

    Args:
        held: The settings in force.

    Returns:
        The smaller of what the system has and what the limit leaves, 0 where it is exceeded; None
        where neither can be told, which decides nothing.
    """
    try:
        available: int | None = available_memory_bytes()
    except UnavailableError as error:
        logger.warning("the headroom is unknown: %s", str(error))
        available = None
    limit = held.memory_limit_bytes
    if limit is None:
        return available
    try:
        left = max(0, limit - held_memory_bytes())
    except UnavailableError as error:
        logger.warning("this process's memory is unknown: %s", str(error))
        left = limit
    return left if available is None else min(available, left)


def held_memory_bytes() -> int:
    """Anonymous and shared memory that this process holds now; file pages can be reclaimed.

    Raises:
        UnavailableError: /proc cannot be read.
    """
    use = process_memory()
    return use.anon_bytes + use.shmem_bytes


def memory_reserve(held: Settings, limit_bytes: int | None) -> int:
    """Memory to leave free: as set, else a share of the tightest limit, or of the machine's memory.

    Args:
        held: The settings in force.
        limit_bytes: The limit that the plan is made under; None for none.
    """
    if held.random_access_reserve_bytes is not None:
        return held.random_access_reserve_bytes
    group = binding_memory_group()
    limits = [physical_memory_bytes(), limit_bytes, group.limit_bytes if group else None]
    return default_memory_reserve(min(one for one in limits if one is not None))


def physical_memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
