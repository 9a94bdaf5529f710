"""The lease of a run directory: a lock that lives as long as any process of the run.

Every process of a run holds flock LOCK_SH on ``<run>/lease``; a fork inherits it and the kernel
drops it with the last holder, also after SIGKILL. A run whose lease can be locked exclusively has
no process left. Nothing is ever judged by age, and nothing is removed but under that lock.

A reclaimer takes LOCK_EX without waiting, checks that the file it locked is still the one at the
path (another reclaimer may have been faster), renames the directory, so that nobody joins it any
more, and deletes; the lease goes last, so that a reclaimer that dies half-way is followed up.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from overspill.errors import DiskRefusedError, SpillDirError, StaleFileError, UnavailableError
from overspill.linux.blocks import reserve_blocks, write_all
from overspill.linux.identity import host_identity
from overspill.linux.locks import lock_exclusive, lock_shared
from overspill.storage.spill_dirs import unusable

LEASE_NAME = "lease"
LEDGER_NAME = "ledger"
SPILL_FILE = re.compile(r"spill_[0-9a-f]{16,32}\.bin")
RUN_DIRECTORY = re.compile(r"run-[0-9a-f]{32}")
_DEAD_DIRECTORY = re.compile(r"dead-[0-9a-f]{32}")
_FORMAT = "overspill-run"
_LEASE_BYTES = 4096
_ATTEMPTS = 100

logger = logging.getLogger("overspill")


@dataclass(frozen=True)
class Reclaimed:
    """What a dead run had left.

    Attributes:
        directory: Where it was.
        files: How many spill files were removed.
        nbytes: Their bytes.
    """

    directory: Path
    files: int
    nbytes: int


def found_run(spill_dir: Path) -> tuple[Path, int]:
    """Make a run directory (mode 0700) and take the first share of its lease.

    Args:
        spill_dir: An existing directory.

    Returns:
        The run directory, and the descriptor that holds the lease; it is not inherited by exec.

    Raises:
        SpillDirError: The directory cannot be written, locked, or cannot reserve blocks.
        DiskRefusedError: The disk is full.
    """
    for _ in range(_ATTEMPTS):
        directory = spill_dir / f"run-{secrets.token_hex(16)}"
        try:
            directory.mkdir(mode=0o700)
            lease = _first_lease(directory)
        except FileNotFoundError:  # a reclaimer took the still empty directory
            continue
        except OSError as error:
            if isinstance(error, DiskRefusedError | SpillDirError):
                raise
            raise unusable(error, spill_dir) from error
        if lease is not None:
            return directory, lease
    raise SpillDirError(
        f"no run could be started in {spill_dir}: each new one was removed at once",
        path=str(spill_dir),
        remedy="look for another program that removes files there",
    )


def take_share(run_dir: Path) -> int:
    """Join a run: take one more share of its lease.

    Args:
        run_dir: The run directory.

    Returns:
        The descriptor that holds it; it is not inherited by exec.

    Raises:
        StaleFileError: The run is gone, or a reclaimer has it: none of its processes was left.
    """
    try:
        fd = os.open(run_dir / LEASE_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
        raise StaleFileError(
            f"the run {run_dir} {'is gone' if gone else 'cannot be joined'}",
            path=str(run_dir),
            errno=error.errno,
            remedy="keep a process of the run alive until its files have been mapped"
            if gone
            else os.strerror(error.errno or errno.EIO),
        ) from error
    with ExitStack() as undo:
        undo.callback(os.close, fd)
        if not lock_shared(fd, blocking=False) or not lease_in_place(fd, run_dir):
            raise StaleFileError(
                f"the run {run_dir} is being removed: none of its processes is left",
                path=str(run_dir),
                remedy="keep a process of the run alive until its files have been mapped",
            )
        undo.pop_all()
    return fd


def lease_in_place(fd: int, run_dir: Path) -> bool:
    """Whether this descriptor is (still) the lease of that run directory."""
    try:
        mine, there = os.fstat(fd), (run_dir / LEASE_NAME).stat(follow_symlinks=False)
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def reclaim_dead_runs(spill_dir: Path) -> list[Reclaimed]:
    """Remove what runs without a living process left in a directory; leave all else alone.

    Two reclaimers at once are safe, also across machines where the file system's locks are.

    Args:
        spill_dir: The directory; a missing one holds nothing.

    Returns:
        What was removed.
    """
    try:
        names = sorted(os.listdir(spill_dir))  # noqa: PTH208 - names, not paths, are matched
    except OSError:
        return []
    found = []
    for name in names:
        if RUN_DIRECTORY.fullmatch(name) or _DEAD_DIRECTORY.fullmatch(name):
            removed = _reclaim(spill_dir / name)
            if removed is not None:
                told = "reclaimed %s: %d files, %d bytes"
                logger.info(told, removed.directory, removed.files, removed.nbytes)
                found.append(removed)
    return found


def _first_lease(directory: Path) -> int | None:
    """The new run's lease, held and written; None where a reclaimer was faster."""
    path = directory / LEASE_NAME
    with ExitStack() as undo:
        undo.callback(_remove_if_empty, directory)
        # Explicitly, because a umask may take the owner's own rights away.
        directory.chmod(0o700)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, fd)
        try:
            held = lock_shared(fd, blocking=False) and lease_in_place(fd, directory)
        except UnavailableError as error:
            path.unlink(missing_ok=True)
            raise SpillDirError(
                f"{directory.parent} cannot hold a lease: {error.message}",
                path=str(directory.parent),
                errno=error.errno,
                remedy=error.remedy,
            ) from error
        if not held:
            return None
        undo.callback(path.unlink, missing_ok=True)
        # Reserving here shows whether the file system can, before any tensor depends on it.
        reserve_blocks(fd, _LEASE_BYTES, path=str(path))
        write_all(fd, _lease_text(directory), 0, path=str(path))
        undo.pop_all()
    return fd


