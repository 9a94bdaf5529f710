"""Columns of edges that are filled in pieces: in memory, or in a file with bounded dirty pages.

A file is written by write(2) and read by read(2), although a tensor maps it: both see one page
cache, and pages that no page table refers to can be dropped behind the writer.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from overspill.errors import StaleFileError
from overspill.linux.blocks import finish_writeback, refused, write_all

Array = npt.NDArray[Any]
_WINDOW_BYTES = 32 << 20


class Column(Protocol):
    """What one output or scratch array can do, whatever its home."""

    @property
    def array(self) -> Array:
        """All of it, in place."""
        ...

    def load(self, start: int, stop: int) -> Array:
        """A copy of a piece, valid until the next load."""
        ...

    def target(self, start: int, stop: int) -> Array:
        """Where a piece may be made: hand it to `store` then."""
        ...

    def store(self, start: int, piece: Array) -> None:
        """Put a piece in its place, after all pieces before it."""
        ...

    def scatter(self, start: int, piece: Array) -> None:
        """Put a piece in its place, in any order; `settle` comes after some of them."""
        ...

    def settle(self) -> None:
        """Leave nothing dirty."""
        ...

    def close(self, *, synced: bool) -> None:
        """Let go of what is held; before that, have everything on the device. Idempotent."""
        ...


class _Buffer:
    """Memory for a piece at a time, taken when it is first asked for."""

    def __init__(self, array: Array, most: int) -> None:
        self._most = min(most, len(array))
        self._held = np.empty((0, *array.shape[1:]), array.dtype)

    def piece(self, count: int) -> Array:
        if len(self._held) < count:
            shape = (max(count, self._most), *self._held.shape[1:])
            self._held = np.empty(shape, self._held.dtype)
        return self._held[:count]


class MemoryColumn:
    """A column in memory or shared memory.

    Args:
        array: (n,) or (n, words).
        most: The longest piece that is usually loaded.
    """

    def __init__(self, array: Array, most: int) -> None:
        self.array = array
        self._scratch = _Buffer(array, most)

    def load(self, start: int, stop: int) -> Array:
        """See `Column`."""
        piece = self._scratch.piece(stop - start)
        piece[:] = self.array[start:stop]
        return piece

    def target(self, start: int, stop: int) -> Array:
        """See `Column`: the place itself."""
        return self.array[start:stop]

    def store(self, start: int, piece: Array) -> None:
        """See `Column`."""
        place = self.array[start : start + len(piece)]
        if place.__array_interface__["data"] != piece.__array_interface__["data"]:
            place[:] = piece

    scatter = store

    def settle(self) -> None:
        """See `Column`."""

    def close(self, *, synced: bool) -> None:
        """See `Column`."""


class FileColumn:
    """A column in a reserved file that a tensor maps.

    Args:
        array: As for `MemoryColumn`, over the mapping.
        most: The longest piece that is usually loaded or made.
        path: The file.

    Raises:
        StaleFileError: The file cannot be opened: somebody removed it.
    """

    def __init__(self, array: Array, most: int, path: str) -> None:
        self.array = array
        self._path = path
        self._item_bytes = array.nbytes // len(array)
        self._read, self._made = _Buffer(array, most), _Buffer(array, most)
        self._behind = self._written = 0
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StaleFileError(
                "a spill file cannot be opened again",
                path=path,
                errno=error.errno,
                remedy="begin again with whole files, and leave them alone while in use",
            ) from error

    def load(self, start: int, stop: int) -> Array:
        """See `Column`; StaleFileError where the file cannot be read."""
        piece = self._read.piece(stop - start)
        view = piece.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], start * self._item_bytes + done)
            except OSError as error:
                raise refused(error, "cannot read", self._fd, self._path, len(view)) from error
            if got == 0:
                raise StaleFileError(
                    "a spill file was cut short",
                    path=self._path,
                    remedy="begin again with whole files, and leave them alone while in use",
                )
            done += got
        return piece

    def target(self, start: int, stop: int) -> Array:
        """See `Column`: a buffer."""
        return self._made.piece(stop - start)

    def store(self, start: int, piece: Array) -> None:
        """See `Column`; DiskRefusedError where the disk refuses."""
        self.scatter(start, piece)
        self._written = start * self._item_bytes + piece.nbytes
        if self._written - self._behind >= _WINDOW_BYTES:
            finish_writeback(self._fd, self._behind, self._written - self._behind)
            self._behind = self._written

    def scatter(self, start: int, piece: Array) -> None:
        """See `Column`; DiskRefusedError where the disk refuses."""
        write_all(self._fd, piece.data, start * self._item_bytes, path=self._path)

    def settle(self) -> None:
        """See `Column`; DiskRefusedError where the disk refuses."""
        finish_writeback(self._fd, 0, self.array.nbytes)
        self._behind = self._written = 0

    def close(self, *, synced: bool) -> None:
        """See `Column`; DiskRefusedError where the disk refuses."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if synced:
                os.fsync(fd)
        except OSError as error:
            raise refused(error, "cannot sync", fd, self._path, self.array.nbytes) from error
        finally:
            os.close(fd)
