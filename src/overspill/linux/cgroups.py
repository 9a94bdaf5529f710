"""How much memory and CPU the control groups leave this process: v1, v2, hybrid, nested.

/proc/self/cgroup gives the group's path within each hierarchy and /proc/self/mountinfo where that
hierarchy is mounted and from which root; the two together give a directory. Every ancestor up to
the mount binds too, and the tightest decides. "max", v1's huge number and whatever is more than the
machine's memory mean no limit.

Clean page cache is reclaimed before anything is killed, so it counts as headroom; dirty pages,
pages under write-back and shmem are not free to take and do not. Every reader takes the root of
/proc, so that fake trees test it; nothing is cached, and threads and forks need no care.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from overspill.errors import UnavailableError
from overspill.linux.kernel_fields import read_fields
from overspill.linux.mounts import Mount, read_mounts

PROC = Path("/proc")
# v1 writes "no limit" as the largest page count in bytes, which depends on the page size.
_NO_LIMIT_BYTES = 1 << 62


@dataclass(frozen=True)
class MemoryUse:
    """A memory control group's limit and what its processes hold, descendants included.

    Attributes:
        limit_bytes: The hard limit, or v2's memory.high where that is lower; None without one.
        usage_bytes: All that is charged, page cache included.
        anon_bytes: Anonymous memory.
        shmem_bytes: Shared memory and tmpfs.
        clean_file_bytes: Page cache that can be dropped at once.
        dirty_bytes: Page cache that must be written first.
        writeback_bytes: Page cache being written.
        path: The group's directory.
    """

    limit_bytes: int | None
    usage_bytes: int
    anon_bytes: int
    shmem_bytes: int
    clean_file_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    path: str

    @property
    def headroom_bytes(self) -> int | None:
        """What can still be allocated before the limit kills; None without a limit."""
        if self.limit_bytes is None:
            return None
        return max(0, self.limit_bytes - self.usage_bytes + self.clean_file_bytes)


@dataclass(frozen=True, kw_only=True)
class TaskUse:
    """The processes of one control group, each of their threads counted, and how many it may have.

    Attributes:
        path: The group's directory.
        count: How many there are.
        limit: How many there may be.
    """

    path: str
    count: int
    limit: int

    @property
    def left(self) -> int:
        """How many more can be started."""
        return max(0, self.limit - self.count)


def memory_groups(proc: Path = PROC) -> list[MemoryUse]:
    """Read this process's own memory group and every ancestor that has a limit.

    Args:
        proc: Where /proc is.

    Returns:
        The own group first, with or without a limit, then outwards. Empty where no memory
        controller is mounted, or none of it can be read.
    """
    found, machine_bytes = [], _machine_bytes(proc)
    for directories in memory_directories(proc):
        for depth, directory in enumerate(directories):
            use = read_group(directory, machine_bytes=machine_bytes)
            if use is not None and (depth == 0 or use.limit_bytes is not None):
                found.append(use)
    return found


def binding_memory_group(proc: Path = PROC) -> MemoryUse | None:
    """The one with the smallest headroom, own group or ancestor; None where nothing limits."""
    return tightest_group(memory_groups(proc))


def tightest_group(uses: Iterable[MemoryUse]) -> MemoryUse | None:
    """Of several groups the one with the smallest headroom; None where nothing limits."""
    limited = [use for use in uses if use.limit_bytes is not None]
    return min(limited, key=lambda use: use.headroom_bytes or 0, default=None)


def available_memory_bytes(proc: Path = PROC) -> int:
    """Bytes that can still be allocated: the system's available memory or the tightest headroom.

    Raises:
        UnavailableError: The system's available memory cannot be read.
    """
    binding = binding_memory_group(proc)
    system = _system_available(proc)
    return system if binding is None else min(system, binding.headroom_bytes or 0)


def cpu_quota(proc: Path = PROC) -> float | None:
    """CPUs' worth of time that the tightest group allows; None without a quota."""
    quotas = []
    for directories in _directories_of("cpu", proc):
        for directory in directories:
            quota = _quota(directory)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def binding_task_group(proc: Path = PROC) -> TaskUse | None:
    """Read how many processes and threads there are in the group that has the fewest left.

    Returns:
        Of the own group or an ancestor (v2's pids.max, v1's pids controller); None without a limit.
    """
    found = []
    for directory in (place for places in _directories_of("pids", proc) for place in places):
        limit, count = (_number(directory / name) for name in ("pids.max", "pids.current"))
        if limit is not None and count is not None:
            found.append(TaskUse(path=str(directory), count=count, limit=limit))
    return min(found, key=lambda use: use.left, default=None)


