"""What the first record of a TFRecord file says of the features of all: names, kinds, lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from overspill.kernels.tfrecord import BYTES, FLOATS, INTEGERS

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
KIND_NAMES = {BYTES: "bytes", FLOATS: "floats", INTEGERS: "int64"}


@dataclass(frozen=True)
class Feature:
    """One feature.

    Attributes:
        kind: `BYTES`, `FLOATS` or `INTEGERS`.
        count: Its values in the first record.
    """

    kind: int
    count: int


def features_of(example: bytes) -> dict[str, Feature]:
    """The features of one tf.Example that have a list, empty or not, in the order of their names.

    Raises:
        ValueError: It is no Example.
    """
    found = {}
    for features in _parts(example, 1):
        for entry in _parts(features, 1):
            name = b"".join(_parts(entry, 1)[-1:]).decode("utf-8", "replace")
            for value in _parts(entry, 2)[-1:]:
                for number, _, held in _fields(value):
                    if number in KIND_NAMES:
                        found[name] = Feature(number, _count(number, held))
    return dict(sorted(found.items()))


def _count(kind: int, held: bytes) -> int:
    total = 0
    for number, wire, value in _fields(held):
        if number != 1:
            continue
        if kind == BYTES or wire != _DELIMITED:
            total += 1
        elif kind == FLOATS:
            total += len(value) // 4
        else:
            total += sum(byte < 0x80 for byte in value)  # the last byte of each number
    return total


def _parts(message: bytes, wanted: int) -> list[bytes]:
    return [
        held for number, wire, held in _fields(message) if number == wanted and wire == _DELIMITED
    ]


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire, end = tag & 7, at
        if wire == _VARINT:
            _, end = _varint(message, at)
        elif wire == _DELIMITED:
            length, at = _varint(message, at)
            end = at + length
        elif wire in _FIXED:
            end = at + _FIXED[wire]
        else:
            raise ValueError(f"wire type {wire}")
        if end > len(message):
            raise ValueError("a field ends after its message")
        yield tag >> 3, wire, message[at:end]
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value & (2**64 - 1), at
    raise ValueError("a number that does not end")
