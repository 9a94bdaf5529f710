"""Fake /proc and control group trees: what a machine or container would show, under a directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

V1_NO_LIMIT = 9223372036854771712
MIB = 1 << 20


@dataclass
class FakeSystem:
    """Collects mounts and groups; ``proc`` is then what the readers take."""

    base: Path
    available_bytes: int = 64 << 30
    total_bytes: int = 128 << 30
    mounts: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    @property
    def proc(self) -> Path:
        proc = self.base / "proc"
        (proc / "self").mkdir(parents=True, exist_ok=True)
        (proc / "self" / "cgroup").write_text("\n".join(self.groups) + "\n")
        (proc / "self" / "mountinfo").write_text("\n".join(self.mounts) + "\n")
        told = {"MemTotal": self.total_bytes, "MemFree": 1024, "MemAvailable": self.available_bytes}
        lines = [f"{name}: {nbytes // 1024} kB\n" for name, nbytes in told.items()]
        (proc / "meminfo").write_text("".join(lines))
        return proc

    def mount(self, name: str, kind: str, *, root: str = "/", options: str = "rw") -> Path:
        """Mount a hierarchy at <base>/<name>, showing it from ``root`` on."""
        point = self.base / name
        point.mkdir(parents=True, exist_ok=True)
        number = 30 + len(self.mounts)
        escaped = str(point).replace(" ", "\\040")
        self.mounts.append(
            f"{number} 23 0:{number} {root} {escaped} rw,nosuid shared:9 - {kind} {kind} {options}"
        )
        return point


def v2_group(directory: Path, limit: int | str | None, usage: int = 0, **stat: int) -> Path:
    """Write the memory files of a v2 group; limit None writes no file, as at the root."""
    directory.mkdir(parents=True, exist_ok=True)
    if limit is not None:
        (directory / "memory.max").write_text(f"{limit}\n")
        (directory / "memory.current").write_text(f"{usage}\n")
    _write_stat(directory, stat)
    return directory


def v1_group(
    directory: Path, limit: int, usage: int = 0, *, inherited: int | None = None, **stat: int
) -> Path:
    """Write the memory files of a v1 group."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (directory / "memory.usage_in_bytes").write_text(f"{usage}\n")
    held = {f"total_{name}": value for name, value in stat.items()}
    _write_stat(directory, {"hierarchical_memory_limit": inherited or V1_NO_LIMIT, **held})
    return directory


def _write_stat(directory: Path, stat: Mapping[str, int]) -> None:
    text = "".join(f"{name} {value}\n" for name, value in stat.items())
    (directory / "memory.stat").write_text(text)
