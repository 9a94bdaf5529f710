"""A look into a spill directory: its runs, who holds them, what lies in their files.

Bottleneck: some system calls a spill file, 20 us, and a readlink a descriptor of every process.
Nothing is written, no page is touched, and no run is kept waiting: leases are asked for and not
taken, but where the file system has no marks, see `is_held`. What others may have written (leases,
attributes, command lines) is passed on as text.

Limits: processes of another machine, or of a container beside this one, cannot be seen; their runs
are told alive or dead by their leases alone. What is looked at changes meanwhile: a report is true
of each part at the moment it was looked at.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from overspill.linux.cachestat import cached_pages
from overspill.linux.holders import (
    PROC,
    MappedRange,
    OpenFiles,
    command_of,
    find_mappings,
    find_open_files,
)
from overspill.linux.identity import is_this_boot
from overspill.linux.locks import flock_owners
from overspill.linux.mounts import filesystem_type, free_disk_bytes, total_disk_bytes
from overspill.linux.paths import require_path
from overspill.storage.lease_records import LeaseRecord, read_lease
from overspill.storage.leases import is_beyond_locks, is_held, lease_in_place, run_directories
from overspill.storage.run_removal import DEAD_DIRECTORY, LEASE_NAME, SPILL_FILE, is_removable
from overspill.storage.run_reports import (
    FileReport,
    ProcessReport,
    RunReport,
    SpillDirReport,
    State,
)
from overspill.storage.spill_dirs import unreadable
from overspill.storage.spill_records import recorded_tensor

_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# By name, which is random: on btrfs the kernel lists other device numbers than stat gives, and to
# stat what a descriptor leads to could wait for a file system that does not answer.
_OPEN_LEASE = re.compile(r"/((?:run|dead)-[0-9a-f]{32})/lease$")
_SPILL_FILE_MAPPED = rb"/((?:run|dead)-[0-9a-f]{32})/(spill_[0-9a-f]{16,32}\.bin)( \(deleted\))?$"
# Gone, or the name of something else.
_NO_RUN = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_ORDER: dict[State, int] = {"alive": 0, "unknown": 1, "dead": 2}


def survey_spill_dir(spill_dir: str | Path, *, proc: Path = PROC) -> SpillDirReport:
    """Look at every run of a spill directory; changes nothing, and keeps no run waiting.

    Args:
        spill_dir: The directory.
        proc: Where /proc is.

    Returns:
        What is there.

    Raises:
        SpillDirError: It is missing, no directory, or cannot be read.
        UnavailableError: Its file system cannot be asked.
        InputError: It is no path.
    """
    place = Path(os.path.realpath(require_path(spill_dir)))
    require_readable(place)
    directories = run_directories(place)
    # Before a lease is opened here, which would count as held by this process.
    seen = _Seen(
        find_open_files(_OPEN_LEASE, proc=proc) if directories else OpenFiles({}, frozenset()),
        flock_owners(proc=proc),
        proc,
    )
    found = [_report(directory, seen) for directory in directories]
    runs = [
        replace(run, is_removable=is_removable(run.directory)) for run in found if run is not None
    ]
    mapped = _mapped_files(place, runs, proc)
    runs = [_with_mappings(run, mapped) for run in runs]
    return SpillDirReport(
        directory=place,
        runs=tuple(sorted(runs, key=lambda run: (_ORDER[run.state], -(run.age_s or 0)))),
        unnamed_files=len(mapped.unnamed),
        unnamed_bytes=sum(mapped.unnamed.values()),
        file_system=filesystem_type(place),
        free_bytes=free_disk_bytes(place),
        total_bytes=total_disk_bytes(place),
    )


def require_readable(spill_dir: Path) -> None:
    """Refuse a directory that is missing, none, or cannot be listed.

    Raises:
        SpillDirError: Which of these it is, and what to do.
    """
    try:
        os.scandir(spill_dir).close()
    except OSError as error:
        raise unreadable(error, spill_dir) from error


@dataclass(frozen=True)
class _Seen:
    """What of the processes was seen before the runs were looked at."""

    leases: OpenFiles
    owners: dict[tuple[int, int], frozenset[int]]
    proc: Path

    def holders(self, directory: Path, lease: os.stat_result) -> list[int]:
        pids = self.leases.holders.get(directory.name, frozenset())
        # Who took the lock is listed also where its descriptors are not shown.
        taken = self.owners.get((lease.st_dev, lease.st_ino), frozenset())
        return sorted(pids | (taken & self.leases.hidden))


def _report(directory: Path, seen: _Seen) -> RunReport | None:
    """A run; None where it is gone meanwhile, or the name is somebody else's."""
    with ExitStack() as done:
        try:
            place = os.open(directory, _LOOK | os.O_DIRECTORY)
            done.callback(os.close, place)
            files = _files(place)
        except PermissionError:
            return RunReport(directory, "unknown", _told_closed(directory))
        except OSError as error:
            if error.errno in _NO_RUN:
                return None
            return RunReport(directory, "unknown", f"it cannot be looked into: {_reason(error)}")
        try:
            lease = os.open(LEASE_NAME, _LOOK, dir_fd=place)
            done.callback(os.close, lease)
            record = read_lease(lease)
            if record is not None:
                return _judged(directory, lease, record, files, seen)
        except FileNotFoundError:
            return RunReport(directory, "dead", "its founder made no lease", files=files)
        except OSError as error:
            told = f"its lease cannot be read: {_reason(error)}"
            return RunReport(directory, "unknown", told, files=files)
        told = "its lease is not of a run: nothing removes it"
        return RunReport(directory, "unknown", told, files=files)


