"""One file of a pack, read in order through a descriptor, and dropped from the cache behind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.errors import MappingError, StaleFileError
from overspill.storage.arrays import read_array_info
from overspill.storage.open_files import close_file
from overspill.storage.records import FileRecord

_PIECE_BYTES = 4 << 20
# The most that the kernel holds in one folio of read-ahead, on any file system here.
_FOLIO_BYTES = 1 << 20
_REMEDY = "leave the directory alone while it is read; remove it to have it packed again"


class PackFile:
    """Reads parts of an array file into given memory.

    A cut file is told by a short read, never by a signal. Threads may read at the same time.

    Args:
        path: The file.
        record: What the manifest says of it.

    Raises:
        StaleFileError: It is gone or differs.
        FormatError: Its header is damaged.
    """

    def __init__(self, path: Path, record: FileRecord) -> None:
        self._path = path
        self._start = read_array_info(path).payload_offset
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._stale(f"it cannot be opened: {error.strerror}", error) from error
        if os.fstat(self._fd).st_size != record.nbytes:
            self.close()
            raise self._stale(f"it has not the {record.nbytes} bytes that were recorded")
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read(self, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill memory from a place of the payload.

        What was read leaves the page cache; what lies around it is left to who reads there.

        Raises:
            StaleFileError: The file was cut.
            MappingError: The disk refused to read.
        """
        start = self._start + offset
        # The kernel drops whole folios only, and one may have begun in the part before.
        first = max(0, start - _FOLIO_BYTES)
        done = 0
        while done < out.size:
            piece = out[done : done + _PIECE_BYTES]
            try:
                count = os.preadv(self._fd, [piece.data], start + done)
            except OSError as error:
                raise MappingError(
                    f"the disk refused to read: {error.strerror}",
                    path=str(self._path),
                    errno=error.errno,
                    remedy="check the disk's health (dmesg), then remove the pack's directory, so "
                    "that the batches are packed again",
                ) from error
            if count == 0:
                raise self._stale("it was cut")
            done += count
            os.posix_fadvise(self._fd, first, start + done - first, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_file(fd)

    def _stale(self, what: str, error: OSError | None = None) -> StaleFileError:
        return StaleFileError(
            f"a file of the pack is not what it was: {what}",
            path=str(self._path),
            errno=None if error is None else error.errno,
            remedy=_REMEDY,
        )
