"""Locks that keep two runs of one build out of each other's way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overspill.build.directory import unwritable
from overspill.errors import OutputDirError
from overspill.linux.locks import open_locked


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
        fd = open_locked(lock)
    except OSError as error:
        raise unwritable(lock.parent, error) from error
    if fd is None:
        raise OutputDirError(
            f"another run is {doing}",
            path=str(lock.parent),
            remedy="wait for it to end, or end it; the same call or command then goes on",
        )
    try:
        yield
    finally:
        os.close(fd)
