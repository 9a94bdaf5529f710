"""One spill file: made under a random name, reserved before anything else, removed unless kept."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from overspill.errors import DiskRefusedError, StaleFileError
from overspill.linux.blocks import reserve_blocks
from overspill.linux.identity import FileIdentity, identify_file
from overspill.linux.locks import lock_exclusive, mark_span, marked_bytes, unlock
from overspill.linux.mounts import free_disk_bytes, total_disk_bytes
from overspill.linux.remedies import OPEN_FILES
from overspill.storage.open_files import close_file, close_in_children
from overspill.storage.run_removal import LEDGER_NAME, RUN_DIRECTORY, SPILL_FILE
from overspill.units import format_bytes

# Always left free: a disk that is full to the brim takes its whole machine down.
FLOOR_SHARE = 20
_REMEDIES = {
    **OPEN_FILES,
    errno.ENOENT: "the run directory was removed by somebody else; start again",
}


class SpillFile:
    """A reserved file and its descriptor; leaving the ``with`` block closes it.

    The file stays only if `keep` was called within the block.

    Attributes:
        path: Absolute.
        fd: Open for reading and writing, until the block ends.
        nbytes: The file's size, every block reserved.
    """

    def __init__(self, path: str, fd: int, nbytes: int) -> None:
        self.path = path
        self.fd = fd
        self.nbytes = nbytes
        self._kept = False

    def keep(self) -> None:
        """Let the file outlive the block: something maps it now."""
        self._kept = True

    def sync(self) -> None:
        """Write the file back to the device.

        Raises:
            DiskRefusedError: The device could not write a page.
        """
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise refused_file(error, "cannot write back", self.path, self.nbytes) from error

    def __enter__(self) -> SpillFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # close(2) reports what fsync has reported before
            close_file(self.fd)
        if not self._kept:
            Path(self.path).unlink(missing_ok=True)


def create_spill_file(
    run_dir: Path, nbytes: int, *, disk_limit_bytes: int | None = None
) -> SpillFile:
    """Make a spill file (mode 0600) and reserve its every block.

    Args:
        run_dir: The run's directory.
        nbytes: The size wanted.
        disk_limit_bytes: What all files of the run together may hold, the counted nameless ones
            included; None is no limit.

    Returns:
        The open file, to be used in a ``with`` block.

    Raises:
        DiskRefusedError: The limit, the share of the disk that stays free, or the disk itself
            stands against it; nothing is left behind.
    """
    # Random: a name made of shape and size collides, and would replace live data silently.
    path = run_dir / f"spill_{secrets.token_hex(8)}.bin"
    with ExitStack() as undo:
        with within_limit(run_dir, nbytes, disk_limit_bytes):
            fd = _reserved(path, nbytes, undo)
        undo.pop_all()
    return SpillFile(str(path), fd, nbytes)


@contextmanager
def within_limit(run_dir: Path, nbytes: int, limit_bytes: int | None) -> Iterator[None]:
    """Keep the run's other processes from making files, once there is room for one more.

    Held until the blocks are reserved and counted, so that two processes cannot both fit the rest.
    Not reentrant: within it, a file is made without a limit.

    Args:
        run_dir: The run's directory.
        nbytes: What the block will make.
        limit_bytes: What all files of the run may hold; None holds nobody up.

    Raises:
        DiskRefusedError: There is no room within the limit.
    """
    if limit_bytes is None:
        yield
        return
    ledger = _open(run_dir / LEDGER_NAME, os.O_CREAT, nbytes)
    with ExitStack() as closing:
        closing.callback(os.close, ledger)
        lock_exclusive(ledger, blocking=True)
        # Not by the close alone: a process that another thread forks meanwhile holds on.
        closing.callback(unlock, ledger)
        require_within_limit(run_dir, nbytes, limit_bytes)
        yield


def count_nameless(fd: int, run_dir: Path, nbytes: int) -> None:
    """Count a file without a name among a run's, until the last process lets go of it.

    The kernel keeps the account, so that a process that is killed leaves none behind. Where the
    system has no such locks, the file is not counted.
    """
    mark_span(fd, _account(run_dir), nbytes)


def run_bytes(run_dir: Path) -> int:
    """The bytes that a run's spill files hold now, and its counted files without a name."""
    total = marked_bytes(_account(run_dir))
    with os.scandir(run_dir) as entries:
        for entry in entries:
            if SPILL_FILE.fullmatch(entry.name):
                with suppress(FileNotFoundError):  # discarded meanwhile
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def is_spill_file(path: str) -> bool:
    """Whether this is the path of a run's spill file."""
    place = Path(path)
    return bool(SPILL_FILE.fullmatch(place.name) and RUN_DIRECTORY.fullmatch(place.parent.name))


