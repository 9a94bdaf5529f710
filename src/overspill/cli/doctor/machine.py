"""What the doctor measures: plain records, so that tables of them test what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from overspill.linux.cgroups import TaskUse
from overspill.linux.limits import ProcessLimits
from overspill.linux.surroundings import Surroundings
from overspill.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory, of the control group that binds or else of the machine; None is not told.

    Attributes:
        total_bytes: The machine's memory, as top shows it.
        available_bytes: What can still be had, by the tightest group or the machine.
        group: The directory of the group with the least headroom; None where none has a limit.
        limit_bytes: Its limit.
        usage_bytes: All that is in use, of it or of the machine; the rest likewise.
        anon_bytes: Anonymous memory.
        shmem_bytes: Shared memory: files in /dev/shm and tmpfs.
        clean_file_bytes: Page cache that can be dropped at once.
        dirty_bytes: Page cache that must be written first, or is being written.
        kills: Processes that the kernel has killed in the group for want of memory.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    group: str | None = None
    limit_bytes: int | None = None
    usage_bytes: int | None = None
    anon_bytes: int | None = None
    shmem_bytes: int | None = None
    clean_file_bytes: int | None = None
    dirty_bytes: int | None = None
    kills: int | None = None


@dataclass(frozen=True, kw_only=True)
class SharedMemory:
    """/dev/shm.

    Attributes:
        path: Where it is looked for.
        total_bytes: Its size; None where there is none, or it cannot be looked at.
        free_bytes: What is free of it.
    """

    path: str
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class SpillDirectory:
    """The directory that spill files would go to, and its disk; None is not told.

    Attributes:
        path: Absolute.
        chosen_by: "--dir", "OVERSPILL_DIR" or "current directory".
        exists: Whether it is there; what is missing is made by the first spill.
        kind: The file system's type.
        memory_backed: Whether it is memory in disguise.
        copy_on_write: Whether its reservations may be broken.
        total_bytes: The disk's size.
        free_bytes: What an ordinary user may still write.
        spare_bytes: What spill files may take of it: a share of the disk is always left free.
        refusal: Why nothing can be made there.
        reserves: Whether blocks can be reserved; tried.
        locks: Whether files can be locked; tried.
        reason: Why the trial failed.
        errno: The system's error number of that failure.
        read_ahead_bytes: How far the kernel reads ahead.
        read_ahead_setting: The file that sets it, in KiB.
        elsewhere: Another directory here, on a disk that would do; looked for where this will not.
    """

    path: str
    chosen_by: Literal["--dir", "OVERSPILL_DIR", "current directory"]
    exists: bool = True
    kind: str = "unknown"
    memory_backed: bool = False
    copy_on_write: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None
    spare_bytes: int | None = None
    refusal: str | None = None
    reserves: bool | None = None
    locks: bool | None = None
    reason: str | None = None
    errno: int | None = None
    read_ahead_bytes: int | None = None
    read_ahead_setting: str | None = None
    elsewhere: str | None = None


@dataclass(frozen=True, kw_only=True)
class Processors:
    """The processors that this process may use.

    Attributes:
        allowed: How many it may run on.
        quota: CPUs' worth of time that its control group allows; None without a quota.
        openmp_threads: How many threads OMP_NUM_THREADS asks for.
    """

    allowed: int
    quota: float | None = None
    openmp_threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """All that was measured.

    Attributes:
        supported: Whether this is 64-bit Linux, where files can be mapped.
        kernel: The kernel's release.
        surroundings: The container, or the host.
        memory: Memory and its control group.
        shm: /dev/shm.
        spill_dir: The spill directory.
        processors: Processors and their quota.
        limits: Limits of the process.
        tasks: Processes and threads of the group that has the fewest left; None without a limit.
        fetch_method: How pages can be asked for ahead of their use.
        versions: Package to version; None where it is not installed.
        settings: The settings in force; None where a variable cannot be understood.
        settings_refusal: Why it cannot.
    """

    supported: bool = True
    kernel: str
    surroundings: Surroundings = "host"
    memory: Memory
    shm: SharedMemory
    spill_dir: SpillDirectory
    processors: Processors
    limits: ProcessLimits
    tasks: TaskUse | None = None
    fetch_method: str = "process_madvise"
    versions: Mapping[str, str | None] = field(default_factory=dict)
    settings: Settings | None = None
    settings_refusal: str | None = None
