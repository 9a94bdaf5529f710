"""The members of a .npz file: their headers, and their elements in order without loading one.

Bottleneck: inflating, 0.2 GB/s; what is stored runs at a checksum's speed. zipfile checks each
member's CRC once its end is read. Nothing is unpickled.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from overspill.build.readers.npy_header import read_header
from overspill.build.readers.source import SourceFile
from overspill.errors import InputError

_SUFFIX = ".npy"
_SKIP_BYTES = 1 << 20
# zipfile inflates these piece by piece; of bzip2 and LZMA, 4 KiB may come to gigabytes at once.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class NpzMember:
    """One array of an archive.

    Attributes:
        name: As numpy.load knows it.
        dtype: Element type, byte order included.
        shape: Logical shape.
        fortran: Whether the first axis varies fastest.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def count(self) -> int:
        """Its rows."""
        return self.shape[0] if self.shape else 0

    @property
    def holds_numbers(self) -> bool:
        """Whether it is neither of objects, nor of text, nor of records."""
        return self.dtype.kind in "biufc"

    @property
    def row_by_row(self) -> bool:
        """Whether one row lies after another."""
        return not self.fortran or math.prod(self.shape[1:]) == 1 or len(self.shape) < 2


def read_members(source: SourceFile) -> dict[str, NpzMember]:
    """The headers of all members.

    Raises:
        InputError: The file is no archive of arrays, or is damaged.
    """
    found = {}
    with source.opened() as file, _opened_archive(file, source.path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(_SUFFIX):
                continue
            if info.compress_type not in _METHODS:
                raise InputError(
                    f"{source.path} cannot be read as .npz: {info.filename!r} is neither stored "
                    "nor deflated, as numpy saves arrays",
                    path=source.path,
                    remedy="make it again with numpy.savez or numpy.savez_compressed",
                )
            with archive.open(info) as member:
                shape, fortran, dtype = read_header(member)
            name = info.filename.removesuffix(_SUFFIX)
            found[name] = NpzMember(name, dtype, tuple(shape), fortran)
    if not found:
        raise InputError(
            f"{source.path} holds no arrays: it has no member that ends in {_SUFFIX}",
            path=source.path,
            remedy="save it with numpy.savez",
        )
    return found


class NpzReader:
    """Reads members of one archive side by side, as a context manager."""

    def __init__(self, source: SourceFile) -> None:
        self._source, self._stack = source, ExitStack()

    def __enter__(self) -> NpzReader:
        with ExitStack() as stack:
            file = stack.enter_context(self._source.opened())
            self._archive = stack.enter_context(_opened_archive(file, self._source.path))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: Any) -> bool | None:
        return self._stack.__exit__(*raised)

    def column(self, member: NpzMember, *, first: int = 0) -> MemberElements:
        """The elements of a member in the file's order, from one of them on."""
        stream = self._stack.enter_context(self._archive.open(member.name + _SUFFIX))
        read_header(stream)
        elements = MemberElements(self._source.path, member, stream)
        elements.skip(first)
        return elements


class MemberElements:
    """A member's elements, one after another."""

    def __init__(self, path: str, member: NpzMember, stream: IO[bytes]) -> None:
        self._path, self._member, self._stream = path, member, stream

    def take(self, count: int) -> npt.NDArray[Any]:
        """The next ones, of the machine's byte order."""
        out = np.empty(count, self._member.dtype)
        view = out.view(np.uint8).data
        done = 0
        while done < len(view):
            data = self._stream.read(len(view) - done)
            if not data:
                raise InputError(
                    f"member {self._member.name!r} of {self._path} ends before its last element",
                    path=self._path,
                    remedy="the archive was cut or written over: make it again",
                )
            view[done : done + len(data)] = data
            done += len(data)
        return out.astype(out.dtype.newbyteorder("="), copy=False)

    def skip(self, count: int) -> None:
        """Read over some: an inflated stream has no other way."""
        left = count * self._member.dtype.itemsize
        while left and (data := self._stream.read(min(left, _SKIP_BYTES))):
            left -= len(data)

    def require_end(self) -> None:
        """Refuse a member that goes on; reading its end is also what checks its CRC."""
        if self._stream.read(1):
            raise InputError(
                f"member {self._member.name!r} of {self._path} is longer than its header says",
                path=self._path,
                remedy="make the archive again",
            )


@contextmanager
def _opened_archive(file: FileIO, path: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,  # a method of compression that Python has not
        RuntimeError,  # an encrypted member
        ValueError,
    ) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} cannot be read as .npz: {error or 'it ends too early'}",
            path=path,
            remedy="was it cut or damaged? make it again with numpy.savez",
        ) from error
