"""Which file is this: device, inode, birth time and size, and which machine and boot.

An inode number alone does not do: ext4 gives a freed inode to the next file at once. The birth
time, which only statx(2) reports, tells the two apart.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from overspill.errors import StaleFileError
from overspill.linux import libc
from overspill.linux.paths import require_path

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_STATX_BASIC_STATS = 0x07FF
_STATX_BTIME = 0x0800
_STATX_BYTES = 256
# Offsets in struct statx, which the kernel's ABI fixes: mask, inode, size, birth time, device.
_MASK, _INODE_SIZE, _BIRTH, _DEVICE = (
    (struct.Struct("=I"), 0),
    (struct.Struct("=QQ"), 32),
    (struct.Struct("=qI"), 80),
    (struct.Struct("=II"), 136),
)


@dataclass(frozen=True)
class FileIdentity:
    """What tells one file from every other that may come to stand at its path.

    Attributes:
        device: Device number, as ``os.stat`` gives it.
        inode: Inode number.
        birth_time_ns: When the file was made, in nanoseconds; None where not reported.
        nbytes: The file's size.
    """

    device: int
    inode: int
    birth_time_ns: int | None
    nbytes: int

    def matches_elsewhere(self, sent: FileIdentity) -> bool:
        """Whether a file found here is the one that another machine, or an earlier boot, sent.

        Machines that share a file system number its device each in their own way. What is left
        tells two files apart only with a birth time.
        """
        return self.birth_time_ns is not None and replace(self, device=sent.device) == sent

    def __str__(self) -> str:
        born = "unknown" if self.birth_time_ns is None else f"{self.birth_time_ns} ns"
        return f"inode {self.inode}, birth time {born}, {self.nbytes} bytes"


def identify_file(path_or_fd: str | Path | int) -> FileIdentity:
    """Identify a file by one system call.

    Args:
        path_or_fd: A path, followed through symbolic links, or an open descriptor.

    Returns:
        The file's identity now.

    Raises:
        StaleFileError: Nothing is at the path, or it cannot be looked at.
        InputError: It is no path, or holds a NUL byte.
    """
    if not isinstance(path_or_fd, int):
        path_or_fd = require_path(path_or_fd)
    try:
        return _by_statx(path_or_fd) if libc.SUPPORTED else _by_stat(path_or_fd)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container's filter
            return _by_stat(path_or_fd)
        raise _gone(error, path_or_fd) from error


def host_identity() -> str:
    """Name this machine and this boot: the host name and, where the kernel gives one, its boot id.

    A path or a process number recorded under another identity means nothing here.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return f"{socket.gethostname()}/{boot}"


def is_this_boot(identity: str) -> bool:
    """Whether an identity that `host_identity` gave is of this kernel, whatever its host name.

    Containers of one machine have names of their own, and one kernel.
    """
    boot, here = identity.rpartition("/")[2], host_identity()
    return identity == here if boot == "unknown" else boot == here.rpartition("/")[2]


def _by_statx(path_or_fd: str | Path | int) -> FileIdentity:
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if isinstance(path_or_fd, int):
        place, name, flags = path_or_fd, b"", _AT_EMPTY_PATH
    else:
        place, name, flags = _AT_FDCWD, os.fsencode(path_or_fd), 0
    libc.call("statx", place, name, flags, _STATX_BASIC_STATS | _STATX_BTIME, buffer)
    (mask,) = _MASK[0].unpack_from(buffer, _MASK[1])
    inode, nbytes = _INODE_SIZE[0].unpack_from(buffer, _INODE_SIZE[1])
    seconds, nanoseconds = _BIRTH[0].unpack_from(buffer, _BIRTH[1])
    major, minor = _DEVICE[0].unpack_from(buffer, _DEVICE[1])
    birth = seconds * 1_000_000_000 + nanoseconds if mask & _STATX_BTIME else None
    return FileIdentity(os.makedev(major, minor), inode, birth, nbytes)


def _by_stat(path_or_fd: str | Path | int) -> FileIdentity:
    try:
        held = os.stat(path_or_fd)  # noqa: PTH116 - takes a descriptor too
    except OSError as error:
        raise _gone(error, path_or_fd) from error
    return FileIdentity(held.st_dev, held.st_ino, None, held.st_size)


def _gone(error: OSError, path_or_fd: str | Path | int) -> StaleFileError:
    number = error.errno or errno.ENOENT
    return StaleFileError(
        f"cannot look at the file: {os.strerror(number)}",
        path=str(path_or_fd),
        errno=number,
        remedy="make the file again, or open the path it now has",
    )
