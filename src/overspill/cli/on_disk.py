"""A verb that writes gigabytes wants a directory on a disk."""

from __future__ import annotations

import shlex
from pathlib import Path

from overspill.errors import SpillDirError
from overspill.linux.mounts import filesystem_type, is_memory_backed


def require_disk(parent: Path, *, verb: str) -> None:
    """Refuse what is no directory, or lies in memory.

    Args:
        parent: The directory.
        verb: Whose --dir it is.

    Raises:
        SpillDirError: It is not fit.
    """
    if not parent.is_dir():
        raise SpillDirError(
            f"{parent} is not a directory",
            path=str(parent),
            remedy=f"mkdir -p {shlex.quote(str(parent))}, or choose another with --dir DIR",
        )
    if is_memory_backed(parent):
        raise SpillDirError(
            f"{parent.resolve()} is on {filesystem_type(parent)}, which is memory and not a disk: "
            "what is written there still counts against the memory limit",
            path=str(parent),
            remedy=f"choose a directory on a disk: overspill {verb} --dir DIR",
        )


def unwritable(parent: Path, error: OSError, *, verb: str) -> SpillDirError:
    """The error of a directory in which a verb can make none of its own."""
    return SpillDirError(
        f"{parent.resolve()} cannot be written: {error.strerror}",
        path=str(parent),
        errno=error.errno,
        remedy=f"choose another directory: overspill {verb} --dir DIR",
    )
