"""Parse TFRecord files of tf.Example: framing and checksums, then the protocol buffer's wire form.

A record is a length (8 bytes), its checksum, the Example, its checksum. An Example is a map from
names to lists of int64, float or bytes; what is not wanted is stepped over. Bottleneck: one branch
a byte of the names and numbers. As protocol buffers have it, the last of two equal names counts,
and numbers may lie packed or one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from overspill.kernels.checksum import crc32c
from overspill.kernels.jit import kernel

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint32]
# Kinds of lists, by their numbers within a Feature.
BYTES, FLOATS, INTEGERS = 1, 2, 3
# Outcomes.
PARSED, WRONG_LENGTH_CRC, WRONG_CRC, MALFORMED, WRONG_KIND, WRONG_COUNT = 0, 1, 2, 3, 4, 5
FRAME_BYTES = 16
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MASK = 0xA282EAD8
_MORE = 0x80  # set in every byte of a number but its last


class Wanted(NamedTuple):
    """The features that are parsed.

    Attributes:
        names: Their names, one after another.
        ends: Where each begins in `names`, and the end of the last.
        kinds: Of each.
        widths: How many values each has.
        starts: Where each begins in the output of its kind.
    """

    names: Bytes
    ends: Ids
    kinds: Ids
    widths: Ids
    starts: Ids


class Parsed(NamedTuple):
    """What is filled.

    Attributes:
        integers: Of each feature of integers, its values record by record; of each of bytes, where
            they begin in the text and how many they are.
        bits: Of each feature of floats, the bits of its values record by record.
        counts: Values found in the record at hand, -1 where the feature is missing.
        state: Records parsed, bytes passed, bytes of the record that is not all there, then what is
            wrong: which feature, and its values.
    """

    integers: Ids
    bits: Bits
    counts: Ids
    state: Ids


@kernel
def _little(text: Bytes, at: int, count: int) -> Any:
    value = np.uint64(0)
    for place in range(count):
        value |= np.uint64(text[at + place]) << np.uint64(8 * place)
    return np.int64(value)


@kernel
def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


@kernel
def _varint(text: Bytes, at: int, end: int) -> tuple[int, Any]:
    """The place after it and its value; place -1 where it does not end."""
    value = np.uint64(0)
    for place in range(10):
        if at >= end:
            break
        byte = text[at]
        at += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(7 * place)
        if byte < _MORE:
            return at, np.int64(value)
    return -1, np.int64(0)


@kernel
def _field(text: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Number, wire type, and where the value of a field starts and ends; end -1 if malformed."""
    # Calls cost more than what they do here: numbers of one byte, as most are, go without.
    tag: Any = np.int64(text[at])
    at += 1
    if tag >= _MORE:
        at, tag = _varint(text, at - 1, end)
        if at < 0:
            return 0, 0, 0, -1
    wire = tag & 7
    stop = -1
    if wire == _DELIMITED:
        length: Any = np.int64(text[at]) if at < end else np.int64(_MORE)
        at += 1
        if length >= _MORE:
            at, length = _varint(text, at - 1, end)
        if at >= 0 and 0 <= length <= end - at:
            stop = at + length
    elif wire == _VARINT:
        stop, _ = _varint(text, at, end)
    elif wire == _FIXED64:
        stop = at + 8
    elif wire == _FIXED32:
        stop = at + 4
    return tag >> 3, wire, at, (stop if stop <= end else -1)


@kernel
def _part(text: Bytes, at: int, end: int, wanted: int) -> tuple[int, int]:
    """Where the last submessage of this number starts and ends; end -1 if malformed."""
    first = last = at
    while at < end:
        number, wire, start, stop = _field(text, at, end)
        if stop < 0:
            return 0, -1
        if number == wanted and wire == _DELIMITED:
            first, last = start, stop
        at = stop
    return first, last


