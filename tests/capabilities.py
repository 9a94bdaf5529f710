"""What this machine lets a test do, found by trying it once.

``requires("memory_cgroup")`` above a test skips it where the capability is missing, and fails it
with OVERSPILL_REQUIRE_CAPABILITIES=1, so that a machine of the project's own never skips in
silence.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from overspill.errors import OverspillError
from overspill.linux.aio import reads_asynchronously
from overspill.linux.confine import MemoryGroup

requires = pytest.mark.requires
REQUIRED_VARIABLE = "OVERSPILL_REQUIRE_CAPABILITIES"


def demand(name: str) -> None:
    """Skip the running test, or fail it, where the capability is missing."""
    reason = missing(name)
    if reason is None:
        return
    told = f"this machine lacks {name!r}: {reason}"
    if os.environ.get(REQUIRED_VARIABLE) == "1":
        pytest.fail(told, pytrace=False)
    pytest.skip(told)


@functools.cache
def missing(name: str) -> str | None:
    """Why the capability is missing, or None; unknown names are a KeyError."""
    return _PROBES[name]()


def _memory_cgroup() -> str | None:
    try:
        with MemoryGroup.create(64 << 20, name_hint="overspill-probe") as group:
            done = subprocess.run(group.command(["true"]), capture_output=True, text=True)
    except OverspillError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr


def _loop_device() -> str | None:
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not installed"
    with tempfile.TemporaryDirectory() as place:
        image, point = Path(place, "image"), Path(place, "point")
        image.touch()
        os.truncate(image, 4 << 20)
        point.mkdir()
        return _tried(["mkfs.ext4", "-q", "-F", str(image)]) or _tried(
            # Within a mount namespace of its own: nothing to clean up whatever happens.
            ["unshare", "-m", "mount", "-o", "loop", str(image), str(point)]
        )


def _private_mount() -> str | None:
    return _tried(["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"])


def _root() -> str | None:
    return None if os.geteuid() == 0 else "not root"


def _unprivileged_user() -> str | None:
    """Root can become somebody who may not write everywhere."""
    return _tried(["setpriv", "--reuid=65534", "--clear-groups", "true"])


def _mincore() -> str | None:
    return None if Path("/proc/self/pagemap").exists() else "no /proc/self/pagemap"


def _aio() -> str | None:
    return None if reads_asynchronously() else "io_setup(2) is refused"


def _tried(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else f"{argv[0]}: {done.stderr.strip()}"


_PROBES: dict[str, Callable[[], str | None]] = {
    "memory_cgroup": _memory_cgroup,
    "loop_device": _loop_device,
    "private_mount": _private_mount,
    "root": _root,
    "unprivileged_user": _unprivileged_user,
    "mincore": _mincore,
    "aio": _aio,
}
