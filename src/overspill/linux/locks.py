"""flock(2): whole-file locks that a fork shares and that the kernel drops with the last holder.

The lock belongs to the open file description: a fork's copy of the descriptor holds the same lock,
and killing the owner leaves it with the child. Opening the file again makes an independent holder,
also within one process. fcntl(2)'s record locks would vanish when any descriptor of the file is
closed.
"""

from __future__ import annotations

import errno
import os

from overspill.errors import UnavailableError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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


def unlock(fd: int) -> None:
    """Let go of the lock, for every process that shares this open file description."""
    _flock(fd, "LOCK_UN", blocking=True)


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