def remove_spill_file(path: str, identity: FileIdentity) -> bool:
    """Unlink a spill file, if it is still the one meant.

    Args:
        path: Its path.
        identity: Which file it must be; another one under that name stays.

    Returns:
        Whether it was removed; False where it is gone or was replaced.

    Raises:
        DiskRefusedError: It could not be removed.
    """
    try:
        if identify_file(path) != identity:
            return False
        os.unlink(path)  # noqa: PTH108 - the plain call, without a Path to build
    except (StaleFileError, FileNotFoundError):
        return False
    except OSError as error:
        raise refused_file(error, "cannot remove the file", path, identity.nbytes) from error
    return True


def spare_bytes(place: Path) -> int:
    """Bytes that the disk may still give to spill files; below 0 where it is past its floor.

    Raises:
        UnavailableError: The file system cannot be asked.
    """
    return free_disk_bytes(place) - total_disk_bytes(place) // FLOOR_SHARE


def _account(run_dir: Path) -> int:
    """The place at which the marks of a run's nameless files begin; its name is random."""
    digest = hashlib.blake2b(os.fsencode(run_dir.name), digest_size=7).digest()
    return int.from_bytes(digest)


def _reserved(path: Path, nbytes: int, undo: ExitStack) -> int:
    require_floor(path.parent, nbytes, reserved=False)
    fd = _open(path, os.O_CREAT | os.O_EXCL, nbytes)
    close_in_children(fd)
    undo.callback(path.unlink, missing_ok=True)
    undo.callback(close_file, fd)
    os.fchmod(fd, 0o600)
    reserve_blocks(fd, nbytes, path=str(path))
    # Again, because another run may have reserved at the same moment.
    require_floor(path.parent, nbytes, reserved=True)
    return fd


def _open(path: Path, flags: int, nbytes: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except OSError as error:
        raise refused_file(error, "cannot create a file", str(path), nbytes) from error


def require_floor(place: Path, nbytes: int, *, reserved: bool) -> None:
    """Refuse (DiskRefusedError) what would leave the disk less than its floor free."""
    floor = total_disk_bytes(place) // FLOOR_SHARE
    left = free_disk_bytes(place) - (0 if reserved else nbytes)
    if left < floor:
        raise DiskRefusedError(
            f"the disk under {place} would keep less than {100 // FLOOR_SHARE}% "
            f"({format_bytes(floor)}) free",
            path=str(place),
            errno=errno.ENOSPC,
            needed_bytes=nbytes,
            available_bytes=max(0, left + nbytes - floor),
            remedy="free space on this disk, or set OVERSPILL_DIR to a directory on another one",
        )


def require_within_limit(run_dir: Path, nbytes: int, limit: int) -> None:
    """Refuse (DiskRefusedError) what would take a run's files past a limit."""
    held = run_bytes(run_dir)
    if held + nbytes > limit:
        raise DiskRefusedError(
            f"this run holds {format_bytes(held)} of the {format_bytes(limit)} that it may "
            "(OVERSPILL_DISK_LIMIT)",
            path=str(run_dir),
            errno=errno.EDQUOT,
            needed_bytes=nbytes,
            available_bytes=max(0, limit - held),
            remedy="raise OVERSPILL_DISK_LIMIT, or free tensors that nobody needs any more",
        )


def refused_file(error: OSError, what: str, path: str, nbytes: int) -> DiskRefusedError:
    """The error for a file that a system call refused, with what to do about it."""
    number = error.errno or errno.EIO
    return DiskRefusedError(
        f"{what}: {os.strerror(number)}",
        path=path,
        errno=number,
        needed_bytes=nbytes,
        remedy=_REMEDIES.get(number, "check the disk (dmesg), or choose another directory"),
    )
