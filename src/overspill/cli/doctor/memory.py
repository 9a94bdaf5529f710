"""What follows from the memory limit, from what eats it, and from the size of /dev/shm."""

from __future__ import annotations

from collections.abc import Iterator

from overspill.cli.doctor.finding import Finding, Remedy, Severity
from overspill.cli.doctor.machine import Machine, Memory
from overspill.cli.doctor.remedies import directory_to_set, larger_shm, more_memory, sized
from overspill.units import format_bytes

_MIB, _GIB = 1 << 20, 1 << 30
# A process with torch and PyG holds 280 MiB; the training program and one batch come on top.
_LEAST_AVAILABLE_BYTES = 512 * _MIB
_LEAST_LIMIT_BYTES = 2 * _GIB
# Of the limit: what cannot be dropped when a program asks for memory.
_MUCH = 0.25
# A batch of 1,024 seeds with fan-outs 15, 10, 5 and rows of 512 B has 430 MiB at the most, and each
# worker has two on their way.
_TOO_SMALL_SHM_BYTES, _SMALL_SHM_BYTES = 256 * _MIB, _GIB
_LARGE_SHM_BYTES = 8 * _GIB


def memory_findings(machine: Machine) -> Iterator[Finding]:
    """Findings about memory and its control group."""
    memory = machine.memory
    available = memory.available_bytes
    if available is not None and available < _LEAST_AVAILABLE_BYTES:
        most, held = _largest(memory)
        where = f" under the limit of {_size(memory.limit_bytes)}" if memory.limit_bytes else ""
        yield Finding(
            check="memory",
            severity="problem",
            measured=f"{_size(available)} of memory can still be had{where}; the most is held by "
            f"{most}, {_size(held)}",
            why="A process with torch and PyG takes 280 MiB, each spawned loader worker again as "
            "much. What goes over is killed with signal 9, without a message.",
            remedy=_relief(machine, most),
        )
    if memory.kills:
        yield Finding(
            check="memory",
            severity="advice",
            measured=f"the kernel has killed {memory.kills:,} "
            f"{'process' if memory.kills == 1 else 'processes'} here for want of memory",
            why="Memory that top shows as free is the machine's, not this group's.",
            remedy=_raised(machine),
        )
    yield from _held_fast(machine)
    yield from _idle_setting(machine)


def _held_fast(machine: Machine) -> Iterator[Finding]:
    """What the kernel cannot take back at once when the group needs memory."""
    memory = machine.memory
    limit = memory.limit_bytes
    if limit is None:
        return
    if (memory.dirty_bytes or 0) > _MUCH * limit:
        yield Finding(
            check="memory",
            severity="advice",
            measured=f"{_size(memory.dirty_bytes)} of the {_size(limit)} are file pages not yet "
            "written",
            why="They cannot be dropped before they are on the disk, and control groups of "
            "version 1 do not slow a writer down: a fast one is killed.",
            remedy=Remedy("sync"),
        )
    if (memory.shmem_bytes or 0) > _MUCH * limit:
        yield Finding(
            check="memory",
            severity="advice",
            measured=f"{_size(memory.shmem_bytes)} of the {_size(limit)} are shared memory",
            why="Files in /dev/shm and other tmpfs are memory until they are removed, also those "
            "that a killed process left behind.",
            remedy=_contents(machine),
        )


def _idle_setting(machine: Machine) -> Iterator[Finding]:
    wanted = machine.settings.memory_limit_bytes if machine.settings else None
    limit = machine.memory.limit_bytes or machine.memory.total_bytes
    if wanted is None or limit is None or wanted <= limit:
        return
    yield Finding(
        check="settings",
        severity="advice",
        measured=f"OVERSPILL_MEMORY_LIMIT is {_size(wanted)}, and there are {_size(limit)}",
        why="It limits nothing: plans are made with what there is.",
        remedy=Remedy("unset OVERSPILL_MEMORY_LIMIT"),
    )


