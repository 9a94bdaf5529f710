"""The header of a .npy file, checked, and slices of its data read without mapping or pickling.

Memory order does not matter: a Fortran-ordered array is a C-ordered one with its axes reversed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from overspill.errors import InputError

MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class NpyFile:
    """A .npy file whose size is exactly what its header says.

    Attributes:
        path: The file.
        dtype: Element type, byte order included.
        shape: Logical shape.
        fortran: Whether the first axis varies fastest in the file.
        offset: Where the data starts.
    """

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def file_bytes(self) -> int:
        """Size of the file when its header was read."""
        return self.offset + self.nbytes


def read_npy_header(path: str) -> NpyFile:
    """Read and check a header, versions 1 and 2.

    Raises:
        InputError: Missing, not a .npy file, of objects, or of another size than the header says.
    """
    try:
        with Path(path).open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise InputError(
                    f"{path} is not a .npy file: its first bytes are not the format's",
                    path=path,
                    remedy="save it with numpy.save; raw bytes have neither dtype nor shape",
                )
            file.seek(0)
            shape, fortran, dtype = _header(file, path)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", path=path) from error
    if dtype.hasobject or dtype.names is not None:
        raise InputError(f"{path} holds {dtype}, not numbers", path=path, value=str(dtype))
    found = NpyFile(path, dtype, shape, fortran, offset)
    if size != found.file_bytes:
        raise InputError(
            f"{path} has {size} bytes where its header says {found.file_bytes}",
            path=path,
            value=str(size),
            remedy="the file was cut or written over: make it again",
        )
    return found


def _header(file: BinaryIO, path: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            return npy_format.read_array_header_1_0(file)
        if version == (2, 0):
            return npy_format.read_array_header_2_0(file)
    except (ValueError, SyntaxError) as error:
        raise InputError(f"{path} has a damaged .npy header: {error}", path=path) from error
    raise InputError(f"{path} has .npy version {version}; 1.0 and 2.0 are read", path=path)


class NpyReader:
    """Reads slices of a .npy file by pread; close it, or use it as a context manager."""

    def __init__(self, file: NpyFile) -> None:
        self.file = file
        try:
            self._fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(
                f"cannot read {file.path}: {error.strerror}", path=file.path
            ) from error
        # Read once: its pages should not push out what others use (ignored by older kernels).
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NOREUSE)

    def __enter__(self) -> NpyReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def elements(self, first: int, out: npt.NDArray[Any]) -> None:
        """Fill a contiguous array of the file's dtype with elements in the file's order."""
        view = out.reshape(-1).view(np.uint8)
        offset = self.file.offset + first * self.file.dtype.itemsize
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done:].data], offset + done)
            except OSError as error:
                raise InputError(
                    f"cannot read {self.file.path}: {error.strerror}", path=self.file.path
                ) from error
            if count == 0:
                raise InputError(f"{self.file.path} was cut while in use", path=self.file.path)
            done += count

    def rows(self, first: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Read ``len(out)`` rows from `first`, whatever the memory order.

        Args:
            first: The first row.
            out: C-contiguous (rows, ...) of the file's dtype; scratch space of that size is taken
                for Fortran order.

        Returns:
            `out`, filled.
        """
        count, width = len(out), math.prod(out.shape[1:])
        if not self.file.fortran or width <= 1:
            self.elements(first * width, out)
            return out
        columns = np.empty((width, count), self.file.dtype)
        for column in range(width):
            self.elements(column * self.file.shape[0] + first, columns[column])
        out[:] = columns.reshape(*out.shape[:0:-1], count).T
        return out
