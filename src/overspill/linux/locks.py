"""flock(2): whole-file locks that a fork shares and that the kernel drops with the last holder.

The lock belongs to the open file description: a fork's copy of the descriptor holds the same lock,
and killing the owner leaves it with the child. Opening the file again makes an independent holder,
also within one process. fcntl(2)'s record locks would vanish when any descriptor of the file is
closed.

A span is marked by an open file description's own record lock, which keeps nobody out: it lives as
long as the last descriptor or mapping of that opening, in whatever process, descriptors on their
way through a socket included, and the kernel lists it. So it is an account that nothing can leak.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from pathlib import Path

from overspill.errors import UnavailableError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


PROC = Path("/proc")
# struct flock: type, whence, start, length, process (0 for a lock of the open file description).
_FLOCK = struct.Struct("@hhqqi4x")


def lock_shared(fd: int, *, blocking: bool = True) -> bool:
    """Take or convert to a shared lock; several holders may have one at a time.

    Converting an exclusive lock is not atomic: another holder may get in between.

    Args:
        fd: An open descriptor of the lock file.
        blocking: Wait for an exclusive holder to let go.

    Returns:
        Whether the lock is held now; False only when not blocking.

    Raises:
        UnavailableError: The file system has no locks.
    """
    return _flock(fd, "LOCK_SH", blocking=blocking)


def lock_exclusive(fd: int, *, blocking: bool = False) -> bool:
    """Take or convert to an exclusive lock; see `lock_shared` for the rest."""
    return _flock(fd, "LOCK_EX", blocking=blocking)


def open_locked(path: Path, *, flags: int = 0) -> int | None:
    """Open a file, or make it, and lock it alone; the descriptor holds the lock.

    Args:
        path: The file; a link is not followed.
        flags: More flags to open it with.

    Returns:
        The descriptor; None where another holder has the lock, or had it and removed the file.

    Raises:
        OSError: It cannot be opened.
        UnavailableError: The file system has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o644)
    try:
        with suppress(FileNotFoundError):
            # The inode is compared after locking: whoever held the lock may have removed it.
            if lock_exclusive(fd) and os.path.samestat(os.fstat(fd), path.stat()):
                return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def unlock(fd: int) -> None:
    """Let go of the lock, for every process that shares this open file description."""
    _flock(fd, "LOCK_UN", blocking=True)


def mark_span(fd: int, start: int, nbytes: int) -> bool:
    """Mark bytes of an open file, for as long as any descriptor or mapping of this opening lives.

    Args:
        fd: A descriptor open for reading; its copies, forked or sent, share the mark.
        start: Where the span begins; it may lie beyond the file's end.
        nbytes: Its length, at least 1.

    Returns:
        Whether it is marked: False where the system or the file system has no such locks.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return False
    try:
        fcntl.fcntl(
            fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, nbytes, 0)
        )
    except OSError:
        return False
    return True


def is_marked(fd: int, start: int) -> bool | None:
    """Whether another opening of the file has a mark at a place; asks, and keeps nobody out.

    Args:
        fd: A descriptor of the file; a mark of its own opening does not count.
        start: Where the mark begins.

    Returns:
        The answer; None where the system or the file system has no such locks.
    """
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return None
    # Who could write here? The kernel answers with a mark that stands against it, or with none.
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    except OSError:
        return None
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def flock_owners(*, proc: Path = PROC) -> dict[tuple[int, int], frozenset[int]]:
    """The processes that took the whole-file locks of this machine, as the kernel lists them.

    Returns:
        Processes by device and inode of the file; one may have ended and left its lock to a fork.
        None of other containers, nor any where the list cannot be read.
    """
    try:
        lines = (proc / "locks").read_text().splitlines()
    except OSError:
        return {}
    found: dict[tuple[int, int], set[int]] = {}
    for line in lines:
        # "7: FLOCK  ADVISORY  READ 1234 fe:00:2146329 0 EOF"; who waits has "->" for FLOCK.
        fields = line.split()
        if len(fields) == 8 and fields[1] == "FLOCK":
            major, minor, inode = fields[5].split(":")
            file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
            found.setdefault(file, set()).add(int(fields[4]))
    return {file: frozenset(pids) for file, pids in found.items()}


def marked_bytes(start: int, *, proc: Path = PROC) -> int:
    """Add up the marks of every file of this machine that begin at one place.

    Args:
        start: Where they begin, as given to `mark_span`.
        proc: Where /proc is.

    Returns:
        Their bytes, each file counted once; 0 where the kernel's list cannot be read.
    """
    # Twice: the list comes in pages, and what goes in between may hide an entry of the next one.
    marks = _marks(start, proc / "locks") | _marks(start, proc / "locks")
    return sum(marks.values())


def _marks(start: int, path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        # "7: OFDLCK ADVISORY  READ -1 fe:00:2146329 first last"
        fields = line.split()
        if len(fields) == 8 and fields[1] == "OFDLCK" and fields[6] == str(start):
            found[fields[5]] = int(fields[7]) - start + 1
    return found


def _flock(fd: int, name: str, *, blocking: bool) -> bool:
    if fcntl is None:
        raise UnavailableError("this system has no flock", remedy="run on Linux")
    try:
        fcntl.flock(fd, getattr(fcntl, name) | (0 if blocking else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        number = error.errno or errno.ENOLCK
        raise UnavailableError(
            f"the file cannot be locked: {os.strerror(number)}",
            errno=number,
            remedy="choose a directory on a local file system",
        ) from error
    return True
