"""Remedies as they are pasted where this process runs: a container's option, a pod's line, a shell.

The name of an image, and of a command, is the reader's: IMAGE and COMMAND stand for them.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from overspill.cli.doctor.finding import Remedy
from overspill.cli.doctor.machine import SpillDirectory
from overspill.cli.doctor.measure import will_do
from overspill.linux.surroundings import Surroundings

_GIB = 1 << 30


def sized(nbytes: int, *, gib: str = "g", mib: str = "m") -> str:
    """A size as an option takes it, rounded up: "8g", "512m"."""
    if nbytes >= _GIB:
        return f"{-(-nbytes // _GIB)}{gib}"
    return f"{-(-nbytes // (1 << 20))}{mib}"


def more_memory(place: Surroundings, group: str | None, wanted_bytes: int) -> Remedy:
    """Raise the memory limit.

    Args:
        place: Where this process runs.
        group: The directory of the control group that binds.
        wanted_bytes: The limit to set.
    """
    if place == "kubernetes":
        size = sized(wanted_bytes, gib="Gi", mib="Mi")
        return Remedy(f"resources: {{limits: {{memory: {size}}}}}", "yaml")
    if place in ("docker", "podman"):
        return Remedy(f"{place} run --memory={sized(wanted_bytes)} IMAGE")
    return Remedy(_host_limit(Path(group or "/sys/fs/cgroup"), wanted_bytes))


def _host_limit(group: Path, wanted_bytes: int) -> str:
    size = sized(wanted_bytes, gib="G", mib="M")
    if any(part.startswith(("slurm", "job_")) for part in group.parts):
        return f"sbatch --mem={size} COMMAND"
    if group.suffix in (".service", ".scope", ".slice"):
        return _unit_property(group, f"MemoryMax={size}")
    name = "memory.limit_in_bytes" if "memory" in group.parts else "memory.max"
    return f"echo {wanted_bytes} | sudo tee {shlex.quote(str(group / name))}"


def _unit_property(group: Path, setting: str) -> str:
    # A user's own units are his manager's, which the system's does not know.
    own = any(part.startswith("user@") for part in group.parts[:-1])
    manager = "systemctl --user" if own else "sudo systemctl"
    return f"{manager} set-property {shlex.quote(group.name)} {setting}"


def larger_shm(place: Surroundings, wanted_bytes: int) -> Remedy:
    """Give /dev/shm this size."""
    if place == "kubernetes":
        size = sized(wanted_bytes, gib="Gi", mib="Mi")
        return Remedy(
            f"volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: {size}}}}}]\n"
            "volumeMounts: [{name: shm, mountPath: /dev/shm}]",
            "yaml",
        )
    if place in ("docker", "podman"):
        return Remedy(f"{place} run --shm-size={sized(wanted_bytes)} IMAGE")
    return Remedy(f"sudo mount -o remount,size={sized(wanted_bytes)} /dev/shm")


def another_directory(place: Surroundings, elsewhere: str | None) -> Remedy:
    """Spill to another directory: one that was found, or a volume."""
    if elsewhere is not None:
        return Remedy(f"export OVERSPILL_DIR={shlex.quote(elsewhere)}")
    if place == "kubernetes":
        return Remedy(
            "volumes: [{name: spill, emptyDir: {}}]\n"
            "volumeMounts: [{name: spill, mountPath: /spill}]\n"
            "env: [{name: OVERSPILL_DIR, value: /spill}]",
            "yaml",
        )
    if place in ("docker", "podman"):
        return Remedy(f"{place} run -v /var/tmp:/spill -e OVERSPILL_DIR=/spill IMAGE")
    return Remedy("export OVERSPILL_DIR=/path/on/a/local/disk")


def directory_to_set(held: SpillDirectory) -> str:
    """What OVERSPILL_DIR may be set to: a directory made for it, quoted for a shell."""
    if not will_do(held):
        return shlex.quote(held.elsewhere or "/path/on/a/disk")
    # Where nobody chose it, it is where somebody works.
    below = "overspill-spill" if held.chosen_by == "current directory" else ""
    return shlex.quote(str(Path(held.path) / below))


def what_fills(path: str, *, by_number: bool) -> Remedy:
    """Find what fills the disk of an existing path: with bytes, or with the number of files."""
    path, what = shlex.quote(path), "--inodes" if by_number else "-h"
    mount = f'"$(df --output=target {path} | tail -n 1)"'
    order = "sort -n" if by_number else "sort -h"
    return Remedy(f"overspill clean {path}; du -x {what} {mount} | {order} | tail")


def more_open_files(place: Surroundings, wanted: int, most: int | None) -> Remedy:
    """Raise the limit on open files, as far as this process may by itself, or from outside."""
    if most is None or most >= wanted:
        return Remedy(f"ulimit -n {wanted}")
    if place in ("docker", "podman"):
        return Remedy(f"{place} run --ulimit nofile={wanted}:{wanted} IMAGE")
    return Remedy(f"sudo prlimit --pid $$ --nofile={wanted}:{wanted}")


def more_tasks(place: Surroundings, group: str, wanted: int) -> Remedy:
    """Let a control group have this many processes and threads; of a pod, its node decides."""
    if place == "kubernetes":
        return Remedy(f"podPidsLimit: {wanted}  # the node's KubeletConfiguration", "yaml")
    if place in ("docker", "podman"):
        return Remedy(f"{place} run --pids-limit={wanted} IMAGE")
    path = Path(group)
    if path.suffix in (".service", ".scope", ".slice"):
        return Remedy(_unit_property(path, f"TasksMax={wanted}"))
    return Remedy(f"echo {wanted} | sudo tee {shlex.quote(str(path / 'pids.max'))}")


def may_advise(place: Surroundings) -> Remedy:
    """Give the right to process_madvise, which older kernels tie to CAP_SYS_NICE."""
    if place == "kubernetes":
        return Remedy("securityContext: {capabilities: {add: [SYS_NICE]}}", "yaml")
    if place in ("docker", "podman"):
        return Remedy(f"{place} run --cap-add=SYS_NICE IMAGE")
    return Remedy(
        "sudo setpriv --reuid=$(id -u) --regid=$(id -g) --init-groups "
        "--inh-caps=+sys_nice --ambient-caps=+sys_nice COMMAND"
    )
