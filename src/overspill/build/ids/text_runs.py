"""Sort more strings than memory holds by their hashes: runs in scratch files, then one merge.

Bottleneck: a cache miss a string in each sort, and the device. A run lies in three files: hashes,
lengths, and the strings' bytes in the order of the hashes, so that the bytes travel with their
strings. Merge: of every run a window is held, filled up before each round; what is not above the
smallest last hash among the windows that have more behind them is final, so it is taken from every
window, sorted together and handed on. Hashes are spread evenly, so that a round takes nearly all
that is held, whatever the strings.

Limits: a window holds its longest string; with more runs than windows fit, runs are merged in
groups first. Two different strings that share a hash end the work with `HashCollisionError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.ids.text_sort import SortedStrings, StringSorter
from overspill.build.passes.spool import ScratchFile

Ids = npt.NDArray[np.int64]
# Pieces that `merged` yields and that are still valid: as `prefetched` has alive.
_PIECES_ALIVE = 3
# With smaller windows there would be more seeks than reading.
_SMALLEST_WINDOW, _SMALLEST_WINDOW_BYTES = 1024, 16 << 10


@dataclass(frozen=True)
class _Run:
    """Where a run lies: strings from `first` on, and bytes from `start` on; and its longest."""

    first: int
    count: int
    start: int
    nbytes: int
    longest: int

    @property
    def least_bytes(self) -> int:
        """Bytes of the smallest window that works well."""
        return max(self.longest, _SMALLEST_WINDOW_BYTES)


class TextRuns:
    """Sorted runs of distinct strings in scratch files; a context manager that removes them.

    Args:
        paths: Where the files of hashes, lengths and bytes go.
    """

    def __init__(self, paths: tuple[Path, Path, Path]) -> None:
        self._files: list[ScratchFile] = []
        self._paths = paths
        self._runs: list[_Run] = []
        self.count = self.nbytes = 0  # strings in all runs, and their bytes

    def __enter__(self) -> TextRuns:
        try:
            for path in self._paths:
                self._files.append(ScratchFile(path))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.remove()

    def append(self, run: SortedStrings) -> None:
        """Append one sorted run."""
        if len(run.hashes):
            first, start = self.count, self.nbytes
            self._note(first, start, self._write(run))

    def merged(self, most_strings: int, most_bytes: int) -> Iterator[SortedStrings]:
        """Yield all strings by rising hash, each once; a piece is valid until the third after it.

        All windows together hold so many strings and bytes, but two strings at least; beside them
        stand three pieces of that size, and 28 bytes a string.

        Raises:
            HashCollisionError: Two different strings share a hash.
        """
        self._seal()
        while len(group := self._group(most_strings, most_bytes)) < len(self._runs):
            self._runs = self._runs[len(group) :]
            first, start, longest = self.count, self.nbytes, 0
            for piece in self._merge(group, most_strings, most_bytes):
                longest = max(longest, self._write(piece))
            self._note(first, start, longest)
            self._seal()
        yield from self._merge(self._runs, most_strings, most_bytes)

    def in_order(self, most_strings: int, most_bytes: int) -> Iterator[SortedStrings]:
        """Yield the runs one after another; a piece is valid until the next."""
        self._seal()
        longest = max((run.longest for run in self._runs), default=0)
        slab = _slab(most_strings, max(most_bytes, longest))
        for run in self._runs:
            window = _Window(self._files, run, slab, 0)
            while window.left:
                window.fill()
                yield window.take(window.held)

    def _write(self, run: SortedStrings) -> int:
        """Append strings to the files; the length of the longest."""
        hashes, lengths, data = self._files
        hashes.append(run.hashes.view(np.uint8).data)
        lengths.append(run.lengths.view(np.uint8).data)
        data.append(run.data.data)
        self.count += len(run.hashes)
        self.nbytes += len(run.data)
        return int(run.lengths.max(initial=0))

    def _note(self, first: int, start: int, longest: int) -> None:
        """What was written from a place on is a run."""
        self._runs.append(_Run(first, self.count - first, start, self.nbytes - start, longest))

    def _group(self, most_strings: int, most_bytes: int) -> list[_Run]:
        """The first runs whose windows fit, two at least."""
        sums = np.cumsum([run.least_bytes for run in self._runs])
        fit = min(most_strings // _SMALLEST_WINDOW, int(np.searchsorted(sums, most_bytes, "right")))
        return self._runs[: max(2, fit)]

    def _seal(self) -> None:
        for file in self._files:
            file.seal()

    def _merge(
        self, runs: list[_Run], most_strings: int, most_bytes: int
    ) -> Iterator[SortedStrings]:
        room = max(1, most_strings // max(1, len(runs)))
        rooms = _byte_rooms(runs, most_bytes)
        slab = _slab(room * len(runs), sum(rooms))
        starts = np.cumsum(rooms, dtype=np.int64) - rooms
        windows = [
            _Window(self._files, run, _part(slab, n * room, room, int(start), rooms[n]), int(start))
            for n, (run, start) in enumerate(zip(runs, starts, strict=True))
        ]
        sorter = StringSorter(room * len(runs), outputs=_PIECES_ALIVE)
        while windows:
            for window in windows:
                window.fill()
            bounds = [window.last for window in windows if window.left]
            bound = min(bounds) if bounds else None
            nbytes = 0
            for window in windows:
                start, taken = window.start, window.take(window.count_within(bound))
                sorter.add(taken.hashes, taken.lengths, start)
                nbytes += len(taken.data)
            yield sorter.sorted(slab.data, nbytes)
            windows = [window for window in windows if window.left or window.held]


class _Window:
    """The part of a run that is in memory.

    Args:
        files: Hashes, lengths, and bytes.
        run: The run.
        room: Where what is held is put.
        place: Where the bytes of `room` begin in their buffer.
    """

    def __init__(
        self, files: list[ScratchFile], run: _Run, room: SortedStrings, place: int
    ) -> None:
        self._files, self._room, self._place = files, room, place
        self._next, self._next_byte = run.first, run.start
        self.left = run.count
        self.held = self._held_bytes = self._begin = self._byte_begin = 0

    @property
    def start(self) -> int:
        """Where the bytes of the first string that is held begin in their buffer."""
        return self._place + self._byte_begin

    @property
    def last(self) -> int:
        """The largest hash that is held."""
        return int(self._room.hashes[self._begin + self.held - 1])

    def count_within(self, bound: int | None) -> int:
        """How many of the hashes are not above a bound; all without one."""
        held = self._room.hashes[self._begin : self._begin + self.held]
        return self.held if bound is None else int(np.searchsorted(held, bound, "right"))

    def take(self, count: int) -> SortedStrings:
        """Cut off the first of the strings; valid until the window is filled again."""
        begin, byte_begin = self._begin, self._byte_begin
        lengths = self._room.lengths[begin : begin + count]
        nbytes = int(lengths.sum(dtype=np.int64))
        self.held -= count
        self._held_bytes -= nbytes
        self._begin += count
        self._byte_begin += nbytes
        hashes = self._room.hashes[begin : self._begin]
        return SortedStrings(hashes, lengths, self._room.data[byte_begin : self._byte_begin])

    def fill(self) -> None:
        """Read on as far as there is room for strings and for their bytes."""
        self._move_to_front()
        count = min(len(self._room.hashes) - self.held, self.left)
        if count == 0:
            return
        lengths = self._room.lengths[self.held : self.held + count]
        self._files[1].read(lengths.view(np.uint8), 4 * self._next)
        ends = np.cumsum(lengths, dtype=np.int64)
        # As many as fit whole; none may fit beside those that are held.
        count = int(np.searchsorted(ends, len(self._room.data) - self._held_bytes, "right"))
        if count:
            self._read(count, int(ends[count - 1]))

    def _read(self, count: int, nbytes: int) -> None:
        hashes = self._room.hashes[self.held : self.held + count]
        self._files[0].read(hashes.view(np.uint8), 8 * self._next)
        data = self._room.data[self._held_bytes : self._held_bytes + nbytes]
        self._files[2].read(data, self._next_byte)
        self.held += count
        self._held_bytes += nbytes
        self._next += count
        self._next_byte += nbytes
        self.left -= count
        self._ask_ahead(min(count, self.left), nbytes)

    def _ask_ahead(self, count: int, nbytes: int) -> None:
        if count:
            self._files[0].ask(8 * self._next, 8 * count)
            self._files[1].ask(4 * self._next, 4 * count)
            self._files[2].ask(self._next_byte, nbytes)

    def _move_to_front(self) -> None:
        room, begin, end = self._room, self._begin, self._begin + self.held
        room.hashes[: self.held] = room.hashes[begin:end]
        room.lengths[: self.held] = room.lengths[begin:end]
        begin, end = self._byte_begin, self._byte_begin + self._held_bytes
        room.data[: self._held_bytes] = room.data[begin:end]
        self._begin = self._byte_begin = 0


def _slab(strings: int, nbytes: int) -> SortedStrings:
    return SortedStrings(
        np.empty(strings, np.int64), np.empty(strings, np.int32), np.empty(nbytes, np.uint8)
    )


def _part(slab: SortedStrings, first: int, room: int, start: int, byte_room: int) -> SortedStrings:
    part = slice(first, first + room)
    data = slab.data[start : start + byte_room]
    return SortedStrings(slab.hashes[part], slab.lengths[part], data)


def _byte_rooms(runs: list[_Run], most_bytes: int) -> list[int]:
    """Equal shares, but for runs with a longer string: one such string must not shrink them all."""
    share = most_bytes // max(1, len(runs))
    long = [run.longest for run in runs if run.longest > share]
    share = max(1, (most_bytes - sum(long)) // max(1, len(runs) - len(long)))
    return [max(share, run.longest) for run in runs]
