"""Tries on a disk what spill files need of it: to be made, to reserve blocks, to be locked.

What a file system says it is does not tell: network and layered ones differ by version and mount.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from overspill.errors import DiskRefusedError, UnavailableError
from overspill.linux.blocks import reserve_blocks
from overspill.linux.locks import lock_exclusive

_TRIAL_BYTES = 1 << 20


@dataclass(frozen=True)
class DiskTrial:
    """What a directory's disk did; a step that was not reached is None.

    Attributes:
        writable: Whether a file could be made.
        reserves: Whether blocks could be reserved.
        locks: Whether a file could be locked.
        reason: Why the first step failed that did.
        errno: The system's error number of that failure.
    """

    writable: bool
    reserves: bool | None = None
    locks: bool | None = None
    reason: str | None = None
    errno: int | None = None


def try_disk(directory: Path) -> DiskTrial:
    """Make a file without a name, reserve 1 MiB of it and lock it; nothing is left.

    Args:
        directory: An existing directory.
    """
    try:
        # Where the file system has no nameless files, Python removes the name at once.
        with tempfile.TemporaryFile(prefix="overspill-trial-", dir=directory) as file:
            return _tried(file.fileno(), directory)
    except OSError as error:
        return DiskTrial(False, reason=_told(error), errno=error.errno)


def _tried(fd: int, directory: Path) -> DiskTrial:
    try:
        reserve_blocks(fd, _TRIAL_BYTES, path=str(directory))
    except (DiskRefusedError, UnavailableError) as error:
        return DiskTrial(True, False, reason=error.message, errno=error.errno)
    try:
        lock_exclusive(fd)
    except UnavailableError as error:
        return DiskTrial(True, True, False, error.message, error.errno)
    return DiskTrial(True, True, True)


def _told(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
