"""What a figure depends on besides the code: the machine, its file system, the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

from overspill.errors import UnavailableError
from overspill.linux.cgroups import available_memory_bytes, usable_cpus
from overspill.linux.mounts import filesystem_type
from overspill.linux.read_ahead import read_ahead
from overspill.units import format_bytes

_PEERS = (
    "numpy",
    "torch_geometric",
    "tensordict",
    "safetensors",
    "joblib",
    "scipy",
    "duckdb",
    "polars",
    "ray",
)


def described(directory: Path) -> dict[str, object]:
    """Describe this machine, as seen from a directory.

    Args:
        directory: Where the benchmark writes.

    Returns:
        Names and values, for tables and JSON; None where the machine does not tell.
    """
    return {
        "processor": _processor(),
        "cpus": usable_cpus(),
        "load": round(os.getloadavg()[0], 1),
        "memory": _available(),
        "kernel": platform.release(),
        "file system": filesystem_type(directory),
        "read-ahead KiB": read_ahead_kib(directory),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(name) for name in _PEERS},
    }


def read_ahead_kib(directory: Path, *, sys: Path = Path("/sys")) -> int | None:
    """The read-ahead of the device under a directory, in KiB; None where it is not told."""
    held = read_ahead(directory, sys=sys)
    return None if held is None else held.nbytes >> 10


def _processor(*, proc: Path = Path("/proc")) -> str | None:
    try:
        lines = (proc / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else None


def _available() -> str | None:
    try:
        return format_bytes(available_memory_bytes())
    except UnavailableError:
        return None


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
