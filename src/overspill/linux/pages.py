"""Advice about, and residency of, the pages of a mapping: madvise(2) and mincore(2).

Limits: for a file that the process neither owns nor may write, the kernel hides residency and
mincore reports every page as present (since Linux 5.2).
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Literal

import numpy as np

from overspill.errors import MappingError
from overspill.linux import libc

PAGE_BYTES = mmap.PAGESIZE
Advice = Literal["normal", "random", "sequential", "willneed", "dontneed"]
_ADVICE = {"normal": 0, "random": 1, "sequential": 2, "willneed": 3, "dontneed": 4}
# One byte a page: 4 GiB of mapping a call, so that the answer for any mapping is 1 MiB at most.
_PAGES_A_CALL = 1 << 20


def advise(address: int, nbytes: int, advice: Advice) -> None:
    """Tell the kernel how a range will be used; the range is widened to whole pages.

    "dontneed" drops the process's own pages of the range: of a private mapping the changes are
    lost, and the pages next to the range are dropped with it.

    Args:
        address: Start of the range, inside a mapping.
        nbytes: Its length; 0 does nothing.
        advice: What to expect.

    Raises:
        MappingError: The range is not mapped, or the kernel refused.
    """
    if nbytes == 0:
        return
    first, length = _whole_pages(address, nbytes)
    try:
        libc.call("madvise", first, length, _ADVICE[advice])
    except OSError as error:
        raise _failed(error, f"madvise({advice})", nbytes) from error


def resident_pages(address: int, nbytes: int) -> np.ndarray:
    """Say which pages of a range are in memory, without touching them.

    Args:
        address: Start of the range, inside a mapping.
        nbytes: Its length.

    Returns:
        Bool array (pages,), one for each page that the range touches. One byte of memory a page.

    Raises:
        MappingError: Part of the range is not mapped.
    """
    if nbytes == 0:
        return np.empty(0, dtype=np.bool_)
    first, length = _whole_pages(address, nbytes)
    found = np.empty(-(-length // PAGE_BYTES), dtype=np.uint8)
    try:
        libc.call("mincore", first, length, found.ctypes.data)
    except OSError as error:
        raise _failed(error, "mincore", nbytes) from error
    return (found & 1).view(np.bool_)  # the other bits are reserved


def resident_bytes(address: int, nbytes: int) -> int:
    """Count the bytes of a range that are in memory; partly covered pages count with their part.

    2 to 3 ms a GiB, resident or not; 1 MiB of memory at most.

    Raises:
        MappingError: Part of the range is not mapped.
    """
    total = 0
    end = address + nbytes
    start = address
    while start < end:
        stop = min(end, start - start % PAGE_BYTES + _PAGES_A_CALL * PAGE_BYTES)
        found = resident_pages(start, stop - start)
        total += int(np.count_nonzero(found)) * PAGE_BYTES
        if found[0]:
            total -= start % PAGE_BYTES
        if found[-1]:
            total -= -stop % PAGE_BYTES
        start = stop
    return total


def _whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    first = address - address % PAGE_BYTES
    return first, address + nbytes - first


def _failed(error: OSError, call: str, nbytes: int) -> MappingError:
    number = error.errno or errno.EINVAL
    return MappingError(
        f"{call} failed: {os.strerror(number)}",
        errno=number,
        needed_bytes=nbytes,
        remedy="pass a range inside a live mapping",
    )
