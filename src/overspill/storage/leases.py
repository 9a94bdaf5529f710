"""The lease of a run directory: a lock that lives as long as any process of the run.

Every process of a run holds flock LOCK_SH on ``<run>/lease``; a fork inherits it and the kernel
drops it with the last holder, also after SIGKILL. A run whose lease can be locked exclusively has
no process left. Nothing is ever judged by age, and nothing is removed but under that lock.

Each holder also marks the lease's first byte, by a lock of the same lifetime that keeps nobody out:
so that whoever only looks can ask for it, and never stands between a run and its lease. Where the
file system has no such marks, a look locks a lease that nobody holds for a moment, and a founder
whose lease that is starts over.

A reclaimer takes LOCK_EX without waiting, checks that the file it locked is still the one at the
path (another reclaimer may have been faster), renames the directory, so that nobody joins it any
more, and deletes; the lease goes last, so that a reclaimer that dies half-way is followed up.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from contextlib import ExitStack
from pathlib import Path

from overspill.errors import DiskRefusedError, SpillDirError, StaleFileError, UnavailableError
from overspill.linux.blocks import reserve_blocks, write_all
from overspill.linux.identity import is_this_boot
from overspill.linux.locks import is_marked, lock_exclusive, lock_shared, mark_span, unlock
from overspill.linux.mounts import has_local_locks
from overspill.storage.lease_records import LEASE_BYTES, LeaseRecord, lease_text, read_lease
from overspill.storage.run_removal import (
    DEAD_DIRECTORY,
    LEASE_NAME,
    RUN_DIRECTORY,
    Reclaimed,
    delete_run,
    is_removable,
    list_run,
)
from overspill.storage.spill_dirs import unreadable, unusable

_MARK = 0
_ATTEMPTS = 100
# Gone, or the name of something else.
_NO_RUN = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ESPIPE}
)

logger = logging.getLogger("overspill")


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
        StaleFileError: The run is gone, or a reclaimer has it: none of its processes was left. Or
            what stands under its name is another user's, or is no run.
    """
    try:
        fd = _open_lease(run_dir)
    except OSError as error:
        if isinstance(error, StaleFileError):
            raise
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
        mark_span(fd, _MARK, 1)
        undo.pop_all()
    return fd


def _open_lease(run_dir: Path) -> int:
    """The lease of a run of this user's, open for reading; OSError of what cannot be opened."""
    # O_NONBLOCK: a pipe in its place would be waited for.
    way = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    place = os.open(run_dir, way | os.O_DIRECTORY)
    try:
        owner = os.fstat(place).st_uid
        # Once a run is gone, whoever may write the spill directory can make one of its name. Its
        # owner may do all that anyway, root everything; and a server may turn one user to another.
        if owner not in (os.geteuid(), 0, run_dir.parent.stat().st_uid):
            raise StaleFileError(
                f"what stands at {run_dir} is user {owner}'s, and no run that user "
                f"{os.geteuid()} may join",
                path=str(run_dir),
                remedy="share a run among processes of one user, or begin a new one",
            )
        lease = os.open(LEASE_NAME, way, dir_fd=place)
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(lease).st_mode):
        os.close(lease)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return lease


