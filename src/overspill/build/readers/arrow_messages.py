"""The record batches of an Arrow IPC file or stream: where each buffer lies, without reading it.

Arrow's own reader loads a batch whole, and files written by one call hold one batch. So the framing
(8 bytes, a flatbuffer, a body) and the few fields of the flatbuffer that say where the body's
buffers are get read here; see Arrow's columnar format, "Encapsulated message format".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from overspill.errors import InputError

MAGIC = b"ARROW1"
_STEP_BYTES = 16 << 20  # so that a damaged size costs no more memory than there is data
_CONTINUES = 0xFFFFFFFF
_MOST_METADATA_BYTES = 64 << 20
_BATCH = 3  # the kind of message
_CODECS = ("lz4", "zstd")


@dataclass(frozen=True)
class BatchMessage:
    """One record batch.

    Attributes:
        rows: How many.
        nulls: Of each node, in the schema's order, depth first.
        buffers: Of each buffer, where it lies in the file and its size there.
        views: Of each column of views, how many more buffers it has.
        codec: "lz4", "zstd" or None.
        start: Where the message begins.
        end: Where it ends.
    """

    rows: int
    nulls: tuple[int, ...]
    buffers: tuple[tuple[int, int], ...]
    views: tuple[int, ...]
    codec: str | None
    start: int
    end: int


def read_at(fd: int, offset: int, nbytes: int, path: str) -> bytes:
    """So many bytes of a file.

    Raises:
        InputError: The file ends before.
    """
    parts = []
    while nbytes and (part := os.pread(fd, min(nbytes, _STEP_BYTES), offset)):
        parts.append(part)
        offset, nbytes = offset + len(part), nbytes - len(part)
    if nbytes:
        raise _cut(path)
    return b"".join(parts)


def read_batches(fd: int, path: str, nbytes: int) -> Iterator[BatchMessage]:
    """Where the record batches of a file lie, in order.

    Raises:
        InputError: It is cut short or damaged.
    """
    at = 8 if os.pread(fd, len(MAGIC), 0) == MAGIC else 0
    while at < nbytes:
        size, first = struct.unpack("<I", read_at(fd, at, 4, path))[0], at + 4
        if size == _CONTINUES:  # files from before Arrow 0.15 have the size at once
            size, first = struct.unpack("<I", read_at(fd, at + 4, 4, path))[0], at + 8
        if size == 0:
            return
        if size > _MOST_METADATA_BYTES:
            raise damaged(path, f"a message announces {size} bytes of metadata")
        held = read_at(fd, first, size, path)
        try:
            kind, body_bytes, batch = _message(held, at, first + size)
        except (struct.error, IndexError) as error:
            raise damaged(path, str(error)) from error
        at = first + size + body_bytes
        if body_bytes < 0 or at > nbytes:
            raise _cut(path)
        if kind == _BATCH and batch is not None:
            yield batch


def _cut(path: str) -> InputError:
    return InputError(
        f"{path} is cut short: a message in it ends after the file",
        path=path,
        remedy="fetch or make the file again",
    )


def damaged(path: str, told: str) -> InputError:
    """The error of a file that is no Arrow, or no longer."""
    return InputError(
        f"{path} cannot be read as Arrow: {told}",
        path=path,
        remedy="was it cut, or is it of another format? make it again",
    )


def _message(held: bytes, start: int, body: int) -> tuple[int, int, BatchMessage | None]:
    message = _Table(held, struct.unpack_from("<I", held, 0)[0])
    kind, body_bytes = message.number(1, "<B"), message.number(3, "<q")
    header = message.table(2)
    if kind != _BATCH or header is None:
        return kind, body_bytes, None
    compression = header.table(3)
    codec = None if compression is None else _CODECS[compression.number(0, "<b")]
    batch = BatchMessage(
        rows=header.number(0, "<q"),
        nulls=tuple(nulls for _, nulls in header.vector(1, "<qq")),
        buffers=tuple((body + offset, size) for offset, size in header.vector(2, "<qq")),
        views=tuple(count for (count,) in header.vector(4, "<q")),
        codec=codec,
        start=start,
        end=body + body_bytes,
    )
    if batch.rows < 0 or any(size < 0 or offset < body for offset, size in batch.buffers):
        raise struct.error("a batch of a negative size")
    return kind, body_bytes, batch


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, held: bytes, at: int) -> None:
        self._held, self._at = held, at
        self._fields = at - struct.unpack_from("<i", held, at)[0]
        self._size = struct.unpack_from("<H", held, self._fields)[0]

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry >= self._size:
            return None
        offset = struct.unpack_from("<H", self._held, self._fields + entry)[0]
        return self._at + offset if offset else None

    def number(self, field: int, layout: str) -> int:
        """A number; 0 where it is left out."""
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from(layout, self._held, place)[0])

    def table(self, field: int) -> _Table | None:
        """A table within."""
        place = self._place(field)
        return None if place is None else _Table(self._held, self._follow(place))

    def vector(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """A vector of structs or numbers."""
        place = self._place(field)
        if place is None:
            return []
        start = self._follow(place)
        count = struct.unpack_from("<I", self._held, start)[0]
        nbytes = count * struct.calcsize(layout)
        if start + 4 + nbytes > len(self._held):
            raise struct.error("a vector ends after its message")
        return list(struct.iter_unpack(layout, self._held[start + 4 : start + 4 + nbytes]))

    def _follow(self, place: int) -> int:
        return place + int(struct.unpack_from("<I", self._held, place)[0])
