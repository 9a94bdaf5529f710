"""The runs that this process belongs to, one for each spill directory.

A run is joined through the environment (a child of whatever kind), or through a handle (a process
that was running before the run began, as a forkserver is), or begun here. A forked child is a
member already: it inherits the lock. Membership ends with the process.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from overspill.errors import StaleFileError, UnavailableError
from overspill.linux.paths import require_path
from overspill.settings import current_settings, export_run, inherited_run
from overspill.storage.leases import found_run, lease_in_place, reclaim_dead_runs, take_share
from overspill.storage.run_removal import RUN_DIRECTORY
from overspill.storage.spill_dirs import require_disk, require_spill_dir
from overspill.storage.spill_files import SpillFile, create_spill_file, run_bytes, spare_bytes

# One variable carries the runs of several spill directories, whose names hold no line break.
_SEPARATOR = "\n"

logger = logging.getLogger("overspill")


@dataclass(frozen=True, eq=False)
class Run:
    """A run that this process holds a share of.

    Attributes:
        directory: Its directory, absolute.
        identifier: What tells it from every other run.
        lease_fd: The descriptor that holds this process's share.
        lease_inode: Device and inode behind it when it was opened.
    """

    directory: Path
    identifier: str
    lease_fd: int
    lease_inode: tuple[int, int] | None

    @property
    def held(self) -> bool:
        """Whether the share is still held: no daemon closed its descriptor, nobody removed it."""
        return lease_in_place(self.lease_fd, self.directory)

    @property
    def nbytes(self) -> int:
        """The bytes of its spill files, those of all its processes together."""
        return run_bytes(self.directory)

    def create_spill_file(self, nbytes: int) -> SpillFile:
        """Make a reserved spill file, within the disk limit in force; see `create_spill_file`."""
        limit = current_settings().disk_limit_bytes
        return create_spill_file(self.directory, nbytes, disk_limit_bytes=limit)


class _Runs:
    def __init__(self) -> None:
        self.renew_lock()
        self.held: dict[Path, Run] = {}
        self.current: dict[Path, Run] = {}
        os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        # Another thread of the parent may have held it at the moment of the fork.
        self.lock = threading.RLock()


_RUNS = _Runs()


def join_run(spill_dir: Path) -> Run:
    """The run of this process in a spill directory: joined if there is one, else begun.

    Beginning one removes first what dead runs left there. Later calls cost two stat calls.

    Args:
        spill_dir: The spill directory; made if missing.

    Returns:
        The run, exported to the processes started from here on.

    Raises:
        SpillDirError: The directory cannot hold spill files.
        DiskRefusedError: The disk is full.
    """
    place = _real(spill_dir)
    with _RUNS.lock:
        run = _RUNS.current.get(place)
        if run is not None and run.held:
            return run
        if run is not None:
            _forget(run)
        run = _inherited(place) or _begin(place)
        _enter(run)
        return run


def adopt_run(run_dir: Path) -> Run:
    """Take a share of the lease of a run that a handle or the environment names.

    Args:
        run_dir: Its directory.

    Returns:
        The run; it becomes this process's own in that spill directory unless it has one.

    Raises:
        StaleFileError: The run is gone.
    """
    # Not through its own name: in its place, a link is somebody else's.
    place = _real(run_dir.parent) / run_dir.name
    with _RUNS.lock:
        run = _RUNS.held.get(place)
        if run is not None and run.held:
            return run
        if run is not None:
            _forget(run)
        run = _run(place, take_share(place))
        _enter(run)
        return run


def adopt_run_of(path: str) -> Run | None:
    """Take a share of the run that a file belongs to, if it belongs to one."""
    run_dir = Path(path).parent
    return adopt_run(run_dir) if RUN_DIRECTORY.fullmatch(run_dir.name) else None


def join_inherited_runs() -> None:
    """Join every run that a parent exported and that still lives; the others are left out."""
    for run_dir in _exported():
        try:
            adopt_run(run_dir)
        except StaleFileError as error:
            logger.debug("an inherited run is over: %s", error)


def run_room(spill_dir: Path) -> int | None:
    """Bytes that a spill directory may still give to this process's run, without joining one.

    Args:
        spill_dir: The spill directory; it may be missing.

    Returns:
        What the disk has above its floor, within the disk limit; None where it does not tell.

    Raises:
        SpillDirError: The directory cannot hold spill files.
    """
    settings = current_settings()
    place = _real(spill_dir)
    require_disk(place, allow_cow_disk=settings.allow_cow_disk)
    try:
        spare = spare_bytes(place)
    except UnavailableError as error:
        logger.warning("the room on the disk is unknown: %s", str(error))
        return None
    if settings.disk_limit_bytes is None:
        return spare
    with _RUNS.lock:
        run = _RUNS.current.get(place)
        held = run.nbytes if run is not None and run.held else 0
    return min(spare, settings.disk_limit_bytes - held)


def leave_runs() -> None:
    """Give up this process's shares. Its mappings stay; the files may now be removed by others."""
    with _RUNS.lock:
        for run in list(_RUNS.held.values()):
            _forget(run)
        export_run(None)


def _real(directory: Path) -> Path:
    return Path(os.path.realpath(require_path(directory)))


def _begin(place: Path) -> Run:
    require_spill_dir(place, allow_cow_disk=current_settings().allow_cow_disk)
    # Before the run's own first block: what dead runs left may be what fills the disk.
    reclaim_dead_runs(place)
    directory, lease_fd = found_run(place)
    logger.info("began a run in %s", directory)
    return _run(directory, lease_fd)


def _run(directory: Path, lease_fd: int) -> Run:
    return Run(directory, directory.name.removeprefix("run-"), lease_fd, _inode(lease_fd))


def _inode(fd: int) -> tuple[int, int] | None:
    try:
        held = os.fstat(fd)
    except OSError:
        return None
    return held.st_dev, held.st_ino


def _inherited(place: Path) -> Run | None:
    for run_dir in _exported():
        if Path(os.path.realpath(run_dir.parent)) == place:
            try:
                return adopt_run(run_dir)
            except StaleFileError as error:
                logger.debug("an inherited run is over: %s", error)
    return None


def _exported() -> list[Path]:
    return [Path(text) for text in (inherited_run() or "").split(_SEPARATOR) if text]


def _enter(run: Run) -> None:
    _RUNS.held[run.directory] = run
    _RUNS.current.setdefault(run.directory.parent, run)
    _export()


def _forget(run: Run) -> None:
    # Only our own: a daemon that closed every descriptor may have given the number away.
    if _inode(run.lease_fd) == run.lease_inode:
        os.close(run.lease_fd)
    _RUNS.held.pop(run.directory, None)
    if _RUNS.current.get(run.directory.parent) is run:
        del _RUNS.current[run.directory.parent]


def _export() -> None:
    export_run(_SEPARATOR.join(str(run.directory) for run in _RUNS.current.values()) or None)
