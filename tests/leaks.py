"""What a test may leave behind: nothing. Taken before and after each test, and compared.

Cheap: a few small reads of /proc; a garbage collection only when something looks left. Other test
runs on the same machine share /dev/shm, so a name there counts only when no foreign process lives
that could own it.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing.forkserver
import multiprocessing.resource_sharer
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SHM = Path("/dev/shm")
_LARGEST_PID = 1 << 22
# Kept open by libraries for the whole process, on purpose.
_STANDING = re.compile(r"/dev/(null|u?random|tty|pts/.*)$|anon_inode:|socket:|/proc/")
# Started once a process, by multiprocessing, torch and `forked`, and kept.
_STANDING_CHILDREN = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "script_server.py",
)
_STANDING_NAMES = ("torch_shm_manage",)
# torch_<process>_<random>_<count>: the first number of its own is the owner's.
_OWNER = re.compile(r"[_.-](\d+)(?=[_.-]|$)")


_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_alone = False


def isolate_shared_memory(nbytes: int | None = None) -> bool:
    """Give this process and its children a /dev/shm, and mounts, of their own, where it may.

    As large as it was, unless a size is given. The namespace and all that is mounted in it go with
    its last process, however that ends.
    """
    global _alone
    libc = ctypes.CDLL(None)
    held = os.statvfs(SHM)
    size = b"mode=1777,size=%d" % (held.f_blocks * held.f_frsize if nbytes is None else nbytes)
    # In this order: mounted before the namespace is private, it would show outside.
    _alone = (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", os.fsencode(SHM), b"tmpfs", 0, size) == 0
    )
    return _alone


@dataclass(frozen=True)
class Holdings:
    """What this process holds: descriptors, mappings, shared memory names, children, threads."""

    descriptors: frozenset[str]
    mappings: frozenset[str]
    shm_names: frozenset[str]
    children: frozenset[str]
    threads: frozenset[str]


def holdings(base: Path) -> Holdings:
    """Take stock; of mappings only those of files under ``base``."""
    return Holdings(
        frozenset(_descriptors()),
        frozenset(_mappings(base)),
        frozenset(one.name for one in SHM.iterdir()) if SHM.is_dir() else frozenset(),
        frozenset(_children()),
        frozenset(t.name for t in threading.enumerate() if t.name.startswith("overspill")),
    )


def left_behind(before: Holdings, base: Path) -> list[str]:
    """Say what was not there before; empty when a collection of garbage settles it."""
    found = _difference(before, holdings(base))
    if found:
        _stop_resource_sharer()
        gc.collect()
        found = _difference(before, holdings(base))
    return found


def _difference(before: Holdings, after: Holdings) -> list[str]:
    found = []
    for kind in ("descriptors", "mappings", "threads"):
        found += [f"{kind}: {one}" for one in sorted(getattr(after, kind) - getattr(before, kind))]
    known = set(map(_which_child, before.children))
    new = [one for one in sorted(after.children) if _which_child(one) not in known]
    found += [f"children: {one}" for one in new]
    for name in sorted(after.shm_names - before.shm_names):
        if not _is_foreign(name):
            found.append(f"/dev/shm name: {name}")
    return found


def _descriptors() -> list[str]:
    found = []
    server = multiprocessing.forkserver._forkserver
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the listing's own
            continue
        if not _STANDING.match(target) and int(entry.name) != server._forkserver_alive_fd:
            found.append(f"{entry.name} -> {target}")
    return found


def _mappings(base: Path) -> list[str]:
    found: list[str] = []
    prefix = os.fsencode(base) + b"/"
    text = Path("/proc/self/maps").read_bytes()
    if prefix not in text:  # of a thousand lines, before and after each test
        return found
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(prefix):
            found.append(f"inode {fields[4].decode()} {os.fsdecode(fields[5])}")
    return found


def _children() -> list[str]:
    found = []
    for child in _child_processes():
        try:
            told = " ".join(child.cmdline()) or child.name()
        except psutil.Error:
            continue
        if any(name in told for name in _STANDING_CHILDREN + _STANDING_NAMES):
            continue
        if child.pid == multiprocessing.forkserver._forkserver._forkserver_pid:
            continue
        # One that a module's fixture keeps may sleep before a test and run after it.
        ended = " (zombie)" if child.status() == psutil.STATUS_ZOMBIE else ""
        found.append(f"{child.pid} {told}{ended}")
    return found


def _which_child(told: str) -> tuple[str, bool]:
    """A child by its number: one that has just begun is called as its parent is."""
    return told.split()[0], told.endswith(" (zombie)")


def _child_processes() -> list[psutil.Process]:
    """Those that the kernel lists for each thread: a look at every process would cost a second
    a thousand tests, and is left for kernels that list none.
    """
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            numbers = (task / "children").read_text().split()
        except FileNotFoundError:
            if task.name == str(os.getpid()):
                return psutil.Process().children()
            continue  # a thread that has just ended
        for number in numbers:
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(number)))
    return found


def _is_foreign(name: str) -> bool:
    """Whether a /dev/shm name is gone again, or may belong to a live process of another tree."""
    path = SHM / name
    if not path.exists():
        return True
    if _alone:
        return False
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    match = _OWNER.search(name)
    owner = int(match.group(1)) if match else 0
    if owner in own:
        return False
    if 0 < owner < _LARGEST_PID and psutil.pid_exists(owner):
        return True
    needle = os.fsencode(path)
    for pid in psutil.pids():
        if pid not in own and _holds(pid, needle):
            return True
    return not path.exists()


def _holds(pid: int, needle: bytes) -> bool:
    try:
        if needle in Path(f"/proc/{pid}/maps").read_bytes():
            return True
        return any(
            os.fsencode(one.readlink()) == needle for one in Path(f"/proc/{pid}/fd").iterdir()
        )
    except OSError:
        return False


def _stop_resource_sharer() -> None:
    """End the thread that multiprocessing starts to hand over descriptors; it starts again."""
    if multiprocessing.resource_sharer._resource_sharer._listener is not None:
        multiprocessing.resource_sharer.stop(timeout=10)
