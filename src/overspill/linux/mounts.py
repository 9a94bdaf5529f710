"""What kind of file system a path lies on, and how much room it has.

The mount table gives the name; statfs(2)'s magic number is the fallback where the table cannot be
read. A path that does not exist yet is judged by its nearest existing parent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from overspill.errors import UnavailableError
from overspill.linux import libc
from overspill.linux.remedies import OPEN_FILES

PROC = Path("/proc")
_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_COPY_ON_WRITE = frozenset({"zfs", "btrfs", "bcachefs", "nilfs2"})
# From linux/magic.h, and zfs.
_MAGIC = {
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x958458F6: "hugetlbfs",
    0x9123683E: "btrfs",
    0xCA451A4E: "bcachefs",
    0x00003434: "nilfs2",
    0x2FC12FC1: "zfs",
    0x0000EF53: "ext4",
    0x58465342: "xfs",
    0x794C7630: "overlay",
    0x00006969: "nfs",
    0xF2F52010: "f2fs",
    0x65735546: "fuse",
}
# Options by which a file system that several machines share keeps its locks to each of them: nfs,
# lustre, gfs2 and ocfs2, smb.
_LOCAL_LOCKS = frozenset(
    {"nolock", "local_lock=flock", "local_lock=all", "localflock", "localflocks", "nobrl"}
)
_STATFS_BYTES = 256
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of /proc/<pid>/mountinfo.

    Attributes:
        device: Device number of the mounted file system.
        root: The directory within that file system which is mounted.
        point: Where it is mounted.
        kind: The file system's type.
        options: The file system's own options.
    """

    device: int
    root: str
    point: str
    kind: str
    options: tuple[str, ...]


def read_mounts(proc: Path = PROC) -> list[Mount]:
    """Read the mount table of this process, in mount order.

    Raises:
        UnavailableError: The table cannot be read.
    """
    try:
        text = os.fsdecode((proc / "self" / "mountinfo").read_bytes())
    except OSError as error:
        raise UnavailableError(
            "the mount table cannot be read",
            path=str(proc),
            errno=error.errno,
            remedy="mount /proc in this container",
        ) from error
    return [_parsed(line) for line in text.splitlines() if " - " in line]


def filesystem_type(path: str | Path, *, proc: Path = PROC) -> str:
    """Name the type of the file system that holds a path ("ext4", "tmpfs", "overlay", ...).

    Args:
        path: A path, existing or not.
        proc: Where /proc is.

    Returns:
        The mount table's name for it; "unknown" or a number in hexadecimal where neither the
        table nor the magic number tells.

    Raises:
        UnavailableError: No part of the path can be looked at.
    """
    place = nearest_existing(path)
    try:
        mount = _mount_of(place, read_mounts(proc))
    except UnavailableError:
        mount = None
    return mount.kind if mount is not None else _kind_by_magic(place)


def is_memory_backed(path: str | Path, *, proc: Path = PROC) -> bool:
    """Whether files at this path are memory in disguise; an overlay by its upper directory."""
    return _judged(path, proc) in _MEMORY


def is_copy_on_write(path: str | Path, *, proc: Path = PROC) -> bool:
    """Whether a reservation at this path may be accepted and still fail when it is overwritten.

    An overlay is judged by its upper directory, where that can be seen from here; inside most
    containers it cannot, and the overlay then counts as what nearly all are, ext4 or xfs.
    """
    return _judged(path, proc) in _COPY_ON_WRITE


def has_local_locks(path: str | Path, *, proc: Path = PROC) -> bool:
    """Whether a mount option keeps the locks at this path from the other machines that share it."""
    try:
        mount = _mount_of(nearest_existing(path), read_mounts(proc))
    except UnavailableError:
        return False
    return mount is not None and not _LOCAL_LOCKS.isdisjoint(mount.options)


