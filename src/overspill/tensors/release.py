"""Page cache of disk-backed tensors, given back to the kernel; and how much memory there is."""

from __future__ import annotations

import logging
import os

import torch

from overspill.errors import StaleFileError
from overspill.linux.cache import ReleaseResult, drop_cache, release_mapped
from overspill.linux.cgroups import available_memory_bytes as _measured
from overspill.linux.identity import identify_file
from overspill.linux.paths import require_path, require_regular_file
from overspill.linux.processes import maps_path
from overspill.tensors.backing import file_behind
from overspill.tensors.registry import MappedFile

logger = logging.getLogger("overspill")


def release_page_cache(tensor: torch.Tensor) -> ReleaseResult:
    """Write a tensor's whole file back, and ask the kernel to drop it from memory.

    The tensor and every view over the file stay valid; the next touch reads from the disk. In a
    private mapping (a dataset's array) pages that were written to stay. Costs the write-back of
    what is dirty. Thread-safe; a thread that reads meanwhile brings pages back. Do not write to a
    private mapping meanwhile: a page's first write may be lost, if it falls between the look at
    which pages were written to and their release.

    Args:
        tensor: A disk-backed tensor or a view of one.

    Returns:
        True only when every step completed, with the file's resident bytes before and after. If
        not, the step that failed and why; later steps were skipped. Completed is not evicted:
        another process may keep pages.
    """
    record = file_behind(tensor) if isinstance(tensor, torch.Tensor) else None
    if record is None:  # nothing to release, and so no refusal to log
        return ReleaseResult(False, 0, 0, "open", "the tensor is not disk-backed")
    reason = _replaced(record)
    if reason is not None:
        return _logged(record.path, ReleaseResult(False, 0, 0, "open", reason))
    result = release_mapped(record.address, record.nbytes, record.path, shared=record.shared)
    return _logged(record.path, result)


def release_page_cache_by_path(path: str | os.PathLike[str]) -> ReleaseResult:
    """Write a file back that nothing maps here, and ask the kernel to drop it from memory.

    Args:
        path: The file.

    Returns:
        As `release_page_cache` gives. Refused, with the reason, where this process maps the file:
        its pages would stay, silently. Another process's mapping cannot be seen; its pages stay.

    Raises:
        InputError: The path is none, or holds a NUL byte.
    """
    place = require_path(path)
    if has_live_mapping(place):
        reason = f"this process maps {place}: release a tensor over it with release_page_cache"
        return _logged(place, ReleaseResult(False, 0, 0, "unmap", reason))
    try:
        require_regular_file(place)
        return _logged(place, drop_cache(place))
    except OSError as error:
        return _logged(place, ReleaseResult(False, 0, 0, "open", str(error)))


def has_live_mapping(path: str | os.PathLike[str]) -> bool:
    """Whether this process maps the file now, by whatever means.

    Args:
        path: The file; it may have been unlinked meanwhile.

    Returns:
        False also where the kernel's list of mappings cannot be read, and where another file has
        taken the path since.

    Raises:
        InputError: The path is none, or holds a NUL byte.
    """
    return maps_path(require_path(path))


def available_memory_bytes() -> int:
    """Bytes of memory that can still be allocated.

    Clean page cache can be reclaimed and counts as available; dirty pages, pages under write-back
    and shared memory do not.

    Returns:
        The smaller of the system's available memory and the tightest memory cgroup's headroom,
        over every ancestor (v1, v2, hybrid, nested); never negative.
    """
    return _measured()


def _logged(path: str, result: ReleaseResult) -> ReleaseResult:
    if not result:
        told = "could not release %s: %s: %s"
        logger.error(told, path, result.failed_step, result.reason)
        return result
    logger.info(
        "released %s: %d of %d resident bytes left",
        path,
        result.resident_after_bytes,
        result.resident_before_bytes,
    )
    return result


def _replaced(record: MappedFile) -> str | None:
    """Why the path no longer leads to the file that is mapped, or None."""
    try:
        found = identify_file(record.path)
    except StaleFileError as error:
        return str(error)
    if (found.device, found.inode) != (record.identity.device, record.identity.inode):
        return f"{record.path} is another file now"
    return None
