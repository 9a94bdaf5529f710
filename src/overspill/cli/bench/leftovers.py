"""What benches that were killed have left: told by a lock that the kernel drops, never removed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from overspill.errors import UnavailableError
from overspill.linux.locks import lock_exclusive, lock_shared
from overspill.units import format_bytes

PREFIX = "overspill-bench-"
_LOCK = "running"


@dataclass(frozen=True)
class Leftovers:
    """Directories of benches that run no more.

    Attributes:
        sizes: Directory -> the bytes that its files hold on the disk.
    """

    sizes: dict[Path, int]

    def told(self) -> str:
        """Each with its size."""
        return ", ".join(f"{path} ({format_bytes(size)})" for path, size in self.sizes.items())

    def command(self) -> str:
        """What removes them."""
        return "rm -r " + " ".join(shlex.quote(str(path)) for path in self.sizes)


@contextmanager
def marked_running(work: Path) -> Iterator[None]:
    """Hold the lock of a bench's directory for the span.

    Raises:
        UnavailableError: The file system has no locks.
    """
    with (work / _LOCK).open("xb") as file:
        # Waits for another bench that looks just now whether this one runs.
        lock_shared(file.fileno(), blocking=True)
        yield


def leftovers(parent: Path) -> Leftovers:
    """Find what killed benches have left in a directory; what cannot be told is left out."""
    sizes = {}
    for path in sorted(parent.resolve().glob(f"{PREFIX}*")):
        # Empty is also that of a bench that has only just begun.
        if path.is_dir() and not path.is_symlink() and not _runs(path) and (size := _held(path)):
            sizes[path] = size
    return Leftovers(sizes)


def _runs(path: Path) -> bool:
    """Whether its bench runs, or may: also where nobody can tell."""
    try:
        with (path / _LOCK).open("rb") as file:
            return not lock_exclusive(file.fileno())
    except FileNotFoundError:
        return False
    except (OSError, UnavailableError):
        return True


def _held(path: Path) -> int:
    nbytes = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                nbytes += (Path(directory) / name).lstat().st_blocks * 512
            except OSError:  # removed meanwhile
                continue
    return nbytes
