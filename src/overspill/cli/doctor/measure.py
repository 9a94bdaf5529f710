"""Looks at the machine, the container and the installation; changes nothing, leaves nothing."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from overspill.cli.doctor.machine import Machine, Memory, Processors, SharedMemory, SpillDirectory
from overspill.errors import SettingsError, SpillDirError, UnavailableError
from overspill.linux import libc
from overspill.linux.cgroups import (
    available_memory_bytes,
    binding_memory_group,
    binding_task_group,
    cpu_quota,
    kill_count,
)
from overspill.linux.disk_trial import try_disk
from overspill.linux.fetch import fetch_method
from overspill.linux.limits import process_limits
from overspill.linux.machine_memory import machine_memory
from overspill.linux.mounts import (
    filesystem_type,
    free_disk_bytes,
    is_copy_on_write,
    is_memory_backed,
    nearest_existing,
    total_disk_bytes,
)
from overspill.linux.read_ahead import read_ahead
from overspill.linux.surroundings import surroundings
from overspill.settings import Settings, current_settings, openmp_threads
from overspill.storage.spill_dirs import require_disk
from overspill.storage.spill_files import spare_bytes

PACKAGES = (
    "torch",
    "torch_geometric",
    "pyg_lib",
    "torch_sparse",
    "torch_scatter",
    "torch_cluster",
    "torch_spline_conv",
    "ogb",
)
# Where machines for this kind of work have their disks; the first with the most room is offered.
_USUAL_PLACES = ("/scratch", "/local", "/mnt", "/data", "/var/tmp", "~")


@dataclass(frozen=True)
class Places:
    """Where to look; tests put trees of their own there."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    shm: Path = Path("/dev/shm")
    root: Path = Path("/")


def measure(directory: Path | None = None, *, places: Places | None = None) -> Machine:
    """Measure all of it; some tens of milliseconds, and 1 MiB reserved on the disk for a moment.

    Args:
        directory: The spill directory to check; None is that of the settings, else the current one.
        places: Where to look.

    Returns:
        What was found; what could not be read is None in it.

    Raises:
        SpillDirError: No directory was given, and the current one is gone.
    """
    places = places or Places()
    settings, refusal = _settings()
    return Machine(
        supported=libc.SUPPORTED,
        kernel=platform.release(),
        surroundings=surroundings(proc=places.proc, root=places.root),
        memory=measure_memory(places.proc),
        shm=measure_shm(places.shm),
        spill_dir=_spill_directory(directory, settings, places),
        processors=measure_processors(places.proc),
        limits=process_limits(proc=places.proc),
        tasks=binding_task_group(places.proc),
        fetch_method=fetch_method(),
        versions={"python": platform.python_version(), **measure_versions()},
        settings=settings,
        settings_refusal=refusal,
    )


def measure_memory(proc: Path) -> Memory:
    """Read the control group that binds, or where none does the machine's memory."""
    available = None
    with suppress(UnavailableError):
        available = available_memory_bytes(proc)
    use, total = binding_memory_group(proc), None
    with suppress(UnavailableError):
        machine = machine_memory(proc=proc)
        use, total = use or machine, machine.limit_bytes
    held = Memory(total_bytes=total, available_bytes=available)
    if use is None:
        return held
    grouped = use.path != str(proc / "meminfo")
    return replace(
        held,
        group=use.path if grouped else None,
        limit_bytes=use.limit_bytes if grouped else None,
        usage_bytes=use.usage_bytes,
        anon_bytes=use.anon_bytes,
        shmem_bytes=use.shmem_bytes,
        clean_file_bytes=use.clean_file_bytes,
        dirty_bytes=use.dirty_bytes + use.writeback_bytes,
        kills=kill_count(Path(use.path)) if grouped else None,
    )


def measure_shm(shm: Path) -> SharedMemory:
    """Read the size of /dev/shm."""
    if not shm.is_dir():
        return SharedMemory(path=str(shm))
    with suppress(UnavailableError):
        return SharedMemory(
            path=str(shm), total_bytes=total_disk_bytes(shm), free_bytes=free_disk_bytes(shm)
        )
    return SharedMemory(path=str(shm))


