"""A directory of the benchmark's own on a real disk, gone afterwards."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import overspill as ov
from overspill.errors import DiskRefusedError, SpillDirError
from overspill.linux.mounts import (
    filesystem_type,
    free_disk_bytes,
    is_memory_backed,
    total_disk_bytes,
)
from overspill.storage.spill_files import FLOOR_SHARE
from overspill.storage.workspace import leave_runs
from overspill.units import format_bytes


@contextmanager
def place_for(directory: Path, needed_bytes: int) -> Iterator[Path]:
    """Make a directory with room for the benchmark's files, and spill into it for the span.

    Args:
        directory: Its parent, on the disk that is to be measured.
        needed_bytes: The most that the benchmark holds there at one moment.

    Yields:
        The new directory, which is removed with all that is in it, also after an error.

    Raises:
        SpillDirError: The directory is memory in disguise.
        DiskRefusedError: The disk has not that much room beside the share that stays free.
    """
    require_disk(directory, needed_bytes)
    with (
        tempfile.TemporaryDirectory(prefix="overspill-benchmark-", dir=directory) as made,
        ov.settings(spill_dir=made, min_bytes=1, disk_limit_bytes=None, memory_limit_bytes=None),
    ):
        try:
            ov.prepare_spill_dir()
            yield Path(made)
        finally:
            leave_runs()


def require_disk(directory: Path, needed_bytes: int) -> None:
    """Refuse a directory in memory, or a disk that is too full; see `place_for` for the errors."""
    if is_memory_backed(directory):
        raise SpillDirError(
            f"{directory} is memory ({filesystem_type(directory)}), not a disk to measure",
            path=str(directory),
            remedy="pass --dir with a directory on a disk",
        )
    room = free_disk_bytes(directory) - total_disk_bytes(directory) // FLOOR_SHARE
    if room < needed_bytes:
        raise DiskRefusedError(
            f"{directory} has room for {format_bytes(max(0, room))}",
            path=str(directory),
            errno=errno.ENOSPC,
            needed_bytes=needed_bytes,
            available_bytes=max(0, room),
            remedy="pass --dir with a directory on another disk, or a smaller --size",
        )
