"""A report is there whole or not at all: written under another name, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from overspill.errors import DiskRefusedError, InputError
from overspill.linux.paths import require_path

_REMEDIES = {
    errno.EACCES: "give a path in a directory that this user may write to",
    errno.EROFS: "give a path on a disk that may be written to",
    errno.ENOENT: "make the directory first",
    errno.ENOTDIR: "give a path below a directory",
    errno.ENOSPC: "make room on the disk, or give a path on another one",
    errno.EDQUOT: "make room within the quota, or give a path on another disk",
    errno.ENAMETOOLONG: "give a shorter name",
}


def require_writable_report(path: str | Path) -> Path:
    """Refuse a path that no report could be published at, before a job of days begins.

    A file is made beside it and removed, so that what forbids it is met as the end would meet it.

    Args:
        path: Where the report is to go.

    Returns:
        The absolute path: the program may change its directory meanwhile.

    Raises:
        InputError: It is no path, or something other than a file stands there.
        DiskRefusedError: No file can be made there.
    """
    target = Path(os.path.abspath(require_path(path)))  # noqa: PTH100 - keeps links as they are
    try:
        regular = stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        regular = True
    except OSError as error:
        raise _refused(target, error) from error
    if not regular:
        raise InputError(
            f"{target} is not a file", path=str(target), remedy="give the path of a file"
        )
    publish_text(target, "", keep=False)
    return target


def publish_text(target: Path, text: str, *, keep: bool = True, durable: bool = False) -> None:
    """Put a text file in place of what stands at a path, in one step.

    Whoever reads it sees the old one or the new one whole, also when several processes publish at
    the same path. Killed in between, it leaves a file whose name begins with a dot, and the old
    one as it was.

    Args:
        target: The path.
        text: What the file shall hold.
        keep: False only tries whether it could be done.
        durable: Wait until it has reached the disk.

    Raises:
        DiskRefusedError: The disk refused; the old file, if any, stands as it did.
    """
    # Of a length of its own: the longest name that the disk takes must not become too long.
    partial = target.with_name(f".overspill-{secrets.token_hex(8)}.partial")
    try:
        # Within the umask, as any file that the program writes.
        with partial.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if keep:
            partial.replace(target)
    except OSError as error:
        raise _refused(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _refused(target: Path, error: OSError) -> DiskRefusedError:
    return DiskRefusedError(
        f"the report {target} cannot be written: {error.strerror}",
        path=str(target),
        errno=error.errno,
        remedy=_REMEDIES.get(error.errno or 0, "give another path"),
    )
