"""O_DIRECT, switched on and off on an open descriptor: writes past the page cache.

It is a hint that a file system may refuse, now or at the first write. Whoever uses it keeps an
ordinary write at hand.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Offset, length and address: a multiple of every device's logical block, and of a page.
DIRECT_ALIGNMENT_BYTES = 4096


def set_direct(fd: int, on: bool) -> bool:
    """Switch O_DIRECT of an open descriptor on or off.

    The flag belongs to the open file description: every duplicate of the descriptor, a forked
    child's too, sees it.

    Args:
        fd: An open descriptor.
        on: Whether writes shall go past the page cache.

    Returns:
        Whether the descriptor is as asked now; False where the system or the file system has no
        direct I/O, and nothing was changed.
    """
    flag = getattr(os, "O_DIRECT", 0)
    if fcntl is None or not flag:
        return not on
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
    except OSError:
        return False
    return True


def aligned_bytes(nbytes: int) -> npt.NDArray[np.uint8]:
    """Fresh memory for direct I/O: (nbytes,), from the start of a page on."""
    raw = np.empty(nbytes + DIRECT_ALIGNMENT_BYTES, np.uint8)
    skip = -raw.ctypes.data % DIRECT_ALIGNMENT_BYTES
    return raw[skip : skip + nbytes]
