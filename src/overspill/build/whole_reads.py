"""Reads of files that nothing should change meanwhile: all that was asked for, or an error."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from overspill.errors import StaleFileError

Bytes = npt.NDArray[np.uint8]


def fill_from(
    fd: int,
    out: Bytes,
    offset: int,
    *,
    path: str,
    remedy: str,
    unaligned: Callable[[], int] | None = None,
) -> None:
    """Fill a flat array of bytes from a place in a file; threads may read at the same time.

    Args:
        fd: The opened file.
        out: What is filled.
        offset: Where in the file, in bytes.
        path: The file's name, for messages.
        remedy: What to do about a file that cannot be read, or ends early.
        unaligned: Called where the file system wants another alignment than a read past the cache
            has; gives the descriptor to go on with. None: the file is read through the cache.

    Raises:
        StaleFileError: The file ends before all was read, or cannot be read.
    """
    done = 0
    while done < len(out):
        try:
            count = os.preadv(fd, [out[done:].data], offset + done)
        except OSError as error:
            if error.errno != errno.EINVAL or unaligned is None:
                raise unreadable(path, error, remedy=remedy) from error
            fd, unaligned = unaligned(), None
            continue
        if count == 0:
            raise StaleFileError(f"{path} was cut while in use", path=path, remedy=remedy)
        done += count


def unreadable(path: str, error: OSError, *, remedy: str) -> StaleFileError:
    """The error of a file that the system does not open, or does not read."""
    return StaleFileError(
        f"{path} cannot be read: {error.strerror}", path=path, errno=error.errno, remedy=remedy
    )