def _lease_text(directory: Path) -> bytes:
    told = {
        "format": _FORMAT,
        "version": 1,
        "run": directory.name.removeprefix("run-"),
        "host": host_identity(),
        "pid": os.getpid(),
        "started": time.time(),
    }
    return json.dumps(told).encode().ljust(_LEASE_BYTES)


def _reclaim(directory: Path) -> Reclaimed | None:
    try:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone already, somebody else's, or no directory
        return None
    with ExitStack() as done:
        done.callback(os.close, place)
        try:
            lease = os.open(LEASE_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        except FileNotFoundError:
            # A founder that died before it made its lease; one that lives starts over.
            return Reclaimed(directory, 0, 0) if _remove_if_empty(directory) else None
        except OSError:
            return None
        done.callback(os.close, lease)
        try:
            dead = lock_exclusive(lease) and lease_in_place(lease, directory)
        except UnavailableError:
            return None
        if not dead or not _is_ours(lease, place):
            return None
        return _delete_run(directory, place)


def _is_ours(lease: int, place: int) -> bool:
    text = os.pread(lease, _LEASE_BYTES, 0).strip(b"\0 ")
    if not text:  # its founder died between making and writing it
        return set(os.listdir(place)) == {LEASE_NAME}
    try:
        told = json.loads(text)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("format") == _FORMAT


def _delete_run(directory: Path, place: int) -> Reclaimed | None:
    files = nbytes = 0
    dead = directory
    try:
        if RUN_DIRECTORY.fullmatch(directory.name):
            dead = directory.with_name(f"dead-{secrets.token_hex(16)}")
            directory.rename(dead)
        for name in os.listdir(place):
            if SPILL_FILE.fullmatch(name):
                nbytes += os.stat(name, dir_fd=place, follow_symlinks=False).st_size
                os.unlink(name, dir_fd=place)
                files += 1
            elif name == LEDGER_NAME:
                os.unlink(name, dir_fd=place)
        left = set(os.listdir(place)) - {LEASE_NAME}
        if left:
            logger.warning("kept %s: it holds files that no run makes: %s", dead, sorted(left))
            return Reclaimed(directory, files, nbytes) if files else None
        os.unlink(LEASE_NAME, dir_fd=place)
        dead.rmdir()
    except OSError as error:
        logger.warning("could not remove the dead run %s: %s", dead, error)
        return Reclaimed(directory, files, nbytes) if files else None
    return Reclaimed(directory, files, nbytes)


def _remove_if_empty(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True
