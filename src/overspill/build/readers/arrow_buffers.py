"""Columns of an Arrow record batch read some rows at a time, also from compressed buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import types

from overspill.build.readers.arrow_messages import BatchMessage, damaged, read_at
from overspill.errors import InputError

_STEP_BYTES = 16 << 20  # so that a damaged count costs no more memory than there is data


class RowsInParts(Protocol):
    """A column, or what it is made of."""

    def take(self, count: int) -> pa.Array:
        """The next rows; a multiple of 8 of them, but for the last."""


def can_be_cut(kind: pa.DataType) -> bool:
    """Whether columns of a type are read some rows at a time: numbers, text, lists of numbers."""
    if isinstance(kind, pa.BaseExtensionType):
        return can_be_cut(kind.storage_type)
    if types.is_fixed_size_list(kind):
        return _is_number(kind.value_type) or types.is_boolean(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_number(kind.value_type)
    return _is_number(kind) or types.is_boolean(kind) or _offset_width(kind) > 0


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_primitive(kind)) and kind.bit_width >= 8


def _offset_width(kind: pa.DataType) -> int:
    """Bytes of an offset of text, 0 for what is none."""
    if types.is_string(kind) or types.is_binary(kind):
        return 4
    return 8 if types.is_large_string(kind) or types.is_large_binary(kind) else 0


class BatchColumns:
    """The columns of one batch, each to be read from its start."""

    def __init__(self, fd: int, path: str, schema: pa.Schema, batch: BatchMessage) -> None:
        self._fd, self._path, self._batch = fd, path, batch
        *places, extent = _places(schema, batch.views)
        if extent != (len(batch.nulls), len(batch.buffers)):
            raise damaged(path, "a batch has other columns than the schema")
        self._places = dict(zip(schema.names, places, strict=True))
        self._schema = schema

    def column(self, name: str) -> RowsInParts:
        """One of them; `can_be_cut` holds for it."""
        node, buffer = self._places[name]
        return self._parts(self._schema.field(name).type, node, buffer)

    def _parts(self, kind: pa.DataType, node: int, buffer: int) -> RowsInParts:
        if isinstance(kind, pa.BaseExtensionType):
            return _Extended(kind, self._parts(kind.storage_type, node, buffer))
        valid = self._buffer(buffer) if self._batch.nulls[node] else None
        if types.is_fixed_size_list(kind):
            return _FixedLists(kind, valid, self._parts(kind.value_type, node + 1, buffer + 1))
        offsets = 4 if types.is_list(kind) else 8 if types.is_large_list(kind) else 0
        if offsets:
            values = self._parts(kind.value_type, node + 1, buffer + 2)
            return _Lists(kind, valid, _Offsets(self._buffer(buffer + 1), offsets), values)
        if _offset_width(kind):
            held = _Offsets(self._buffer(buffer + 1), _offset_width(kind))
            return _Text(kind, valid, held, self._buffer(buffer + 2))
        return _Numbers(kind, valid, self._buffer(buffer + 1))

    def _buffer(self, number: int) -> _Bytes:
        offset, nbytes = self._batch.buffers[number]
        return _Bytes(self._fd, self._path, (offset, nbytes), self._batch.codec)

    def holds_null_elements(self, name: str) -> bool:
        """Whether the lists of a column hold nulls: their bits do not begin at a byte."""
        kind, node = self._schema.field(name).type, self._places[name][0]
        lists = types.is_list(kind) or types.is_large_list(kind)
        return bool(lists and self._batch.nulls[node + 1])


class _Region:
    """A part of a file, for Arrow to inflate."""

    closed = False

    def __init__(self, fd: int, path: str, start: int, nbytes: int) -> None:
        self._fd, self._path, self._at, self._end = fd, path, start, start + nbytes

    def read(self, most: int) -> bytes:
        data = read_at(self._fd, self._at, min(most, self._end - self._at), self._path)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Nothing: the descriptor has another owner."""


class _Bytes:
    """One buffer, from its start to its end."""

    def __init__(self, fd: int, path: str, place: tuple[int, int], codec: str | None) -> None:
        self._path = path
        offset, nbytes = place
        if codec is not None and nbytes:
            # Compressed or not, a buffer begins with its size then; -1 says that it is not.
            size = struct.unpack("<q", read_at(fd, offset, 8, path))[0]
            offset, nbytes = offset + 8, nbytes - 8
            codec = None if size < 0 else codec
        self._stream: Any = _Region(fd, path, offset, nbytes)
        if codec is not None and nbytes:
            file = pa.PythonFile(self._stream, mode="r")
            self._stream = pa.CompressedInputStream(file, codec)

    def take(self, count: int) -> bytes:
        data = b""
        while left := count - len(data):
            part = self._stream.read(min(left, _STEP_BYTES)) if left > 0 else b""
            if not part:
                raise self.damaged()
            data = data + part if data else bytes(part)
        return data

    def damaged(self) -> InputError:
        return damaged(self._path, "the buffers of a column do not fit its batch")


