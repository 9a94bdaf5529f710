"""Limits of this process and rules of this kernel that decide what can be opened and mapped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What holds for this process now; None is no limit, or one that cannot be read.

    Attributes:
        open_files: Descriptors that it may have open.
        most_open_files: Up to where it may raise that itself.
        address_space_bytes: What it may map, together.
        file_size_bytes: The size up to which it may write a file.
        mappings: Mappings that it may have (vm.max_map_count).
        overcommit: The kernel's rule for memory that is promised (vm.overcommit_memory): 0 a guess,
            1 always, 2 never more than there is.
    """

    open_files: int | None
    most_open_files: int | None
    address_space_bytes: int | None
    file_size_bytes: int | None
    mappings: int | None
    overcommit: int | None


def process_limits(*, proc: Path = PROC) -> ProcessLimits:
    """Read the limits; two small files and three system calls.

    Args:
        proc: Where /proc is.
    """
    open_files, most = _limits("RLIMIT_NOFILE")
    return ProcessLimits(
        open_files=open_files,
        most_open_files=most,
        address_space_bytes=_limits("RLIMIT_AS")[0],
        file_size_bytes=_limits("RLIMIT_FSIZE")[0],
        mappings=_number(proc / "sys" / "vm" / "max_map_count"),
        overcommit=_number(proc / "sys" / "vm" / "overcommit_memory"),
    )


def _limits(name: str) -> tuple[int | None, int | None]:
    if not hasattr(resource, name):
        return None, None
    soft, hard = resource.getrlimit(getattr(resource, name))
    return _bounded(soft), _bounded(hard)


def _bounded(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
