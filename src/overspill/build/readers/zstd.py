"""Zstandard streams, by Arrow's codec; see `compressed`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

import pyarrow as pa

from overspill.build.readers.compressed import ByteStream, cut_short, damaged


class _Counted:
    """What Arrow reads from."""

    closed = False

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.done = 0

    def read(self, most: int) -> bytes:
        data = self._file.read(most)
        self.done += len(data)
        return data

    def close(self) -> None:
        """Nothing: the descriptor has another owner."""


class _Zstd:
    def __init__(self, file: FileIO, path: str) -> None:
        self._counted, self._path = _Counted(file), path
        self._inflated = pa.CompressedInputStream(pa.PythonFile(self._counted, mode="r"), "zstd")

    @property
    def done(self) -> int:
        return self._counted.done

    @done.setter
    def done(self, value: int) -> None:
        self._counted.done = value

    def read(self, most: int) -> bytes:
        try:
            return bytes(self._inflated.read(most))
        except OSError as error:  # Arrow's own, of a stream that is wrong; it has no error number
            if error.errno is not None:
                raise
            if "Truncated" in str(error):
                raise cut_short(self._path, "zstd") from error
            raise damaged(self._path, "zstd", error) from error

    def close(self) -> None:
        self._inflated.close()


@contextmanager
def opened_zstd(file: FileIO, path: str) -> Iterator[ByteStream]:
    """The inflated bytes of an open file; see `compressed.opened_stream`."""
    stream = _Zstd(file, path)
    try:
        yield stream
    finally:
        stream.close()
