"""Machines for the doctor: one that is well, from which tests take something away."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from overspill.cli.doctor.machine import Machine, Memory, Processors, SharedMemory, SpillDirectory
from overspill.linux.limits import ProcessLimits
from overspill.settings import Settings

MIB, GIB = 1 << 20, 1 << 30

WELL = Machine(
    kernel="6.18.0",
    memory=Memory(
        total_bytes=64 * GIB,
        available_bytes=30 * GIB,
        group="/sys/fs/cgroup/job",
        limit_bytes=32 * GIB,
        usage_bytes=3 * GIB,
        anon_bytes=GIB,
        shmem_bytes=0,
        clean_file_bytes=2 * GIB,
        dirty_bytes=16 * MIB,
        kills=0,
    ),
    shm=SharedMemory(path="/dev/shm", total_bytes=16 * GIB, free_bytes=16 * GIB),
    spill_dir=SpillDirectory(
        path="/spill",
        chosen_by="OVERSPILL_DIR",
        kind="ext4",
        total_bytes=1000 * GIB,
        free_bytes=600 * GIB,
        spare_bytes=550 * GIB,
        reserves=True,
        locks=True,
        read_ahead_bytes=128 << 10,
        read_ahead_setting="/sys/dev/block/8:0/queue/read_ahead_kb",
    ),
    processors=Processors(allowed=8),
    limits=ProcessLimits(
        open_files=65536,
        most_open_files=65536,
        address_space_bytes=None,
        file_size_bytes=None,
        mappings=65530,
        overcommit=0,
    ),
    versions={"python": "3.11.9", "torch": "2.13.0+cpu", "torch_geometric": None},
    settings=Settings(spill_dir="/spill"),  # type: ignore[arg-type]
)


def machine(**parts: Any) -> Machine:
    """The machine that is well with some of its parts' fields replaced, each given as a dict."""
    changed: dict[str, Any] = {}
    for name, part in parts.items():
        held = getattr(WELL, name)
        whole = not isinstance(part, dict) or not is_dataclass(held)
        changed[name] = part if whole else replace(held, **part)
    return replace(WELL, **changed)