def free_disk_bytes(path: str | Path) -> int:
    """Bytes that an unprivileged user may still write at this path; root's reserve is not counted.

    Raises:
        UnavailableError: The file system cannot be asked.
    """
    held = _statvfs(path)
    return held.f_bavail * held.f_frsize


def total_disk_bytes(path: str | Path) -> int:
    """Size in bytes of the file system at this path.

    Raises:
        UnavailableError: The file system cannot be asked.
    """
    held = _statvfs(path)
    return held.f_blocks * held.f_frsize


def nearest_existing(path: str | Path) -> Path:
    """The path with links resolved, or its nearest parent that exists."""
    # Not pathlib: it raises on a loop of links, and on a directory that may not be searched.
    place = os.path.realpath(path)
    while not os.path.exists(place) and place != "/":  # noqa: PTH110
        place = os.path.dirname(place)  # noqa: PTH120
    return Path(place)


def backing_directory(path: str | Path, *, proc: Path = PROC) -> Path:
    """Find the directory on whose file system lies what is written below a path.

    Args:
        path: A path, existing or not.
        proc: Where /proc is.

    Returns:
        The path, or what of it exists; of an overlay its upper directory, where that can be seen:
        from within a container it cannot, and the overlay's own directory is returned.

    Raises:
        UnavailableError: The file system cannot be asked.
    """
    place = nearest_existing(path)
    seen: set[Path] = set()
    while place not in seen and filesystem_type(place, proc=proc) == "overlay":
        seen.add(place)
        place = _upper_directory(place, proc) or place
    return place


def _judged(path: str | Path, proc: Path) -> str:
    return filesystem_type(backing_directory(path, proc=proc), proc=proc)


def _upper_directory(place: Path, proc: Path) -> Path | None:
    try:
        mount = _mount_of(place, read_mounts(proc))
    except UnavailableError:
        return None
    for option in mount.options if mount is not None else ():
        if option.startswith("upperdir="):
            upper = Path(option.removeprefix("upperdir="))
            return upper if upper.is_dir() else None
    return None


def _mount_of(place: Path, mounts: list[Mount]) -> Mount | None:
    covering = [mount for mount in mounts if place.is_relative_to(mount.point)]
    # The device decides between a mount and one that hides it; btrfs subvolumes have devices of
    # their own, which no mount carries, so the longest prefix alone must do there.
    try:
        device = place.stat().st_dev
    except OSError:
        device = None
    same = [mount for mount in covering if mount.device == device]
    best: Mount | None = None
    for mount in same or covering:
        if best is None or len(mount.point) >= len(best.point):  # of equals, the later hides
            best = mount
    return best


def _kind_by_magic(place: Path) -> str:
    if not libc.SUPPORTED:
        return "unknown"
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        libc.call("statfs", os.fsencode(place), buffer)
    except OSError as error:
        raise _unasked(error, place) from error
    (magic,) = struct.unpack_from("=q", buffer)
    return _MAGIC.get(magic & 0xFFFFFFFF, hex(magic & 0xFFFFFFFF))


def _statvfs(path: str | Path) -> os.statvfs_result:
    place = nearest_existing(path)
    try:
        return os.statvfs(place)
    except OSError as error:
        raise _unasked(error, place) from error


def _unasked(error: OSError, place: Path) -> UnavailableError:
    number = error.errno or errno.EIO
    return UnavailableError(
        f"the file system cannot be asked: {os.strerror(number)}",
        path=str(place),
        errno=number,
        remedy=OPEN_FILES.get(number, "choose another directory"),
    )


def _parsed(line: str) -> Mount:
    left, right = line.split(" - ", 1)
    fields = left.split(" ")
    kind, _source, options = [*right.split(" "), "", ""][:3]
    major, minor = fields[2].split(":")
    return Mount(
        device=os.makedev(int(major), int(minor)),
        root=_unescaped(fields[3]),
        point=_unescaped(fields[4]),
        kind=kind,
        options=tuple(_unescaped(option) for option in options.split(",")),
    )


def _unescaped(text: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)
