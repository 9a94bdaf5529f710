"""Which file lies behind an address, as the kernel tells: a name may have gone to another file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class MappedPlace:
    """A place in a mapped file.

    Attributes:
        device: Device number. On btrfs and overlays the kernel reports another than ``os.stat``.
        inode: Inode number.
        offset: Where in the file the address lies.
    """

    device: int
    inode: int
    offset: int


def shared_file_at(address: int) -> MappedPlace | None:
    """The file of which a shared mapping shows the bytes at an address of this process.

    Reads all of the process's mappings: a millisecond for some thousands.

    Returns:
        None where there is none, where the mapping is private (what is written to it is not in the
        file), or where the system does not tell.
    """
    try:
        lines = _MAPS.read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:
        bounds, kind, offset, device, inode = line.split(maxsplit=5)[:5]
        first, end = (int(bound, 16) for bound in bounds.split(b"-"))
        if first <= address < end:
            if inode == b"0" or not kind.endswith(b"s"):
                return None
            major, minor = (int(number, 16) for number in device.split(b":"))
            place = int(offset, 16) + address - first
            return MappedPlace(os.makedev(major, minor), int(inode), place)
    return None
