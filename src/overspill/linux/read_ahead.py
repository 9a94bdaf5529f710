"""How far the kernel reads ahead on the device under a path, and where that is set.

Each fault of a mapped file that misses the cache reads a window of this size; WILLNEED requests are
cut at it too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from overspill.errors import UnavailableError
from overspill.linux.mounts import PROC, backing_directory

SYS = Path("/sys")


@dataclass(frozen=True)
class ReadAhead:
    """A device's read-ahead window.

    Attributes:
        nbytes: Its size.
        setting: The file that holds it, in KiB; root may write it.
    """

    nbytes: int
    setting: str


def read_ahead(path: str | Path, *, sys: Path = SYS, proc: Path = PROC) -> ReadAhead | None:
    """Read the window of the device under a path.

    Args:
        path: A path, existing or not.
        sys: Where /sys is.
        proc: Where /proc is.

    Returns:
        The window, of an overlay that of the disk its upper directory lies on; None where the file
        system has no block device of its own (btrfs, network, an overlay seen from within its
        container), or /sys does not show it.
    """
    try:
        device = backing_directory(path, proc=proc).stat().st_dev
    except (OSError, UnavailableError):
        return None
    entry = sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    # A partition has no queue of its own; the directory above it is its disk.
    for place in (entry.resolve(), entry.resolve().parent):
        setting = place / "queue" / "read_ahead_kb"
        try:
            return ReadAhead(int(setting.read_text()) << 10, str(setting))
        except (OSError, ValueError):
            continue
    return None