def _bits(valid: _Bytes | None, count: int) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(valid.take(-(-count // 8)))


class _Numbers:
    def __init__(self, kind: pa.DataType, valid: _Bytes | None, data: _Bytes) -> None:
        self._kind, self._valid, self._data = kind, valid, data

    def take(self, count: int) -> pa.Array:
        valid = _bits(self._valid, count)
        data = pa.py_buffer(self._data.take(-(-count * self._kind.bit_width // 8)))
        return pa.Array.from_buffers(self._kind, count, [valid, data])


class _Offsets:
    def __init__(self, data: _Bytes, width: int) -> None:
        self._data, self._dtype = data, np.dtype(f"<i{width}")
        self._last: int | None = None

    def take(self, count: int) -> tuple[pa.Buffer, int]:
        """Offsets from 0 on of so many rows, and how much lies between them."""
        if self._last is None:
            self._last = int(np.frombuffer(self._data.take(self._dtype.itemsize), self._dtype)[0])
        held = np.empty(count + 1, self._dtype)
        held[0] = self._last
        held[1:] = np.frombuffer(self._data.take(count * self._dtype.itemsize), self._dtype)
        if held[0] < 0 or (held[1:] < held[:-1]).any():
            raise self._data.damaged()
        first, self._last = self._last, int(held[-1])
        held -= self._dtype.type(first)
        return pa.py_buffer(held), self._last - first


class _Text:
    def __init__(
        self, kind: pa.DataType, valid: _Bytes | None, offsets: _Offsets, data: _Bytes
    ) -> None:
        self._kind, self._valid, self._offsets, self._data = kind, valid, offsets, data

    def take(self, count: int) -> pa.Array:
        valid = _bits(self._valid, count)
        offsets, nbytes = self._offsets.take(count)
        data = pa.py_buffer(self._data.take(nbytes))
        return pa.Array.from_buffers(self._kind, count, [valid, offsets, data])


class _Lists:
    def __init__(
        self, kind: pa.DataType, valid: _Bytes | None, offsets: _Offsets, values: RowsInParts
    ) -> None:
        self._kind, self._valid, self._offsets, self._values = kind, valid, offsets, values

    def take(self, count: int) -> pa.Array:
        valid = _bits(self._valid, count)
        offsets, elements = self._offsets.take(count)
        children = [self._values.take(elements)]
        return pa.Array.from_buffers(self._kind, count, [valid, offsets], children=children)


class _FixedLists:
    def __init__(self, kind: pa.DataType, valid: _Bytes | None, values: RowsInParts) -> None:
        self._kind, self._valid, self._values = kind, valid, values

    def take(self, count: int) -> pa.Array:
        children = [self._values.take(count * self._kind.list_size)]
        valid = _bits(self._valid, count)
        return pa.Array.from_buffers(self._kind, count, [valid], children=children)


class _Extended:
    def __init__(self, kind: Any, storage: RowsInParts) -> None:
        self._kind, self._storage = kind, storage

    def take(self, count: int) -> pa.Array:
        return self._kind.wrap_array(self._storage.take(count))


def _places(schema: pa.Schema, views: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Of each column, its first node and its first buffer; at last how many there are of both."""
    node = buffer = 0
    more = iter(views)
    for field in schema:
        yield node, buffer
        nodes, buffers = _extent(field.type, more)
        node, buffer = node + nodes, buffer + buffers
    yield node, buffer


def _extent(kind: pa.DataType, views: Iterator[int]) -> tuple[int, int]:
    """How many nodes and buffers a type has, its children's among them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _extent(kind.storage_type, views)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return 1, 2 + next(views, 0)
    nodes, buffers = 1, _own_buffers(kind)
    for place in range(kind.num_fields):
        more = _extent(kind.field(place).type, views)
        nodes, buffers = nodes + more[0], buffers + more[1]
    return nodes, buffers


def _own_buffers(kind: pa.DataType) -> int:
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    if types.is_union(kind):
        return 1 if kind.mode == "sparse" else 2
    if _offset_width(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return 3
    return 2
