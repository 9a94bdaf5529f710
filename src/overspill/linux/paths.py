"""Paths as callers give them, and what stands at them, asked before anything is opened.

ctypes cuts a path at its first NUL and would act on another file; Python's own calls refuse it by
an error that names no path. So every path is looked at where it enters.
"""

from __future__ import annotations

import errno
import os
import stat

from overspill.errors import InputError, MappingError

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own blocks are


def require_path(path: object) -> str:
    """A path as text that the system can take.

    Args:
        path: Text, bytes or anything with ``__fspath__``.

    Returns:
        The path, links and relative parts as they are.

    Raises:
        InputError: It is no path, holds a NUL byte, or has characters no file name here can have.
    """
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
        os.fsencode(text)
    except TypeError as error:
        raise InputError(
            f"not a path: {path!r}", value=repr(path), remedy="pass text or a pathlib.Path"
        ) from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"the path {path!r} has characters that no file name can have here",
            value=repr(path),
            remedy="check how the path was put together, and the locale",
        ) from error
    if "\0" in text:
        raise InputError(
            f"the path {text!r} holds a NUL byte, which no path can",
            value=repr(text),
            remedy="check how the path was put together",
        )
    return text


def printable(path: str | os.PathLike[str]) -> str:
    """A path as text that any message can hold; the path itself where it is UTF-8."""
    return os.fspath(path).encode(errors="backslashreplace").decode()


def require_regular_file(path: str) -> None:
    """Refuse a directory, a device, a pipe or a socket, before an open can act on it.

    What is missing or cannot be looked at is left to whoever opens it.

    Raises:
        MappingError: Something other than a regular file stands there; errno is EISDIR for a
            directory, else EINVAL.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - the plain call, without a Path to build
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise MappingError(
            "not a regular file",
            path=path,
            errno=errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL,
            remedy="give the path of a file",
        )


def missing_block_bytes(path: str) -> int:
    """Bytes of a file that the disk has given no blocks for, so that a write to them may run out.

    Args:
        path: A regular file that can be read.

    Returns:
        0 for a file that is written or reserved throughout, and where the file system does not
        tell. Blocks alone do not tell: compression saves them, too.

    Raises:
        MappingError: The file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise MappingError(
            f"cannot open the file: {os.strerror(error.errno or errno.EIO)}",
            path=path,
            errno=error.errno,
            remedy="make it readable and writable for this user",
        ) from error
    try:
        held = os.fstat(fd)
        missing = held.st_size - held.st_blocks * _BLOCK_BYTES
        # Nor do holes alone: what is reserved and not yet written counts as one.
        return missing if missing > 0 and _first_hole(fd) < held.st_size else 0
    finally:
        os.close(fd)


def _first_hole(fd: int) -> int:
    try:
        return os.lseek(fd, 0, os.SEEK_HOLE)
    except OSError:  # an empty file, or a file system that cannot seek for holes
        return os.fstat(fd).st_size
