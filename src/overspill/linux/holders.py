"""Which processes have a file open, or mapped, as /proc tells it.

Names are compared, and no file is looked at: to ask what a descriptor leads to could wait for a
network file system that no longer answers. So only names that are unlike any other do. Nothing is
opened but lists of the kernel's; no process is stopped, traced or walked through its pages.

Bottleneck: a readlink(2) a descriptor of every process, about 2 us. Limits: processes of other
users, and of containers beside this one, are not shown.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_MOST_COMMAND_BYTES = 64 << 10


@dataclass(frozen=True)
class OpenFiles:
    """Which processes have files of certain names open.

    Attributes:
        holders: Processes by what the pattern found in the name.
        hidden: Processes that are there and do not let this one look.
    """

    holders: dict[str, frozenset[int]]
    hidden: frozenset[int]


@dataclass(frozen=True)
class MappedRange:
    """One line of a process's mappings that a pattern matched.

    Attributes:
        found: What the pattern's groups matched, an unmatched one as "".
        file: What tells the file from every other, named or not: device and inode as listed.
        nbytes: The length of the mapping.
    """

    found: tuple[str, ...]
    file: tuple[str, int]
    nbytes: int


def find_open_files(pattern: re.Pattern[str], *, proc: Path = PROC) -> OpenFiles:
    """Look through the descriptors of every process for names that a pattern matches.

    Args:
        pattern: Searched in the path that the kernel gives for a descriptor; its first group is
            the key of the result.
        proc: Where /proc is.

    Returns:
        The processes; those that end meanwhile are left out.
    """
    holders: dict[str, set[int]] = {}
    hidden = set()
    for pid in _processes(proc):
        try:
            numbers = os.listdir(proc / str(pid) / "fd")  # noqa: PTH208 - names, not paths
        except PermissionError:
            hidden.add(pid)
            continue
        except OSError:  # it has ended
            continue
        for target in _targets(f"{proc}/{pid}/fd/", numbers):
            match = pattern.search(target)
            if match is not None:
                holders.setdefault(match[1], set()).add(pid)
    return OpenFiles({key: frozenset(pids) for key, pids in holders.items()}, frozenset(hidden))


def find_mappings(
    pid: int, pattern: re.Pattern[bytes], *, proc: Path = PROC
) -> list[MappedRange] | None:
    """Look through a process's mappings for names that a pattern matches.

    A millisecond for some thousands of mappings.

    Args:
        pid: The process.
        pattern: Searched in each line of /proc/<pid>/maps, its end included: a file without a name
            ends in " (deleted)".
        proc: Where /proc is.

    Returns:
        The mappings, none for a process that has ended; None where it does not let this one look.
    """
    try:
        lines = (proc / str(pid) / "maps").read_bytes().splitlines()
    except PermissionError:
        return None
    except OSError:
        return []
    found = []
    for line in lines:
        match = pattern.search(line)
        if match is not None:
            bounds, _kind, _offset, device, inode = line.split(maxsplit=5)[:5]
            first, end = (int(bound, 16) for bound in bounds.split(b"-"))
            groups = tuple(os.fsdecode(group or b"") for group in match.groups())
            found.append(MappedRange(groups, (device.decode(), int(inode)), end - first))
    return found


def command_of(pid: int, *, proc: Path = PROC) -> str | None:
    """The command line of a process, quoted for a shell; None where it is not told."""
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            words = os.fsdecode(file.read(_MOST_COMMAND_BYTES).rstrip(b"\0")).split("\0")
    except OSError:
        return None
    # One word: a title that the process gave itself.
    told = shlex.join(words) if len(words) > 1 else words[0]
    return told or None


def _processes(proc: Path) -> list[int]:
    try:
        names = os.listdir(proc)  # noqa: PTH208 - names, not paths
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _targets(directory: str, numbers: list[str]) -> Iterator[str]:
    for number in numbers:
        try:
            yield os.readlink(directory + number)  # noqa: PTH115 - a Path takes longer to build
        except OSError:  # closed meanwhile
            continue
