"""Files read from their first byte to their last, inflated on the way: .gz and .zst.

Bottleneck: inflating, 0.2 GB/s for gzip. zlib and Arrow's zstd work a block at a time and without
the interpreter's lock; memory is one block, and for zstd the window its writer chose (8 MiB as a
rule). Several members one after another are one text, as gzip(1) and zstd(1) have it, and zeros
after the last are padding. A stream that is cut short is an error, never a short read.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Literal, Protocol, cast

from overspill.build.readers.source import SourceFile
from overspill.errors import InputError

Compression = Literal["gzip", "zstd"]
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_READ_BYTES = 1 << 18
_GZIP_WINDOW = 31  # zlib's number for "a gzip header, any window"


class ByteStream(Protocol):
    """Bytes in order.

    Attributes:
        done: How far into the file, compressed bytes counted, the stream has read.
    """

    done: int

    def read(self, most: int) -> bytes:
        """The next bytes, at least one and at most so many; none only at the end."""


def compression_of(source: SourceFile) -> Compression | None:
    """How a file is compressed, by its first bytes.

    Raises:
        InputError: Its name says that it is compressed, and its bytes that it is not.
    """
    with source.opened() as file:
        start = file.read(4)
    found: Compression | None = None
    if start.startswith(_GZIP):
        found = "gzip"
    elif start == _ZSTD or (start[1:] == b"\x2a\x4d\x18" and start[:1] in b"PQRSTUVWXYZ[\\]^_"):
        found = "zstd"
    told = _SUFFIXES.get(Path(source.path).suffix.lower())
    if told is not None and found is None:
        what = "is empty" if not start else f"does not begin as {told} does"
        raise InputError(
            f"{source.path} {what}",
            path=source.path,
            remedy="was it cut, or decompressed already? then name it without its last suffix",
        )
    return found


def name_inside(path: str) -> str:
    """A file's name without a suffix that says how it is compressed."""
    return path[: -len(Path(path).suffix)] if Path(path).suffix.lower() in _SUFFIXES else path


@contextmanager
def opened_stream(source: SourceFile) -> Iterator[ByteStream]:
    """A file's bytes in order, inflated where it is compressed.

    Raises:
        InputError: It cannot be read, is damaged, cut short, or was changed.
    """
    compression = compression_of(source)
    with source.opened() as file:
        if compression is None:
            yield _Plain(file)
        elif compression == "gzip":
            yield _Gzip(file, source.path)
        else:
            # By name: only zstd needs pyarrow here, and its memory.
            module = importlib.import_module("overspill.build.readers.zstd")
            with module.opened_zstd(file, source.path) as stream:
                yield cast("ByteStream", stream)


def cut_short(path: str, kind: str) -> InputError:
    """The error of a compressed file that ends before its stream does."""
    return InputError(
        f"{path} is cut short: its {kind} stream has no end",
        path=path,
        remedy="fetch or make the file again",
    )


def damaged(path: str, kind: str, error: Exception) -> InputError:
    """The error of a compressed file that does not inflate."""
    return InputError(
        f"{path} is damaged: its {kind} stream does not decompress ({error})",
        path=path,
        remedy="fetch or make the file again",
    )


class _Plain:
    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.done = 0

    def read(self, most: int) -> bytes:
        data = self._file.read(most)
        self.done += len(data)
        return data


class _Gzip:
    def __init__(self, file: FileIO, path: str) -> None:
        self._file, self._path = file, path
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._held = b""  # read and not yet inflated
        self._between = False  # whether one member has ended and no other begun
        self._ended = False
        self.done = 0

    def read(self, most: int) -> bytes:
        while True:
            self._refill()
            if self._between and not self._held:
                if self._ended:
                    return b""
                continue
            self._between = False
            # Without input too: a full output may have left some of it within zlib.
            data = self._inflate(most)
            if data:
                return data
            if self._ended and not self._held and not self._between:
                raise cut_short(self._path, "gzip")

    def _refill(self) -> None:
        if not self._held and not self._ended:
            self._held = self._file.read(_READ_BYTES)
            self._ended = not self._held
            self.done += len(self._held)
        if self._between:
            self._held = self._held.lstrip(b"\0")

    def _inflate(self, most: int) -> bytes:
        try:
            data = self._member.decompress(self._held, most)
        except zlib.error as error:
            raise damaged(self._path, "gzip", error) from error
        if self._member.eof:
            self._held = self._member.unused_data
            self._member, self._between = zlib.decompressobj(_GZIP_WINDOW), True
        else:
            self._held = self._member.unconsumed_tail
        return data
