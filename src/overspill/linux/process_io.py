"""What processes made devices read and write, as the kernel accounts for it.

A process's account takes in that of each child once it is waited for, so that a tree's total is the
root's account and that of every process below it that has not ended yet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

PROC = Path("/proc")


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes of devices, since the process began.

    Attributes:
        read_bytes: Fetched from devices, pages asked for ahead and by touching a mapping included;
            what was in the page cache counts nothing.
        written_bytes: Caused to be written, counted when a page becomes dirty and not when it
            reaches the device; less what was cut off before it did.
    """

    read_bytes: int
    written_bytes: int


def device_bytes(pid: int | None = None, *, proc: Path = PROC) -> DeviceBytes | None:
    """Read one process's account, in about 10 us.

    Args:
        pid: The process; None is this one.
        proc: Where /proc is.

    Returns:
        None where the kernel keeps no account, or shows it to nobody (a container, another user's
        process), or the process is gone.
    """
    try:
        text = (proc / ("self" if pid is None else str(pid)) / "io").read_text()
    except OSError:
        return None
    held = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if value.strip().isdigit():
            held[name] = int(value)
    if "read_bytes" not in held:
        return None
    written = held.get("write_bytes", 0) - held.get("cancelled_write_bytes", 0)
    return DeviceBytes(held["read_bytes"], max(0, written))


def descendants(pid: int, *, proc: Path = PROC) -> list[int]:
    """The processes below one, parents before their children.

    The kernel lists the children of each thread, about 10 us a thread; where it was built without
    that list, every process of the machine is looked at, which takes some ms and more.

    Args:
        pid: The root, itself left out.
        proc: Where /proc is.

    Returns:
        A process that starts or ends meanwhile may be missing, or gone already.
    """
    if not (proc / str(pid) / "task" / str(pid) / "children").exists():
        return _looked_for(pid)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(proc / str(waiting.pop(0)) / "task")
        found += children
        waiting += children
    return found


def _children(tasks: Path) -> list[int]:
    found: list[int] = []
    try:
        names = os.listdir(tasks)  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return found
    for name in names:
        try:
            found += [int(word) for word in (tasks / name / "children").read_text().split()]
        except OSError:  # the thread ended
            continue
    return found


def _looked_for(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
