"""An array file that grows row by row, and gets its header when its length is known."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.linux.blocks import write_all
from overspill.storage.arrays import encode_header, partial_path, refused_array, sync_directory
from overspill.storage.open_files import close_file, close_in_children
from overspill.storage.records import FileRecord
from overspill.storage.write_behind import WriteBehind

_HEADER_BYTES = 4096


class GrowingArrayWriter:
    """Writes an array file as `ArrayWriter` does, where nothing tells how long it becomes.

    It has its name once it is finished. Blocks are not reserved: a full disk is told by the write.
    Dirty pages and page cache stay bounded. One thread at a time.

    Args:
        path: Where the file goes; its directory exists.
        dtype: A name of numpy's that an array file can hold.
        row_shape: The shape of one row.
        record_path: The path as the manifest names it.

    Raises:
        DiskRefusedError: The file cannot be made.
    """

    def __init__(
        self, path: Path, *, dtype: str, row_shape: Sequence[int], record_path: str
    ) -> None:
        self.dtype, self.row_shape = dtype, tuple(row_shape)
        self.count = 0
        self._path, self._record_path = path, record_path
        self._hash = hashlib.sha256()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = os.open(partial_path(path), flags, 0o644)
        except OSError as error:
            raise refused_array(error, self._path) from error
        close_in_children(self._fd)
        self._out = WriteBehind(self._fd, path=str(path), offset=_HEADER_BYTES)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows.

        Raises:
            InputError: They are of another type or shape.
            DiskRefusedError: The disk refused.
        """
        if rows.dtype.name != self.dtype or rows.shape[1:] != self.row_shape:
            raise InputError(
                f"rows {rows.dtype} {rows.shape} for {self.dtype} (..., {self.row_shape})",
                path=str(self._path),
                remedy="give the same types and shapes for every batch",
            )
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self._hash.update(data)
        self._out.append(data)
        self.count += len(rows)

    def finish(self) -> FileRecord:
        """Write the header, sync, and give the file its name (DiskRefusedError)."""
        shape = (self.count, *self.row_shape)
        self._out.drain()
        write_all(self._fd, encode_header(self.dtype, shape), 0, path=str(self._path))
        try:
            os.fsync(self._fd)
            self.close()
            partial_path(self._path).rename(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise refused_array(error, self._path) from error
        digest = self._hash.hexdigest()
        return FileRecord(self._record_path, self.dtype, shape, self._out.offset, digest)

    def close(self) -> None:
        """Close the file; unfinished, it keeps the name that only its maker knows."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_file(fd)
