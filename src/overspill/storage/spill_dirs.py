"""Whether a directory can hold spill files: on a real disk that keeps what it reserves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from overspill.errors import DiskRefusedError, SpillDirError, UnavailableError
from overspill.linux.mounts import (
    filesystem_type,
    is_copy_on_write,
    is_memory_backed,
    nearest_existing,
)
from overspill.linux.paths import printable

_ELSEWHERE = "set OVERSPILL_DIR to a directory on a local disk (ext4, xfs)"
_FULL = {errno.ENOSPC: "free space, and inodes, on this disk", errno.EDQUOT: "raise the disk quota"}


def require_spill_dir(spill_dir: Path, *, allow_cow_disk: bool = False) -> None:
    """Make the directory if it is missing, and refuse one that cannot hold spill files.

    That the file system reserves blocks shows only when a run takes its lease there.

    Args:
        spill_dir: The directory, absolute; missing parents are made.
        allow_cow_disk: Accept a copy-on-write disk, whose reservations may fail later.

    Raises:
        SpillDirError: It is a file, is memory in disguise, is copy-on-write, or cannot be made
            or written; the message says which, and what to do.
        DiskRefusedError: The disk is full.
    """
    # Before anything is made: a refused directory must not have been created on the way.
    require_disk(spill_dir, allow_cow_disk=allow_cow_disk)
    try:
        spill_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(error, spill_dir) from error


def unusable(error: OSError, spill_dir: Path) -> SpillDirError | DiskRefusedError:
    """The error for a spill directory in which a system call failed."""
    number = error.errno or errno.EIO
    if number in _FULL:  # for now: the directory itself is as good as ever
        return DiskRefusedError(
            f"nothing can be made in the spill directory {spill_dir}: {os.strerror(number)}",
            path=str(spill_dir),
            errno=number,
            remedy=f"{_FULL[number]}, or {_ELSEWHERE} with room",
        )
    what = "is a file" if number in (errno.EEXIST, errno.ENOTDIR) else os.strerror(number)
    return SpillDirError(
        f"the spill directory {spill_dir} cannot be used: {what}",
        path=str(spill_dir),
        errno=number,
        remedy=f"make it writable for this user, or {_ELSEWHERE}",
    )


def unreadable(error: OSError, spill_dir: Path) -> SpillDirError:
    """The error for a spill directory whose runs cannot be listed."""
    number = error.errno or errno.EIO
    many = "close files, or raise the limit of open ones (ulimit -n)"
    remedies = {
        errno.ENOENT: "check the path; a spill directory is made by the first run in it",
        errno.ENOTDIR: "give the directory that OVERSPILL_DIR names",
        errno.EACCES: "ask as its owner, or as root",
        errno.EMFILE: many,
        errno.ENFILE: many,
    }
    return SpillDirError(
        f"cannot look into the spill directory {printable(spill_dir)}: {os.strerror(number)}",
        path=printable(spill_dir),
        errno=number,
        remedy=remedies.get(number, "check the disk and its mount"),
    )


def require_disk(spill_dir: Path, *, allow_cow_disk: bool = False) -> None:
    """Refuse what no spill file can be made in as it is; makes and changes nothing.

    Raises:
        SpillDirError: Its name cannot be used, it is a file or lies below one, lies on memory or a
            copy-on-write disk, cannot be written, or cannot be looked at; which, and what to do.
    """
    _require_name(spill_dir)
    try:
        _require_disk(spill_dir, allow_cow_disk=allow_cow_disk)
    except UnavailableError as error:
        raise SpillDirError(
            f"the spill directory cannot be looked at: {error.message}",
            path=str(spill_dir),
            errno=error.errno,
            remedy=_ELSEWHERE,
        ) from error


def _require_name(spill_dir: Path) -> None:
    name = printable(spill_dir)
    # One variable carries the runs of several directories, a line each; torch maps text alone.
    wrong = "may have no line break in its name" if "\n" in name else None
    if name != str(spill_dir):
        wrong = "must have a name in UTF-8"
    if wrong is not None:
        raise SpillDirError(
            f"a spill directory {wrong}", path=name, remedy="choose another OVERSPILL_DIR"
        )


def _require_disk(spill_dir: Path, *, allow_cow_disk: bool) -> None:
    # What is missing is made later, in the nearest parent there is.
    there = nearest_existing(spill_dir)
    if not there.is_dir():
        raise unusable(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), spill_dir)
    if is_memory_backed(spill_dir):
        kind = filesystem_type(spill_dir)
        raise SpillDirError(
            f"the spill directory {spill_dir} lies on {kind}, which is memory",
            path=str(spill_dir),
            remedy=_ELSEWHERE,
        )
    if not allow_cow_disk and is_copy_on_write(spill_dir):
        raise SpillDirError(
            f"the spill directory {spill_dir} lies on {filesystem_type(spill_dir)}, "
            "a copy-on-write file system whose reservations may fail when they are used",
            path=str(spill_dir),
            remedy=f"{_ELSEWHERE}, or accept the risk with OVERSPILL_ALLOW_COW_DISK=1",
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise unusable(OSError(errno.EACCES, os.strerror(errno.EACCES)), spill_dir)
