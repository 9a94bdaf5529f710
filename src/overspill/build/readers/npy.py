"""The header of a .npy file, checked, and its elements read without mapping or pickling."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from overspill.build.readers.npy_header import read_header
from overspill.build.readers.source import SourceFile
from overspill.build.remedies import INPUTS_ALONE
from overspill.errors import InputError
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, DirectReader
from overspill.storage.records import STORED_DTYPES, numpy_view_dtype

MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class NpyFile:
    """A .npy file whose size is exactly what its header says.

    Attributes:
        source: The file as it was when its header was read.
        dtype: Element type, byte order included.
        shape: Logical shape.
        fortran: Whether the first axis varies fastest in the file.
        offset: Where the data starts.
        type_name: What the elements are: the name of `dtype`, or of a type that numpy lacks, whose
            bits `dtype` then holds.
    """

    source: SourceFile
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int
    type_name: str

    @property
    def path(self) -> str:
        """Where the file is."""
        return self.source.path

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def file_bytes(self) -> int:
        """Size of the file when its header was read."""
        return self.offset + self.nbytes


def read_npy_header(source: SourceFile) -> NpyFile:
    """Read and check a header, versions 1 and 2.

    A type that numpy lacks is known by what `bits_dtype` gives.

    Raises:
        InputError: Not a .npy file, of objects, or of another size than the header says.
    """
    path = source.path
    with source.opened() as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError(
                f"{path} is not a .npy file: its first bytes are not the format's",
                path=path,
                remedy="save it with numpy.save; raw bytes have neither dtype nor shape",
            )
        file.seek(0)
        shape, fortran, dtype = _header(file, path)
        offset = file.tell()
    lacking = named_bits(dtype)
    if dtype.hasobject or (dtype.names is not None and lacking is None):
        raise InputError(
            f"{path} holds {dtype}, not numbers",
            path=path,
            value=str(dtype),
            remedy="save an array of numbers",
        )
    held = dtype if lacking is None else numpy_view_dtype(lacking)
    found = NpyFile(source, held, shape, fortran, offset, lacking or dtype.name)
    if source.nbytes != found.file_bytes:
        raise InputError(
            f"{path} has {source.nbytes} bytes where its header says {found.file_bytes}",
            path=path,
            value=str(source.nbytes),
            remedy="the file was cut or written over: make it again",
        )
    return found


def _header(file: BinaryIO, path: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        return read_header(file)
    except ValueError as error:
        raise InputError(
            f"{path} has a damaged .npy header: {error}",
            path=path,
            remedy="fetch the file again, or save it again with numpy.save",
        ) from error


def bits_dtype(name: str) -> np.dtype[Any]:
    """How a .npy file says that it holds a type that numpy lacks.

    Args:
        name: A name of `STORED_DTYPES`, such as "bfloat16".

    Returns:
        One field, named for the type, of unsigned integers of its width: [("bfloat16", "<u2")].
    """
    return np.dtype([(name, numpy_view_dtype(name))])


def named_bits(dtype: np.dtype[Any]) -> str | None:
    """The type that numpy lacks and that `bits_dtype` gave this one for; None if it did not."""
    name = (dtype.names or ("",))[0]
    return name if is_lacking(name) and dtype == bits_dtype(name) else None


def is_lacking(name: str) -> bool:
    """Whether it names a type that array files can hold and numpy lacks."""
    return name in STORED_DTYPES and numpy_view_dtype(name).name != name


class NpyReader:
    """Reads a .npy file by pread, as a context manager; the file must stay as it was checked."""

    def __init__(self, file: NpyFile) -> None:
        self.file = file
        self._stack = ExitStack()

    def __enter__(self) -> NpyReader:
        self._fd = self._stack.enter_context(self.file.source.opened()).fileno()
        # Read once: its pages should not push out what others use (ignored by older kernels).
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NOREUSE)
        self._direct = self._stack.enter_context(DirectReader(self._fd))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def elements(self, first: int, out: npt.NDArray[Any]) -> None:
        """Fill a contiguous array of the file's dtype with elements in the file's order."""
        view = out.reshape(-1).view(np.uint8)
        offset = self.file.offset + first * self.file.dtype.itemsize
        done = 0
        with self._named_errors():
            while done < len(view):
                count = os.preadv(self._fd, [view[done:].data], offset + done)
                if count == 0:
                    raise EOFError
                done += count

    def room_bytes(self, count: int) -> int:
        """Memory that `part` wants for so many elements."""
        return count * self.file.dtype.itemsize + 2 * DIRECT_ALIGNMENT_BYTES

    def part(self, first: int, count: int, memory: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Elements in the file's order, read past the page cache where they do not lie in it.

        Threads may read at the same time.

        Args:
            first: The first element.
            count: How many.
            memory: `room_bytes`, from the start of a page on.

        Returns:
            A view of the memory.
        """
        nbytes = count * self.file.dtype.itemsize
        offset = self.file.offset + first * self.file.dtype.itemsize
        with self._named_errors():
            start = self._direct.read(offset, nbytes, memory)
        found = memory[start : start + nbytes].view(self.file.dtype)
        return found if found.flags.aligned else found.copy()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot read {self.file.path}: {error.strerror}",
                path=self.file.path,
                remedy="check the disk, or copy the file anew",
            ) from error
        except EOFError as error:
            raise InputError(
                f"{self.file.path} was cut while the build read it",
                path=self.file.path,
                remedy=INPUTS_ALONE,
            ) from error
