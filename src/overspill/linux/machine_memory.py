"""What the whole machine's memory is spent on, told as a control group's is."""

from __future__ import annotations

from pathlib import Path

from overspill.errors import UnavailableError
from overspill.linux.cgroups import PROC, MemoryUse
from overspill.linux.kernel_fields import read_fields


def machine_memory(*, proc: Path = PROC) -> MemoryUse:
    """Read /proc/meminfo, in less than 0.1 ms.

    Args:
        proc: Where /proc is.

    Returns:
        The limit is the machine's memory, the use all that is not free; the path is the file's.
        Pages that are locked in memory count as clean cache, if they are a file's.

    Raises:
        UnavailableError: It cannot be read, or does not tell.
    """
    path = proc / "meminfo"
    held = read_fields(path, wanted="the machine's memory cannot be read")
    if "MemTotal" not in held or "MemFree" not in held:
        raise UnavailableError(
            "the machine does not tell its memory",
            path=str(path),
            remedy="run where /proc/meminfo has MemTotal and MemFree",
        )
    shmem, dirty, writeback = (held.get(name, 0) for name in ("Shmem", "Dirty", "Writeback"))
    # Shared memory counts as cache there.
    cache = held.get("Cached", 0) + held.get("Buffers", 0) - shmem
    return MemoryUse(
        limit_bytes=held["MemTotal"],
        usage_bytes=held["MemTotal"] - held["MemFree"],
        anon_bytes=held.get("AnonPages", 0),
        shmem_bytes=shmem,
        clean_file_bytes=max(0, cache - dirty - writeback),
        dirty_bytes=dirty,
        writeback_bytes=writeback,
        path=str(path),
    )