def usable_cpus(proc: Path = PROC) -> int:
    """CPUs worth starting a thread for: the affinity mask, capped by the quota rounded up."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    quota = cpu_quota(proc)
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def memory_directories(proc: Path = PROC) -> list[list[Path]]:
    """Directories of the own memory group and its ancestors, innermost first, per hierarchy."""
    return _directories_of("memory", proc)


def read_group(directory: Path, *, machine_bytes: int | None = None) -> MemoryUse | None:
    """Read one memory group.

    Args:
        directory: Its directory.
        machine_bytes: The machine's memory; a limit above it is none. One that is equal binds:
            where /proc/meminfo is made up from the group's limit (lxcfs), the group is what kills.

    Returns:
        Its use; None where it keeps no account (v2's root) or cannot be read.
    """
    most_bytes = _NO_LIMIT_BYTES - 1 if machine_bytes is None else machine_bytes
    usage = _number(directory / "memory.current")
    if usage is not None:
        limits = [_number(directory / name) for name in ("memory.max", "memory.high")]
        return _use(directory, usage, _least(limits, most_bytes), prefix="")
    usage = _number(directory / "memory.usage_in_bytes")
    if usage is None:
        return None
    # The kernel's own minimum over the ancestors, also those that are not visible from here.
    inherited = _statistics(directory).get("hierarchical_memory_limit")
    limits = [_number(directory / "memory.limit_in_bytes"), inherited]
    return _use(directory, usage, _least(limits, most_bytes), prefix="total_")


def kill_count(directory: Path) -> int | None:
    """How many processes the kernel has killed in a group for going over the limit.

    Args:
        directory: The group's directory.

    Returns:
        v2 counts the groups below too, v1 the group alone; None where it is not told.
    """
    for name in ("memory.events", "memory.oom_control"):
        for line in (_text(directory / name) or "").splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill" and count.isdigit():
                return int(count)
    return None


def _least(limits: list[int | None], most_bytes: int) -> int | None:
    return min((one for one in limits if one is not None and one <= most_bytes), default=None)


def _use(directory: Path, usage: int, limit: int | None, *, prefix: str) -> MemoryUse:
    held = _statistics(directory)

    def of(*names: str) -> int:
        return next((held[prefix + name] for name in names if prefix + name in held), 0)

    shmem, dirty, writeback = (
        of("shmem"),
        of("file_dirty", "dirty"),
        of("file_writeback", "writeback"),
    )
    clean = of("file", "cache") - shmem
    if prefix + "inactive_file" in held:  # leaves out what mlock holds
        clean = min(clean, of("inactive_file") + of("active_file"))
    return MemoryUse(
        limit_bytes=limit,
        usage_bytes=usage,
        anon_bytes=of("anon", "rss"),
        shmem_bytes=shmem,
        clean_file_bytes=max(0, clean - dirty - writeback),
        dirty_bytes=dirty,
        writeback_bytes=writeback,
        path=str(directory),
    )


def _directories_of(controller: str, proc: Path) -> list[list[Path]]:
    """One list a hierarchy that may hold the controller: v1's own, and v2's unified one."""
    try:
        mounts = read_mounts(proc)
    except UnavailableError:
        return []
    found = []
    for kind, group in _own_groups(controller, proc):
        fitting = [
            mount
            for mount in mounts
            if mount.kind == kind and (kind == "cgroup2" or controller in mount.options)
        ]
        directories = _climb(group, fitting)
        if directories:
            found.append(directories)
    return found


def _own_groups(controller: str, proc: Path) -> Iterator[tuple[str, str]]:
    try:
        text = os.fsdecode((proc / "self" / "cgroup").read_bytes())
    except OSError:
        return
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controller in controllers.split(","):
            yield "cgroup", group
        elif number == "0" and not controllers:
            yield "cgroup2", group


def _climb(group: str, mounts: list[Mount]) -> list[Path]:
    """Directories from the own group to the mount point, by the mount that shows the most."""
    best: list[Path] = []
    placed = [(Path(mount.point), _below(group, mount.root)) for mount in mounts]
    fitting = [(point, below) for point, below in placed if below is not None]
    # No mount shows the group or an ancestor: what is mounted is most likely a container's own
    # group under another name, and to take a limit too many errs on the safe side.
    for point, below in fitting or [(point, "") for point, _ in placed]:
        directory = point / below
        # A group that is hidden from here: its nearest ancestor that can be seen still binds.
        while not directory.is_dir() and directory != point:
            directory = directory.parent
        chain = [directory]
        while chain[-1] != point:
            chain.append(chain[-1].parent)
        if point.is_dir() and len(chain) > len(best):
            best = chain
    return _without_free_ancestors(best)


def _below(group: str, root: str) -> str | None:
    """The group's path below a mounted root, or None where the root is no ancestor of the group.

    Both are told from the root of this process's cgroup namespace; ".." leads out of it. A root
    further out is an ancestor, but the names in between are hidden: the mount itself then stands
    for all of them.
    """
    inside = [part for part in group.split("/") if part]
    outside = [part for part in root.split("/") if part]
    while inside and outside and inside[0] == outside[0]:
        del inside[0], outside[0]
    if ".." in inside or any(part != ".." for part in outside):
        return None
    return "" if outside else "/".join(inside)


def _without_free_ancestors(directories: list[Path]) -> list[Path]:
    """Cut off v1 ancestors that do not account their children (use_hierarchy 0, old kernels)."""
    for depth, directory in enumerate(directories[1:], start=1):
        if _number(directory / "memory.use_hierarchy") == 0:
            return directories[:depth]
    return directories


def _quota(directory: Path) -> float | None:
    fields = _words(directory / "cpu.max")
    if fields is None:
        quota = _number(directory / "cpu.cfs_quota_us")
        period = _number(directory / "cpu.cfs_period_us")
    elif len(fields) == 2 and fields[0] != "max":
        quota, period = int(fields[0]), int(fields[1])
    else:
        return None
    if quota is None or period is None or quota <= 0 or period <= 0:  # v1: -1 is no quota
        return None
    return quota / period


def _machine_bytes(proc: Path) -> int | None:
    with suppress(UnavailableError):
        return read_fields(proc / "meminfo", wanted="the machine's memory").get("MemTotal")
    return None


def _system_available(proc: Path) -> int:
    path = proc / "meminfo"
    found = read_fields(path, wanted="the system's available memory cannot be read")
    if "MemAvailable" in found:
        return found["MemAvailable"]
    if "MemFree" in found:  # before Linux 3.14
        return found["MemFree"] + found.get("Cached", 0) - found.get("Shmem", 0)
    raise UnavailableError(
        "the system does not tell its available memory",
        path=str(path),
        remedy="run where /proc/meminfo has MemAvailable",
    )


def _statistics(directory: Path) -> dict[str, int]:
    found = {}
    for line in (_text(directory / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found


def _number(path: Path) -> int | None:
    words = _words(path)
    if not words:
        return None
    try:
        return int(words[0])
    except ValueError:  # "max"
        return None


def _words(path: Path) -> list[str] | None:
    text = _text(path)
    return None if text is None else text.split()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