def _judged(
    directory: Path,
    lease: int,
    record: LeaseRecord,
    files: tuple[FileReport, ...],
    seen: _Seen,
) -> RunReport:
    held = is_held(lease, marked=record.asks_marks) and lease_in_place(lease, directory)
    here = None if record.host is None else is_this_boot(record.host)
    pids = seen.holders(directory, os.fstat(lease)) if held else []
    state, reason = _state(directory, record, held, seen_here=bool(pids))
    age = None if record.started_s is None else max(0.0, time.time() - record.started_s)
    processes = tuple(ProcessReport(pid, command_of(pid, proc=seen.proc), True) for pid in pids)
    return RunReport(directory, state, reason, record, age, here, processes, files)


def _state(
    directory: Path, record: LeaseRecord, held: bool | None, *, seen_here: bool
) -> tuple[State, str]:
    foreign = record.host is not None and not is_this_boot(record.host)
    elsewhere = "it began on another machine, or before this one was restarted"
    if held is None:
        return "unknown", "the file system does not tell whether its lease is held"
    if held and foreign:
        return "alive", f"its lease is held; {elsewhere}"
    if held:
        hidden = "its lease is held by processes that cannot be seen from here"
        return "alive", "" if seen_here else hidden
    if is_beyond_locks(record, directory):
        return "unknown", f"{elsewhere}, and the locks of this mount do not reach there"
    if DEAD_DIRECTORY.fullmatch(directory.name):
        return "dead", "being removed, or left half-way by who removed it"
    if not record.signed:
        return "dead", "its founder did not sign its lease"
    return "dead", f"nobody holds its lease; {elsewhere}" if foreign else ""


def _told_closed(directory: Path) -> str:
    try:
        return f"it belongs to user {directory.stat().st_uid} and cannot be looked into"
    except OSError:
        return "it cannot be looked into"


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or errno.EIO)


def _files(place: int) -> tuple[FileReport, ...]:
    found = []
    for name in os.listdir(place):
        if SPILL_FILE.fullmatch(name):
            try:
                fd = os.open(name, _LOOK, dir_fd=place)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                continue  # discarded meanwhile
            try:
                file = _file(name, fd)
            finally:
                os.close(fd)
            if file is not None:
                found.append(file)
    return tuple(sorted(found, key=lambda file: (-file.nbytes, file.name)))


def _file(name: str, fd: int) -> FileReport | None:
    held = os.fstat(fd)
    if not stat.S_ISREG(held.st_mode):
        return None
    cached = cached_pages(fd)
    return FileReport(
        name,
        held.st_size,
        recorded_tensor(fd, held.st_size),
        None if cached is None else cached.resident_bytes,
        None if cached is None else cached.dirty_bytes,
    )


@dataclass
class _Mapped:
    """What the processes of all runs map: of files by run and name, and of files without one."""

    named: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    unnamed: dict[tuple[str, int], int] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)

    def enter(self, pid: int, one: MappedRange) -> None:
        run, name, deleted, nameless = one.found
        if deleted or nameless:
            self.unnamed[one.file] = max(one.nbytes, self.unnamed.get(one.file, 0))
        else:
            self.named.setdefault((run, name), set()).add(pid)


def _mapped_files(place: Path, runs: list[RunReport], proc: Path) -> _Mapped:
    nameless = re.escape(os.fsencode(place)) + rb"/#[0-9]+( \(deleted\))$"
    pattern = re.compile(_SPILL_FILE_MAPPED + rb"|" + nameless)
    names = {run.directory.name for run in runs}
    mapped = _Mapped()
    # Of a set: a process may hold several runs.
    for pid in sorted({process.pid for run in runs for process in run.processes}):
        ranges = find_mappings(pid, pattern, proc=proc)
        if ranges is None:
            mapped.closed.add(pid)
        for one in ranges or []:
            if one.found[0] in names or not one.found[0]:
                mapped.enter(pid, one)
    return mapped


def _with_mappings(run: RunReport, mapped: _Mapped) -> RunReport:
    return replace(
        run,
        processes=tuple(
            replace(process, shows_mappings=process.pid not in mapped.closed)
            for process in run.processes
        ),
        files=tuple(_with_mappers(run, file, mapped) for file in run.files),
    )


def _with_mappers(run: RunReport, file: FileReport, mapped: _Mapped) -> FileReport:
    pids = mapped.named.get((run.directory.name, file.name))
    return file if pids is None else replace(file, mapped_by=tuple(sorted(pids)))
