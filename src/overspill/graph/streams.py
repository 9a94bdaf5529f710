"""Random streams as pure functions: a batch is determined by (seed, epoch, batch index) alone.

Nothing here has a state, so the same seed gives the same batches whatever the number of workers
and in whatever order they work. An epoch's order is a permutation computed position by position (a
Feistel network with cycle walking: Black and Rogaway, 2002), so shuffling a hundred million seeds
takes no memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = (1 << 64) - 1
_ROUNDS = 6
_Words = npt.NDArray[np.uint64]


def stream_key(*parts: int) -> np.uint64:
    """Mix integers into the key of a stream.

    Args:
        *parts: For example seed, epoch and batch index; taken modulo 2**64, their order matters.
    """
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = _mixed(key + _GOLDEN + np.uint64(part & _MASK_64))
    return np.uint64(key[0])


def shuffled_positions(
    start: int, stop: int, *, count: int, key: np.uint64
) -> npt.NDArray[np.int64]:
    """Part of a random permutation of ``range(count)``.

    Args:
        start: First place wanted.
        stop: End of the places wanted, at most `count`.
        count: Length of the permutation.
        key: Which permutation.

    Returns:
        int64 (stop - start,): what stands at those places. Takes memory for these alone.
    """
    half = max((max(count - 1, 1).bit_length() + 1) // 2, 1)
    held = _permuted(np.arange(start, stop, dtype=np.uint64), half, key)
    while True:
        # The network permutes a range up to four times as large: what falls outside walks on.
        outside = np.flatnonzero(held >= np.uint64(count))
        if outside.size == 0:
            return held.astype(np.int64)
        held[outside] = _permuted(held[outside], half, key)


def _permuted(values: _Words, half: int, key: np.uint64) -> _Words:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for turn in range(_ROUNDS):
        left, right = right, left ^ (_mixed(right ^ stream_key(int(key), turn)) & mask)
    return (left << shift) | right


def _mixed(value: _Words) -> _Words:
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
