"""What follows from the system, its limits on this process, its processors and its kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator

from overspill.cli.doctor.finding import Finding, Remedy
from overspill.cli.doctor.machine import Machine
from overspill.cli.doctor.remedies import may_advise, more_open_files, more_tasks
from overspill.units import format_bytes

_FEWEST_FILES, _GOOD_FILES, _MANY_FILES = 256, 4096, 65536
_DEFAULT_MAPPINGS = 65530
_FEWEST_TASKS, _GOOD_TASKS, _MANY_TASKS = 64, 512, 8192
_NEVER_OVERCOMMIT = 2


def process_findings(machine: Machine) -> Iterator[Finding]:
    """Findings about the system and this process."""
    if not machine.supported:
        yield Finding(
            check="system",
            severity="problem",
            measured=f"this is not 64-bit Linux ({machine.kernel})",
            why="Files cannot be mapped here: tensors stay in memory, and datasets neither build "
            "nor open.",
            remedy=Remedy('docker run -it --shm-size=8g -v "$PWD":/app -w /app python:3.11 bash'),
        )
    yield from _open_files(machine)
    yield from _mappings(machine)
    yield from _sizes(machine)
    yield from _threads(machine)
    yield from _tasks(machine)
    if machine.supported and machine.fetch_method != "process_madvise":
        yield Finding(
            check="kernel",
            severity="advice",
            measured=f"process_madvise is not allowed; pages are asked for by "
            f"{machine.fetch_method}",
            why="That takes a call for each range of pages instead of one for a thousand.",
            remedy=may_advise(machine.surroundings),
        )


def _open_files(machine: Machine) -> Iterator[Finding]:
    count, most = machine.limits.open_files, machine.limits.most_open_files
    if count is None or count >= _GOOD_FILES:
        return
    wanted = _MANY_FILES
    if most is not None and _GOOD_FILES <= most < wanted:
        wanted = most
    yield Finding(
        check="limits",
        severity="problem" if count < _FEWEST_FILES else "advice",
        measured=f"{count:,} files may be open at a time",
        why="torch keeps one open for each tensor that a worker sends, and calls the limit "
        '"unable to open shared memory object" or "received 0 items of ancdata".',
        remedy=more_open_files(machine.surroundings, wanted, most),
    )


def _mappings(machine: Machine) -> Iterator[Finding]:
    count = machine.limits.mappings
    if count is not None and count < _DEFAULT_MAPPINGS:
        yield Finding(
            check="limits",
            severity="advice",
            measured=f"{count:,} mappings are allowed a process",
            why="Each shared or mapped tensor takes one; past the limit mmap says that there is "
            "no memory.",
            remedy=Remedy("sudo sysctl -w vm.max_map_count=262144"),
        )
    if machine.limits.overcommit == _NEVER_OVERCOMMIT:
        yield Finding(
            check="kernel",
            severity="problem",
            measured="vm.overcommit_memory is 2",
            why="Mapped features count as memory to be had, although they are a file: what is "
            "larger than memory cannot be mapped, and fork of a large process fails.",
            remedy=Remedy("sudo sysctl -w vm.overcommit_memory=0"),
        )


def _sizes(machine: Machine) -> Iterator[Finding]:
    space, size = machine.limits.address_space_bytes, machine.limits.file_size_bytes
    if space is not None:
        yield Finding(
            check="limits",
            severity="problem",
            measured=f"the address space is limited to {format_bytes(space)} (ulimit -v)",
            why="Mapped files count, read or not: opening a dataset larger than that fails.",
            remedy=Remedy("ulimit -v unlimited"),
        )
    if size is not None:
        yield Finding(
            check="limits",
            severity="problem",
            measured=f"no file may be larger than {format_bytes(size)} (ulimit -f)",
            why="Spill files, datasets and shared memory are files, as large as what they hold.",
            remedy=Remedy("ulimit -f unlimited"),
        )


def _tasks(machine: Machine) -> Iterator[Finding]:
    held = machine.tasks
    if held is None or held.left >= _GOOD_TASKS:
        return
    yield Finding(
        check="limits",
        severity="problem" if held.left < _FEWEST_TASKS else "advice",
        measured=f"{held.left:,} more processes and threads can be started, of {held.limit:,}",
        why="Each worker is a process with threads of its own, and past the limit none starts: "
        '"can\'t start new thread", "Resource temporarily unavailable".',
        remedy=more_tasks(machine.surroundings, held.path, max(_MANY_TASKS, 2 * held.limit)),
    )


def _threads(machine: Machine) -> Iterator[Finding]:
    held = machine.processors
    if held.quota is None or math.ceil(held.quota) >= held.allowed:
        return
    usable = max(1, math.ceil(held.quota))
    if held.openmp_threads is not None and held.openmp_threads <= usable:
        return
    started = held.openmp_threads or held.allowed
    yield Finding(
        check="cpu",
        severity="advice",
        measured=f"the time of {held.quota:g} CPUs is allowed, on {held.allowed} CPUs",
        why=f"torch starts {started} threads, which use the time up together and are then all "
        "stopped until the next period.",
        remedy=Remedy(f"export OMP_NUM_THREADS={usable}"),
    )
