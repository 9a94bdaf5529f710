"""What the whole machine's memory is spent on, told as a control group's is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from overspill.errors import UnavailableError
from overspill.linux.cgroups import PROC, MemoryUse
from overspill.linux.remedies import OPEN_FILES


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
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        number = error.errno or errno.EIO
        raise UnavailableError(
            f"the machine's memory cannot be read: {os.strerror(number)}",
            path=str(path),
            errno=number,
            remedy=OPEN_FILES.get(number, "mount /proc, and let it be read"),
        ) from error
    held = _kibibytes(text)
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


def _kibibytes(text: str) -> dict[str, int]:
    """The lines "Name:  123 kB", in bytes."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found
