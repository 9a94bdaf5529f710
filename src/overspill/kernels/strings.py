"""Strings as bytes one after another: hash, copy, compare.

Bottleneck: one cache miss a string wherever they are not taken in order. Hash: words of eight
bytes, each xored into the state, which the finaliser of splitmix64 (Steele, Lea, Flood 2014; the
variant "mix 13" of Stafford) then scrambles. A round is a bijection of the word and of the state.
The length goes in first, since a string shorter than a word is filled up with zeros; a longer one
ends with its last eight bytes, some of them for the second time. Two strings that share a hash
under one key share it under another by chance only.

Limits: it is no cryptographic hash. Who stores strings by it compares those that collide.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
COLLISION, UNSORTED = -1, -2
_LENGTH_BITS = 21
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
# Places are unsigned throughout: one that could be negative would keep loads from being merged.
_ONE, _WORD = np.uint64(1), np.uint64(8)


@kernel
def _scrambled(state: np.uint64) -> np.uint64:
    state = (state ^ (state >> np.uint64(30))) * _FACTORS[0]
    state = (state ^ (state >> np.uint64(27))) * _FACTORS[1]
    return state ^ (state >> np.uint64(31))


@kernel
def _packed(data: Bytes, start: np.uint64, end: np.uint64) -> np.uint64:
    """At most eight bytes as a number; of exactly eight, one load."""
    word = np.uint64(0)
    if end - start == _WORD:
        for place in range(_WORD):
            word |= np.uint64(data[start + place]) << (_WORD * place)
        return word
    for place in range(end - start):
        word |= np.uint64(data[start + place]) << (_WORD * place)
    return word


@kernel
def hash_strings(offsets: Ids, data: Bytes, key: int, hashes: Ids) -> None:
    """Hash strings under a key; every byte counts.

    Args:
        offsets: (n + 1,) where each begins, and the end of the last.
        data: Their bytes.
        key: Any integer from 0 on.
        hashes: (n,) filled.
    """
    seed = _scrambled((np.uint64(key) + _ONE) * _GOLDEN)
    for i in range(hashes.size):
        at, end = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
        state = _scrambled(seed ^ ((end - at) * _GOLDEN))
        if end - at >= _WORD:
            last = end - _WORD
            while at < last:
                state = _scrambled(state ^ _packed(data, at, at + _WORD))
                at += _WORD
            state = _scrambled(state ^ _packed(data, last, end))
        elif at < end:
            state = _scrambled(state ^ _packed(data, at, end))
        hashes[i] = np.int64(state)


@kernel
def _copy(data: Bytes, start: int, length: int, out: Bytes, filled: int) -> None:
    at, to = np.uint64(start), np.uint64(filled)
    end = at + np.uint64(length)
    while at < end:
        out[to] = data[at]
        at += _ONE
        to += _ONE


@kernel
def copy_strings(data: Bytes, spans: tuple[Ids, Ids], order: Ids, out: Bytes) -> int:
    """Copy strings one after another.

    Args:
        data: Bytes, which may be a mapping.
        spans: Where each string begins, and its length.
        order: (chosen,) which of them to copy, in this order.
        out: Filled from the front.

    Returns:
        How many bytes were filled.
    """
    starts, lengths = spans
    filled = 0
    for k in range(order.size):
        _copy(data, starts[order[k]], lengths[order[k]], out, filled)
        filled += lengths[order[k]]
    return filled


@kernel
def _equal(one: Bytes, start: int, other: Bytes, other_start: int, length: int) -> bool:
    at, to = np.uint64(start), np.uint64(other_start)
    end = at + np.uint64(length)
    while at < end:
        if one[at] != other[to]:
            return False
        at += _ONE
        to += _ONE
    return True


@kernel
def note_spans(hashes: Ids, lengths: Lengths, start: int, notes: Ids) -> None:
    """Note strings that lie one after another, each with what a sort needs of it side by side.

    Args:
        hashes: (n,).
        lengths: (n,), each less than 2**21.
        start: Where the first begins, less than 2**42.
        notes: (n, 2) filled: the hash, and where a string begins with its length below.
    """
    for i in range(hashes.size):
        notes[i, 0] = hashes[i]
        notes[i, 1] = (start << _LENGTH_BITS) | lengths[i]
        start += lengths[i]


@kernel
def sort_keys(notes: Ids, keys: npt.NDArray[np.uint64]) -> int:
    """Make keys whose order is very likely that of the hashes, with the places in their low bits.

    Hashes are taken from the smallest on and scaled up, so that as many of their bits as there is
    room for decide. Numbers are sorted three times as fast as places by a number elsewhere.

    Args:
        notes: (n, 2) as `note_spans` leaves them.
        keys: (n,) filled, unsorted.

    Returns:
        How many low bits hold a place.
    """
    lowest = highest = np.int64(notes[0, 0])
    for i in range(keys.size):
        lowest, highest = min(lowest, notes[i, 0]), max(highest, notes[i, 0])
    width = np.uint64(highest) - np.uint64(lowest)
    shift = np.uint64(0)
    while shift < np.uint64(63) and (width << shift) >> np.uint64(63) == 0:
        shift += _ONE
    bits = 0
    while (keys.size - 1) >> bits:
        bits += 1
    for i in range(keys.size):
        scaled = (np.uint64(notes[i, 0]) - np.uint64(lowest)) << shift
        keys[i] = ((scaled >> np.uint64(bits)) << np.uint64(bits)) | np.uint64(i)
    return bits


@kernel
def gather_distinct(
    notes: Ids, order: npt.NDArray[Any], mask: int, data: Bytes, out: tuple[Ids, Lengths, Bytes]
) -> tuple[int, int]:
    """Copy strings in the order of their hashes, each once.

    Args:
        notes: (n, 2) as `note_spans` leaves them.
        order: (n,) the places of the strings, under the mask.
        mask: Which bits of `order` count.
        data: The strings' bytes.
        out: Filled from the front: hashes, lengths, and the bytes one after another.

    Returns:
        How many were copied, and their bytes; else `COLLISION` where two different strings share a
        hash, or `UNSORTED` where the hashes do not rise, and 0.
    """
    hashes, lengths, out_data = out
    count = filled = 0
    for k in range(order.size):
        place = np.int64(order[k]) & mask
        found, span = notes[place, 0], notes[place, 1]
        start, length = span >> _LENGTH_BITS, span & _LENGTH_MASK
        if count > 0 and hashes[count - 1] >= found:
            if hashes[count - 1] > found:
                return UNSORTED, 0
            before = lengths[count - 1]
            if length != before or not _equal(data, start, out_data, filled - before, length):
                return COLLISION, 0
            continue
        hashes[count] = found
        lengths[count] = length
        count += 1
        _copy(data, start, length, out_data, filled)
        filled += length
    return count, filled


@kernel
def match_strings(
    ours: tuple[Ids, Ids, Bytes],
    theirs: tuple[Ids, Ids, Bytes],
    order: Ids,
    equal: npt.NDArray[np.bool_],
) -> None:
    """Compare strings with others, pair by pair.

    Args:
        ours: Where each of (n,) begins, its length, and their bytes.
        theirs: The same of (m,) others; the bytes may be a mapping.
        order: (m,) with which of ours each of theirs is compared.
        equal: (n,) filled at the places that `order` names.
    """
    starts, lengths, data = ours
    other_starts, other_lengths, other = theirs
    for k in range(order.size):
        i = order[k]
        equal[i] = lengths[i] == other_lengths[k] and _equal(
            data, starts[i], other, other_starts[k], lengths[i]
        )