def shm_findings(machine: Machine) -> Iterator[Finding]:
    """Findings about /dev/shm."""
    shm, memory = machine.shm, machine.memory
    if shm.total_bytes is None or shm.free_bytes is None:
        yield Finding(
            check="shm",
            severity="problem",
            measured=f"{shm.path} is missing, or cannot be looked at",
            why="Tensors are shared between processes through it: loader workers fail.",
            remedy=Remedy(f"sudo mkdir -p {shm.path} && sudo mount -t tmpfs tmpfs {shm.path}"),
        )
        return
    if shm.total_bytes < _SMALL_SHM_BYTES:
        yield _small_shm(machine)
    elif shm.free_bytes < _TOO_SMALL_SHM_BYTES:
        yield Finding(
            check="shm",
            severity=_severity_of_full(machine),
            measured=f"{shm.path} has {_size(shm.free_bytes)} free of {_size(shm.total_bytes)}",
            why="Batches of loader workers go through it. What killed processes left there stays "
            "until it is removed.",
            remedy=_contents(machine),
        )
    limit = memory.limit_bytes
    if limit is not None and shm.total_bytes > limit:
        yield Finding(
            check="shm",
            severity="advice",
            measured=f"{shm.path} may hold {_size(shm.total_bytes)}, and the memory limit is "
            f"{_size(limit)}",
            why="Its bytes count against the limit: who fills it is killed, and never told that "
            "there is no space.",
            remedy=_capped_shm(machine, shm.total_bytes, limit),
        )


def _small_shm(machine: Machine) -> Finding:
    total = machine.shm.total_bytes or 0
    limit = machine.memory.limit_bytes or machine.memory.total_bytes or 2 * _LARGE_SHM_BYTES
    return Finding(
        check="shm",
        severity=_severity_of_full(machine) if total < _TOO_SMALL_SHM_BYTES else "advice",
        measured=f"{machine.shm.path} has {_size(total)} in all",
        why="Batches of loader workers go through it, two a worker, up to some hundred MiB each: "
        f"a DataLoader that fills it dies of an error. {_through_files(machine)}",
        remedy=larger_shm(machine.surroundings, max(_GIB, min(_LARGE_SHM_BYTES, limit // 2))),
        otherwise=_export(machine),
    )


def _through_files(machine: Machine) -> str:
    if _export(machine) is None:
        return (
            "In programs that import overspill, those that do not fit go through files in "
            "OVERSPILL_DIR, as is set."
        )
    return (
        "Where its size cannot be changed, let those that do not fit go through files: with both "
        "OVERSPILL_DIR and OVERSPILL_SPILL_BATCHES=1, in a program that says import overspill."
    )


def _export(machine: Machine) -> Remedy | None:
    """What is still to be set for batches to go through files."""
    settings, missing = machine.settings, []
    if settings is None or settings.spill_dir is None:
        missing.append(f"OVERSPILL_DIR={directory_to_set(machine.spill_dir)}")
    if settings is None or not settings.spill_batches:
        missing.append("OVERSPILL_SPILL_BATCHES=1")
    return Remedy(f"export {' '.join(missing)}") if missing else None


def _severity_of_full(machine: Machine) -> Severity:
    settings = machine.settings
    through_files = settings is not None and settings.spill_batches and settings.spill_dir
    return "advice" if through_files else "problem"


def _capped_shm(machine: Machine, total: int, limit: int) -> Remedy:
    if machine.surroundings == "host":
        return Remedy(
            f"export OVERSPILL_SHM_RESERVE_BYTES={sized(total - limit // 2, gib='GiB', mib='MiB')}"
        )
    return larger_shm(machine.surroundings, limit // 2)


def _relief(machine: Machine, most: str) -> Remedy:
    limit = machine.memory.limit_bytes
    if limit is not None and limit < 2 * _LEAST_AVAILABLE_BYTES:  # nothing to give back would do
        return _raised(machine)
    if most == "shared memory":
        return _contents(machine)
    if most == "unwritten file pages":
        return Remedy("sync")
    if limit is None:
        return Remedy("ps -eo pid,rss,args --sort=-rss | head")
    return _raised(machine)


def _raised(machine: Machine) -> Remedy:
    limit = machine.memory.limit_bytes or 0
    wanted = max(_LEAST_LIMIT_BYTES, 2 * limit)
    return more_memory(machine.surroundings, machine.memory.group, wanted)


def _contents(machine: Machine) -> Remedy:
    return Remedy(f"du -ah {machine.shm.path} | sort -h | tail")


def _largest(memory: Memory) -> tuple[str, int]:
    held = {
        "anonymous memory": memory.anon_bytes,
        "shared memory": memory.shmem_bytes,
        "unwritten file pages": memory.dirty_bytes,
    }
    return max(((name, nbytes or 0) for name, nbytes in held.items()), key=lambda one: one[1])


def _size(nbytes: int | None) -> str:
    return format_bytes(nbytes or 0)
