"""Locks that keep two runs of one build out of each other's way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overspill.build.directory import unwritable
from overspill.errors import OutputDirError
from overspill.linux.locks import lock_exclusive


@contextmanager
def claimed(lock: Path, doing: str) -> Iterator[None]:
    """Keep other runs out, by a lock that goes with its process.

    Args:
        lock: The lock's file, made with its directory; it stays.
        doing: What the other run is at, for the message.

    Raises:
        OutputDirError: Another run has the lock.
        DiskRefusedError: The file cannot be made.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(lock.parent, error) from error
    try:
        if not (lock_exclusive(fd, blocking=False) and _is_still(fd, lock)):
            raise OutputDirError(
                f"another run is {doing}",
                path=str(lock.parent),
                remedy="wait for it to end, or end it; the same call or command then goes on",
            )
        yield
    finally:
        os.close(fd)


def _is_still(fd: int, lock: Path) -> bool:
    """Whether the file is the one at its path: a run that ended may have removed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), lock.stat())
    except FileNotFoundError:
        return False
