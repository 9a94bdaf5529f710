"""What follows from the spill directory, its disk and how the kernel reads from it."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Iterator

from overspill.cli.doctor.finding import Finding, Remedy, Severity
from overspill.cli.doctor.machine import Machine, SpillDirectory
from overspill.cli.doctor.remedies import another_directory, directory_to_set, what_fills
from overspill.cli.read_ahead_window import window_command, window_fault
from overspill.linux.mounts import nearest_existing
from overspill.storage.spill_files import FLOOR_SHARE
from overspill.units import format_bytes

_TRIAL_BYTES = 1 << 20
_LEAST_SPARE_BYTES = 1 << 30
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs"}
)


def disk_findings(machine: Machine) -> Iterator[Finding]:
    """Findings about the spill directory; of what stands against it, the first alone."""
    settings, held = machine.settings, machine.spill_dir
    if machine.settings_refusal is not None:
        variable = machine.settings_refusal.partition("=")[0]
        yield Finding(
            check="settings",
            severity="problem",
            measured=machine.settings_refusal,
            why="Every use of Overspill that reads its settings raises SettingsError.",
            remedy=Remedy(f"unset {variable}"),
        )
    obstacle = _obstacle(machine)
    if obstacle is not None:
        yield obstacle
        return
    if held.chosen_by == "--dir" and not held.exists:
        yield Finding(
            check="spill_dir",
            severity="problem",
            measured=f"{held.path} does not exist",
            why="What was looked at is the disk that it would be made on.",
            remedy=Remedy(f"mkdir -p {shlex.quote(held.path)}"),
        )
    if settings is not None and settings.spill_dir is None:
        yield Finding(
            check="spill_dir",
            severity="advice",
            measured="OVERSPILL_DIR is not set",
            why="Without it no tensor is spilled, and batches that do not fit /dev/shm have "
            "nowhere to go. For batches it is not enough: they also need "
            "OVERSPILL_SPILL_BATCHES=1, or overspill.spill_batches() in the program.",
            remedy=Remedy(f"export OVERSPILL_DIR={directory_to_set(held)}"),
        )
    yield from _room(machine)
    yield from _kind(machine)
    yield from _reading_ahead(machine)


def _obstacle(machine: Machine) -> Finding | None:
    held = machine.spill_dir
    settings = machine.settings
    remedy = another_directory(machine.surroundings, held.elsewhere)
    told: tuple[str, str, Remedy] | None = None
    if held.memory_backed:
        told = (
            f"{held.path} lies on {held.kind}, which is memory",
            "What is spilled there stays in memory and counts against its limit: the directory "
            "is refused.",
            remedy,
        )
    elif held.errno == errno.ENOSPC:
        told = _full(held)
    elif held.refusal is not None:
        told = held.refusal, "No spill file can be made there.", remedy
    elif held.copy_on_write and not (settings and settings.allow_cow_disk):
        told = (
            f"{held.path} lies on {held.kind}, a copy-on-write file system",
            "It may accept a reservation and fail when the blocks are written, which is a bus "
            "error: the directory is refused. The variable accepts the risk.",
            remedy if held.elsewhere else Remedy("export OVERSPILL_ALLOW_COW_DISK=1"),
        )
    elif held.reserves is False:
        told = (
            f"{held.path} on {held.kind}: {held.reason}",
            "A file whose blocks are not reserved dies of a bus error when the disk is full.",
            remedy,
        )
    elif held.locks is False:
        told = (
            f"{held.path} on {held.kind}: {held.reason}",
            "A lock tells runs that are alive from dead ones; without it none starts.",
            remedy,
        )
    if told is None:
        return None
    measured, why, what_to_do = told
    return Finding(
        check="spill_dir", severity="problem", measured=measured, why=why, remedy=what_to_do
    )


def _full(held: SpillDirectory) -> tuple[str, str, Remedy]:
    free = held.free_bytes or 0
    # Bytes enough, and no file can be made: their number is limited as well.
    by_number = held.refusal is not None and free > _TRIAL_BYTES
    there = held.path if held.exists else str(nearest_existing(held.path))
    why = "A spill file has its blocks reserved before anything is written, and none are left."
    if by_number:
        why = "The disk has bytes left and no room for another file: df -i."
    if held.elsewhere is not None:
        why += f" There is room on another disk: OVERSPILL_DIR={shlex.quote(held.elsewhere)}."
    return (
        f"the disk of {held.path} is full: {format_bytes(free)} free of "
        f"{format_bytes(held.total_bytes or 0)}",
        why,
        what_fills(there, by_number=by_number),
    )


def _room(machine: Machine) -> Iterator[Finding]:
    held, memory = machine.spill_dir, machine.memory
    spare = held.spare_bytes
    if spare is None:
        return
    wanted = machine.settings.disk_limit_bytes if machine.settings else None
    limit = memory.limit_bytes or memory.total_bytes or 0
    severity: Severity = "advice"
    if spare < _LEAST_SPARE_BYTES:
        severity = "problem"
        why = f"{100 // FLOOR_SHARE}% of a disk stay free whatever happens; the rest is used up."
    elif spare < limit:
        why = (
            f"That is less than the memory ({format_bytes(limit)}): what does not fit there does "
            "not fit here."
        )
    elif wanted is not None and wanted > spare:
        why = f"OVERSPILL_DISK_LIMIT promises {format_bytes(wanted)}: the disk is full before."
    else:
        return
    path = shlex.quote(held.path)
    yield Finding(
        check="spill_dir",
        severity=severity,
        measured=f"{held.path} may take {format_bytes(max(0, spare))} of "
        f"{format_bytes(held.total_bytes or 0)}",
        why=why,
        remedy=Remedy(f"overspill clean {path}; du -xh {path} | sort -h | tail"),
    )


def _kind(machine: Machine) -> Iterator[Finding]:
    held = machine.spill_dir
    if held.kind == "overlay" and not held.memory_backed:
        yield Finding(
            check="spill_dir",
            severity="advice",
            measured=f"{held.path} lies in the container's own layer (overlay)",
            why="The layer has the size that the runtime gave it and is gone with the container; "
            "Kubernetes evicts a pod that fills it.",
            remedy=another_directory(machine.surroundings, held.elsewhere),
        )
    if held.kind in _NETWORK or held.kind.startswith("fuse"):
        yield Finding(
            check="spill_dir",
            severity="advice",
            measured=f"{held.path} lies on {held.kind}",
            why="Each page that is not in memory is a journey over the network, or through "
            "another program.",
            remedy=another_directory(machine.surroundings, held.elsewhere),
        )


def _reading_ahead(machine: Machine) -> Iterator[Finding]:
    held = machine.spill_dir
    ahead, setting = held.read_ahead_bytes, held.read_ahead_setting
    if ahead is None or setting is None:
        return
    why = window_fault(ahead)
    if why is None:
        return
    yield Finding(
        check="spill_dir",
        severity="advice",
        measured=f"the disk of {held.path} is read {format_bytes(ahead)} ahead",
        why=why,
        remedy=Remedy(window_command(setting)),
    )
