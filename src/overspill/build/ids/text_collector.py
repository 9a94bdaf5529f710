"""Strings in any order on their way to sorted runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from overspill.build.ids.text_runs import TextRuns
from overspill.build.ids.text_sort import SortedStrings, StringSorter
from overspill.build.readers.edges import Strings
from overspill.errors import InputError

Hash = Callable[[Strings], npt.NDArray[np.int64]]
MOST_STRING_BYTES = 1 << 20
_SHOWN_BYTES = 40


class TextCollector:
    """Collects strings in a buffer and turns it into sorted runs of distinct ones as it fills.

    Args:
        runs: Where the runs go.
        hash_of: The hash.
        most_strings: Size of the buffer.
        most_bytes: Size of its bytes; a longer string makes it larger.
    """

    def __init__(
        self, runs: TextRuns, hash_of: Hash, *, most_strings: int, most_bytes: int
    ) -> None:
        self._runs, self._hash = runs, hash_of
        self._most_strings = most_strings
        self._sorter = StringSorter(most_strings)
        self._data = np.empty(most_bytes, np.uint8)
        self._held_bytes = 0

    def add(self, strings: Strings) -> None:
        """Add strings in any order, in constant memory.

        Raises:
            InputError: One is longer than 1 MiB.
            HashCollisionError: Two different ones share a hash.
        """
        _require_short(strings)
        at = 0
        while at < len(strings):
            at += self._take(strings, at)
            if at < len(strings):
                self._make_room(int(strings.offsets[at + 1] - strings.offsets[at]))

    def finish(self) -> None:
        """Turn what is left into the last run."""
        self._runs.append(self._sorted())

    def _take(self, strings: Strings, at: int) -> int:
        """Copy as many strings as there is room for, from one on; how many."""
        offsets = strings.offsets[at : at + 1 + self._sorter.room]
        begin, room = int(offsets[0]), len(self._data) - self._held_bytes
        count = int(np.searchsorted(offsets, begin + room, "right")) - 1
        offsets = offsets[: count + 1]
        hashes = self._hash(Strings(offsets, strings.data))
        self._sorter.add(hashes, np.diff(offsets).astype(np.int32), self._held_bytes)
        end = self._held_bytes + int(offsets[-1]) - begin
        self._data[self._held_bytes : end] = strings.data[begin : int(offsets[-1])]
        self._held_bytes = end
        return count

    def _make_room(self, nbytes: int) -> None:
        """For a string of so many bytes at least."""
        found, held = self._sorted(), 0
        # Half full or more of distinct strings: sorting again would gain too little.
        if 2 * len(found.hashes) <= self._most_strings and 2 * len(found.data) <= len(self._data):
            held = len(found.data)
        if held + nbytes > len(self._data):
            held = 0
        if not held:
            self._runs.append(found)
        else:
            self._sorter.add(found.hashes, found.lengths, 0)
            self._data[:held] = found.data
            self._held_bytes = held
        if nbytes > len(self._data):
            self._data = np.empty(nbytes, np.uint8)

    def _sorted(self) -> SortedStrings:
        found = self._sorter.sorted(self._data, self._held_bytes)
        self._held_bytes = 0
        return found


def _require_short(strings: Strings) -> None:
    lengths = np.diff(strings.offsets)
    place = int(lengths.argmax()) if len(lengths) else 0
    if len(lengths) and lengths[place] > MOST_STRING_BYTES:
        start = int(strings.offsets[place])
        shown = strings.data[start : start + _SHOWN_BYTES].tobytes().decode("utf-8", "replace")
        raise InputError(
            f"an id is {int(lengths[place])} bytes long, and none may exceed {MOST_STRING_BYTES}",
            value=f"{shown}...",
            remedy="is this the right column? ids of such length are better hashed beforehand",
        )
