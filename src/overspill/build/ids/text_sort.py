"""Sort strings in memory by their hashes, each kept once, in buffers that are used again.

Bottleneck: cache misses of the sort and of the copy that follows it. Fresh memory would cost as
much again, as the system hands it out a page at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overspill.kernels.strings import (
    COLLISION,
    UNSORTED,
    gather_distinct,
    note_spans,
    sort_keys,
)

Ids = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


class HashCollisionError(Exception):
    """Two different strings share a hash: to be caught, and another key to be tried."""


@dataclass(frozen=True)
class SortedStrings:
    """Distinct strings by rising hash.

    Attributes:
        hashes: int64 (n,).
        lengths: int32 (n,), bytes of each string.
        data: uint8, the strings, one after another.
    """

    hashes: Ids
    lengths: Lengths
    data: Bytes


class StringSorter:
    """Takes note of strings that lie in a buffer of the caller's, then gives them in order.

    Memory: 24 bytes a string, and for each output 12 and the strings' bytes.

    Args:
        most_strings: The most strings at a time.
        outputs: For how many calls of `sorted` a result stays valid.
    """

    def __init__(self, most_strings: int, *, outputs: int = 1) -> None:
        self._notes = np.empty((most_strings, 2), np.int64)
        self._keys = np.empty(most_strings, np.uint64)
        self._outputs = [
            SortedStrings(
                np.empty(most_strings, np.int64),
                np.empty(most_strings, np.int32),
                np.empty(0, np.uint8),
            )
            for _ in range(outputs)
        ]
        self._turn = self.held = 0

    @property
    def room(self) -> int:
        """How many more strings it takes."""
        return len(self._notes) - self.held

    def add(self, hashes: Ids, lengths: Lengths, start: int) -> None:
        """Take note of strings that lie one after another in the buffer, from `start` on."""
        note_spans(hashes, lengths, start, self._notes[self.held : self.held + len(hashes)])
        self.held += len(hashes)

    def sorted(self, data: Bytes, nbytes: int) -> SortedStrings:
        """All strings since the last call, in order.

        Args:
            data: The buffer that they lie in.
            nbytes: How many bytes they have together.

        Raises:
            HashCollisionError: Two different ones share a hash.
        """
        out = self._next_output(nbytes)
        filling = out.hashes, out.lengths, out.data
        notes, self.held = self._notes[: self.held], 0
        if not len(notes):
            return SortedStrings(out.hashes[:0], out.lengths[:0], out.data[:0])
        keys = self._keys[: len(notes)]
        bits = sort_keys(notes, keys)
        keys.sort()
        count, filled = gather_distinct(notes, keys, (1 << bits) - 1, data, filling)
        if count == UNSORTED:
            # Two hashes that agree in all bits that had room in the keys.
            order = np.argsort(notes[:, 0]).view(np.uint64)
            count, filled = gather_distinct(notes, order, -1, data, filling)
        if count == COLLISION:
            raise HashCollisionError("two different strings share a hash")
        return SortedStrings(out.hashes[:count], out.lengths[:count], out.data[:filled])

    def _next_output(self, nbytes: int) -> SortedStrings:
        self._turn = (self._turn + 1) % len(self._outputs)
        out = self._outputs[self._turn]
        if len(out.data) < nbytes:
            out = SortedStrings(out.hashes, out.lengths, np.empty(nbytes, np.uint8))
            self._outputs[self._turn] = out
        return out