def measure_processors(proc: Path) -> Processors:
    """Read the affinity mask, the quota and what OpenMP was told."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return Processors(allowed=allowed, quota=cpu_quota(proc), openmp_threads=openmp_threads())


def measure_versions() -> dict[str, str | None]:
    """Versions of the packages whose faults are known; imports none of them."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        found[package] = None
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def measure_spill_directory(held: SpillDirectory, places: Places) -> SpillDirectory:
    """Look at a directory's disk and try it.

    Args:
        held: The directory, and who chose it.
        places: Where to look.

    Returns:
        The same with all that was found. Nothing is tried in memory, nor where nothing can be made.
    """
    path = Path(held.path)
    held = replace(held, exists=os.path.exists(path))  # noqa: PTH110 (pathlib may raise)
    with suppress(UnavailableError):
        held = replace(
            held,
            kind=filesystem_type(path, proc=places.proc),
            memory_backed=is_memory_backed(path, proc=places.proc),
            copy_on_write=is_copy_on_write(path, proc=places.proc),
            total_bytes=total_disk_bytes(path),
            free_bytes=free_disk_bytes(path),
            spare_bytes=spare_bytes(path),
        )
    ahead = read_ahead(path, sys=places.sys, proc=places.proc)
    if ahead is not None:
        held = replace(held, read_ahead_bytes=ahead.nbytes, read_ahead_setting=str(ahead.setting))
    if held.memory_backed:
        return held
    try:
        require_disk(path, allow_cow_disk=True)
    except SpillDirError as error:
        return replace(held, refusal=error.message)
    trial = try_disk(nearest_existing(path))
    if not trial.writable:
        return replace(
            held, errno=trial.errno, refusal=f"no file can be made there: {trial.reason}"
        )
    return replace(
        held,
        reserves=trial.reserves,
        locks=trial.locks,
        reason=trial.reason,
        errno=trial.errno,
    )


def will_do(held: SpillDirectory) -> bool:
    """Whether spill files can be made there, without any permission to take a risk."""
    tried = held.reserves is not False and held.locks is not False
    return held.refusal is None and not held.memory_backed and not held.copy_on_write and tried


def _settings() -> tuple[Settings | None, str | None]:
    try:
        return current_settings(), None
    except SettingsError as error:
        return None, error.message


def _spill_directory(
    directory: Path | None, settings: Settings | None, places: Places
) -> SpillDirectory:
    held = measure_spill_directory(_chosen(directory, settings), places)
    return held if will_do(held) else replace(held, elsewhere=_elsewhere(held, places))


def _chosen(directory: Path | None, settings: Settings | None) -> SpillDirectory:
    if directory is None and settings is not None and settings.spill_dir is not None:
        return SpillDirectory(path=str(settings.spill_dir), chosen_by="OVERSPILL_DIR")
    try:
        # Not resolved: the person's own name for it is told, links and all.
        path = os.path.abspath(directory or Path())  # noqa: PTH100
    except FileNotFoundError as error:
        raise SpillDirError(
            "the current directory has been removed", remedy="cd to another, or give --dir DIR"
        ) from error
    return SpillDirectory(
        path=path, chosen_by="current directory" if directory is None else "--dir"
    )


def _elsewhere(held: SpillDirectory, places: Places) -> str | None:
    """The place with the most room that would do; none where no usual one does."""
    found: list[tuple[int, str]] = []
    there = nearest_existing(held.path)
    for name in _USUAL_PLACES:
        try:
            path = Path(name).expanduser()
        except RuntimeError:  # a user without a home
            continue
        # Not pathlib: it raises on what may not be looked at.
        if not os.path.isdir(path) or nearest_existing(path) == there:  # noqa: PTH112
            continue
        place = measure_spill_directory(SpillDirectory(path=str(path), chosen_by="--dir"), places)
        if will_do(place) and place.kind != "overlay" and place.spare_bytes is not None:
            found.append((place.spare_bytes, str(path / "overspill")))
    return max(found)[1] if found else None
