"""One input file: checked when it is first opened, and the same file until its last byte is read.

A build opens its inputs several times and reads some of them for hours. A file that is replaced,
cut or written over in between gives edges and rows that belong to neither version, so identity and
time of change are compared whenever it is opened again and once more when it has been read.
Limits: the time of change has the kernel's resolution, a few milliseconds; what happens to a file
of the same size within that time of its first opening is not seen.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO

from overspill.build.remedies import INPUTS_ALONE
from overspill.errors import InputError
from overspill.linux.identity import FileIdentity, identify_file


@dataclass(frozen=True)
class SourceFile:
    """A regular file as it was when a build first opened it.

    Attributes:
        path: The file.
        identity: Which file it is, and its size.
        modified_ns: When its content was last changed.
    """

    path: str
    identity: FileIdentity
    modified_ns: int

    @classmethod
    def check(cls, path: str) -> SourceFile:
        """Look at a file.

        Raises:
            InputError: It is missing, cannot be read, or is a directory, a pipe or a device.
        """
        with _opened(path) as file:
            return _describe(path, file.fileno())

    @property
    def nbytes(self) -> int:
        """The file's size."""
        return self.identity.nbytes

    @contextmanager
    def opened(self) -> Iterator[FileIO]:
        """The file, open for reading without a buffer; compared before and after the block.

        Raises:
            InputError: It cannot be read, or is no longer the file that was checked. Also where the
                block failed on the content of a file that was changed.
        """
        with _opened(self.path) as file:
            self._require_same(file.fileno())
            try:
                yield file
            except InputError:
                self._require_same(file.fileno())  # then that, not the content, is what is wrong
                raise
            self._require_same(file.fileno())

    def _require_same(self, fd: int) -> None:
        now = _describe(self.path, fd)
        if now == self:
            return
        if now.nbytes != self.nbytes:
            told = f"its {self.nbytes} bytes became {now.nbytes}"
        elif now.identity != self.identity:
            told = "another file stands at its path"
        else:
            told = "it was written to"
        raise InputError(
            f"{self.path} was changed while the build read it: {told}",
            path=self.path,
            remedy=INPUTS_ALONE,
        )


@contextmanager
def _opened(path: str) -> Iterator[FileIO]:
    """Open a regular file; an OSError of the block becomes an InputError."""
    try:
        # Without O_NONBLOCK, a named pipe would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _require_regular(fd, path)
            with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
                yield file
        finally:
            os.close(fd)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}", path=path, remedy="check the path"
        ) from error


def _require_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        remedy = f"give its files: {path}/*.csv"
        raise InputError(f"cannot read {path}: it is a directory", path=path, remedy=remedy)
    if not stat.S_ISREG(mode):
        raise InputError(
            f"cannot read {path}: it is a pipe or a device, not a file",
            path=path,
            remedy="save it as a file: a build reads its inputs more than once",
        )


def _describe(path: str, fd: int) -> SourceFile:
    return SourceFile(path, identify_file(fd), os.fstat(fd).st_mtime_ns)