def is_held(lease: int, *, marked: bool) -> bool | None:
    """Whether any process holds a share of a lease, as somebody asks who only looks.

    Args:
        lease: A descriptor of the lease that holds no share.
        marked: Whether its holders mark it: as its record says, or where there is none yet. If so,
            nothing is locked; else it is, for the moment of the question.

    Returns:
        The answer; None where the file system cannot tell.
    """
    found = is_marked(lease, _MARK)
    if found or (found is False and marked):
        return found
    try:
        if not lock_exclusive(lease):
            return True
        unlock(lease)
    except UnavailableError:
        return None
    return False


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
        What was removed; what could not be is logged.
    """
    try:
        swept = sweep_dead_runs(spill_dir)
    except SpillDirError as error:
        logger.warning("%s", error)
        return []
    for run in swept:
        if run.kept is not None and not run.is_others:
            logger.warning("kept %s: %s", run.directory, run.kept)
    found = [run for run in swept if run.files or run.kept is None]
    for run in found:
        logger.info("reclaimed %s: %d files, %d bytes", run.directory, run.files, run.nbytes)
    return found


def sweep_dead_runs(spill_dir: Path, *, dry_run: bool = False) -> list[Reclaimed]:
    """Remove what dead runs left, or say what would be removed; see `reclaim_dead_runs`.

    Args:
        spill_dir: The directory; a missing one holds nothing.
        dry_run: Remove nothing, and keep nobody from a run while looking.

    Returns:
        Every dead run, and every one that nobody could judge, kept with the reason; but for those
        of other users that cannot be looked into.

    Raises:
        SpillDirError: The directory cannot be listed.
    """
    found = [_reclaim(directory, dry_run=dry_run) for directory in run_directories(spill_dir)]
    return [run for run in found if run is not None]


def run_directories(spill_dir: Path) -> list[Path]:
    """The directories of a spill directory that have the name of a run, alive or dead.

    Raises:
        SpillDirError: It is there and cannot be listed.
    """
    try:
        names = sorted(os.listdir(spill_dir))  # noqa: PTH208 - names, not paths, are matched
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(error, spill_dir) from error
    return [
        spill_dir / name
        for name in names
        if RUN_DIRECTORY.fullmatch(name) or DEAD_DIRECTORY.fullmatch(name)
    ]


def is_beyond_locks(record: LeaseRecord, run_dir: Path) -> bool:
    """Whether a run began where no lock of this machine tells of it: its lease seems free anyway.

    So it is where a file system that machines share is mounted with locks of each machine's own.
    """
    return record.host is not None and not is_this_boot(record.host) and has_local_locks(run_dir)


def _first_lease(directory: Path) -> int | None:
    """The new run's lease, held and written; None where a reclaimer was faster."""
    path = directory / LEASE_NAME
    with ExitStack() as undo:
        undo.callback(_remove_if_empty, directory)
        # Explicitly, because a umask may take the owner's own rights away.
        directory.chmod(0o700)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, fd)
        # Also where somebody else has the lock: nobody but a reclaimer knows of the directory.
        undo.callback(path.unlink, missing_ok=True)
        try:
            held = lock_shared(fd, blocking=False) and lease_in_place(fd, directory)
        except UnavailableError as error:
            raise SpillDirError(
                f"{directory.parent} cannot hold a lease: {error.message}",
                path=str(directory.parent),
                errno=error.errno,
                remedy=error.remedy,
            ) from error
        if not held:
            return None
        marked = mark_span(fd, _MARK, 1)
        # Reserving here shows whether the file system can, before any tensor depends on it.
        reserve_blocks(fd, LEASE_BYTES, path=str(path))
        text = lease_text(directory.name.removeprefix("run-"), marked=marked)
        write_all(fd, text, 0, path=str(path))
        undo.pop_all()
    return fd


def _reclaim(directory: Path, *, dry_run: bool) -> Reclaimed | None:
    try:
        with ExitStack() as done:
            place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            done.callback(os.close, place)
            return _judged(directory, place, dry_run=dry_run)
    except PermissionError:  # somebody else's, alive or dead
        return None
    except UnavailableError as error:
        return Reclaimed(directory, 0, 0, kept=error.message)
    except OSError as error:
        if error.errno in _NO_RUN:
            return None
        return Reclaimed(directory, 0, 0, kept=f"it cannot be looked into: {error}")


def _judged(directory: Path, place: int, *, dry_run: bool) -> Reclaimed | None:
    others = not is_removable(directory)
    way = (os.O_RDONLY if others else os.O_RDWR) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    dry_run = dry_run or others
    with ExitStack() as done:
        try:
            lease = os.open(LEASE_NAME, way, dir_fd=place)
        except FileNotFoundError:
            return _reclaim_unleased(directory, place, dry_run=dry_run)
        done.callback(os.close, lease)
        # Before it is read: what a founder has not signed yet may be signed a moment later.
        if not dry_run and not lock_exclusive(lease):
            return None
        record = _own_lease(lease, place)
        if record is None or not lease_in_place(lease, directory):
            return None
        held = is_held(lease, marked=record.asks_marks) if dry_run else False
        if held:
            return None
        if held is None:
            told = "the file system does not tell whether its lease is held"
            return Reclaimed(directory, 0, 0, kept=told)
        if is_beyond_locks(record, directory):
            return Reclaimed(directory, 0, 0, kept=_told_beyond(record), is_others=True)
        return list_run(directory, place) if dry_run else delete_run(directory, place)


def _reclaim_unleased(directory: Path, place: int, *, dry_run: bool) -> Reclaimed | None:
    """What a founder left that died before it made its lease; one that lives starts over."""
    if os.listdir(place):
        return None
    if dry_run:
        return list_run(directory, place)
    return Reclaimed(directory, 0, 0) if _remove_if_empty(directory) else None


def _own_lease(lease: int, place: int) -> LeaseRecord | None:
    record = read_lease(lease)
    if record is not None and not record.signed and set(os.listdir(place)) != {LEASE_NAME}:
        return None
    return record


def _told_beyond(record: LeaseRecord) -> str:
    return (
        f"it began on {(record.host or '').rpartition('/')[0]!a}, to which the locks of this mount "
        "do not reach: clean it from there"
    )


def _remove_if_empty(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True