@kernel
def _list_of(text: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Kind, start and end of the list that a Feature holds; kind 0 without one, end -1 if bad."""
    kind, first, last = 0, at, at
    while at < end:
        number, wire, start, stop = _field(text, at, end)
        if stop < 0:
            return 0, 0, -1
        if wire == _DELIMITED and BYTES <= number <= INTEGERS:
            kind, first, last = number, start, stop
        at = stop
    return kind, first, last


@kernel
def _find(text: Bytes, start: int, end: int, names: Bytes, ends: Ids) -> int:
    """Which feature has this name; -1 if none."""
    for feature in range(ends.shape[0] - 1):
        first = ends[feature]
        length = end - start
        if ends[feature + 1] - first == length:
            place = 0
            while place < length and text[start + place] == names[first + place]:
                place += 1
            if place == length:
                return feature
    return -1


@kernel
def _parse_numbers(
    text: Bytes, span: tuple[int, int], width: int, first: int, out: tuple[Ids, Bits, bool]
) -> int:
    """Parse the numbers of a list into ``[first:first + width]``; how many, -1 if malformed."""
    at, end = span
    integers, bits, whole = out
    count = 0
    while at < end:
        number, _, start, stop = _field(text, at, end)
        if stop < 0:
            return -1
        at = stop
        while number == 1 and start < stop:
            if whole:
                start, value = _varint(text, start, stop)
                if start < 0:
                    return -1
                if count < width:
                    integers[first + count] = value
            else:
                if start + 4 > stop:
                    return -1
                if count < width:
                    bits[first + count] = _little(text, start, 4)
                start += 4
            count += 1
    return count


@kernel
def _parse_bytes(text: Bytes, at: int, end: int, first: int, spans: Ids) -> int:
    """Note where the only piece of a list of bytes is; how many there are, -1 if malformed."""
    count = 0
    while at < end:
        number, wire, start, stop = _field(text, at, end)
        if stop < 0:
            return -1
        if number == 1 and wire == _DELIMITED:
            spans[first], spans[first + 1] = start, stop - start
            count += 1
        at = stop
    return count


@kernel
def _parse_features(
    text: Bytes, span: tuple[int, int], row: int, wanted: Wanted, parsed: Parsed
) -> int:
    """Parse a map of names to Features."""
    at, end = span
    names, ends, kinds, widths, starts = wanted
    integers, bits, counts, state = parsed
    while at < end:
        number, wire, start, stop = _field(text, at, end)
        if stop < 0:
            return MALFORMED
        at = stop
        if number != 1 or wire != _DELIMITED:
            continue
        key, key_end = _part(text, start, stop, 1)
        held, held_end = _part(text, start, stop, 2)
        if key_end < 0 or held_end < 0:
            return MALFORMED
        feature = _find(text, key, key_end, names, ends)
        if feature < 0:
            continue
        kind, first, last = _list_of(text, held, held_end)
        counts[feature] = 0
        place = starts[feature] + row * widths[feature]
        if kind == kinds[feature] and kind == BYTES:
            counts[feature] = _parse_bytes(text, first, last, place, integers)
        elif kind == kinds[feature]:
            out = (integers, bits, kind == INTEGERS)
            counts[feature] = _parse_numbers(text, (first, last), widths[feature], place, out)
        elif kind != 0:
            state[3], state[4] = feature, kind
            return WRONG_KIND
        if last < 0 or counts[feature] < 0:
            return MALFORMED
    return PARSED


@kernel
def _parse_example(text: Bytes, at: int, end: int, row: int, wanted: Wanted, parsed: Parsed) -> int:
    counts, state = parsed.counts, parsed.state
    counts[:] = -1
    while at < end:
        number, wire, start, stop = _field(text, at, end)
        if stop < 0:
            return MALFORMED
        at = stop
        if number == 1 and wire == _DELIMITED:
            outcome = _parse_features(text, (start, stop), row, wanted, parsed)
            if outcome != PARSED:
                return outcome
    for feature in range(counts.shape[0]):
        width = 1 if wanted.kinds[feature] == BYTES else wanted.widths[feature]
        if counts[feature] != width:
            state[3], state[4] = feature, counts[feature]
            return WRONG_COUNT
    return PARSED


@kernel
def parse_examples(text: Bytes, first: int, room: int, wanted: Wanted, parsed: Parsed) -> int:
    """Parse whole records until the text or the output ends, or a record is wrong.

    Args:
        text: Bytes of a file; a record begins at `first`.
        first: Where to begin.
        room: Records that the output has room for.
        wanted: The features; none checks the frames only.
        parsed: Filled.

    Returns:
        `PARSED`, or what is wrong with the record after those parsed.
    """
    at, row, outcome = first, 0, PARSED
    state, count = parsed.state, wanted.kinds.shape[0]
    state[2] = 0
    while row < room and at + 12 <= text.shape[0]:
        if _little(text, at + 8, 4) != _masked(crc32c(text, at, at + 8)):
            outcome = WRONG_LENGTH_CRC
            break
        length = _little(text, at, 8)
        if length < 0 or length > text.shape[0] - at - FRAME_BYTES:
            state[2] = length
            break
        start, end = at + 12, at + 12 + length
        if _little(text, end, 4) != _masked(crc32c(text, start, end)):
            outcome = WRONG_CRC
            break
        if count:
            outcome = _parse_example(text, start, end, row, wanted, parsed)
            if outcome != PARSED:
                break
        at, row = end + 4, row + 1
    state[0], state[1] = row, at - first
    return outcome


@kernel
def copy_spans(text: Bytes, spans: Ids, offsets: Ids, data: Bytes) -> None:
    """Lay pieces of a text one after another.

    Args:
        text: Where they are.
        spans: (2 n,) where each begins, and its length.
        offsets: (n + 1,) where each begins in `data`, as the lengths have it.
        data: Filled.
    """
    for row in range(offsets.shape[0] - 1):
        start, place = spans[2 * row], offsets[row]
        for byte in range(spans[2 * row + 1]):
            data[place + byte] = text[start + byte]
