"""Sort more integers than memory holds: sorted runs in a scratch file, then one merge.

Bottleneck: the sort of each run (numpy's vectorised one). Merge without a heap: of every run a
window is loaded; what is not larger than the smallest last element among the windows that have more
behind them is final, so it is cut from every window, sorted together and handed on. Limits: windows
of 4096 numbers a run at least; with more runs than fit that way, runs are merged in groups first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.passes.spool import ScratchFile

Numbers = npt.NDArray[Any]
_SMALLEST_WINDOW = 4096


class SortedRuns:
    """Sorted runs of one integer type in a scratch file; a context manager that removes it.

    Args:
        path: Where the file goes.
        dtype: Type of the numbers.
        unique: Whether the merge gives each number once (runs are then distinct too).
    """

    def __init__(self, path: Path, *, dtype: npt.DTypeLike, unique: bool) -> None:
        self._file = ScratchFile(path)
        self._dtype = np.dtype(dtype)
        self._unique = unique
        self._runs: list[tuple[int, int]] = []
        self._end = 0

    def __enter__(self) -> SortedRuns:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.remove()

    def append(self, numbers: Numbers) -> None:
        """Append one sorted run."""
        if len(numbers):
            self._file.append(numbers.view(np.uint8).data)
            self._runs.append((self._end, len(numbers)))
            self._end += numbers.nbytes

    def merged(self, most_numbers: int) -> Iterator[Numbers]:
        """Yield all numbers in order, in pieces; windows and pieces hold about `most_numbers`."""
        self._file.seal()
        fan_in = max(2, most_numbers // _SMALLEST_WINDOW)
        while len(self._runs) > fan_in:
            self._merge_group(self._runs[:fan_in], most_numbers)
            self._runs = self._runs[fan_in:]
        yield from self._merge(self._runs, most_numbers)

    def in_order(self, most_numbers: int) -> Iterator[Numbers]:
        """Yield the runs one after another, as they were appended."""
        self._file.seal()
        for run in self._runs:
            window = _Window(self._file, self._dtype, run, most_numbers)
            while window.left:
                window.refill()
                yield window.take(None)

    def _merge_group(self, group: list[tuple[int, int]], most_numbers: int) -> None:
        start, count = self._end, 0
        for piece in self._merge(group, most_numbers):
            self._file.append(piece.view(np.uint8).data)
            count += len(piece)
        self._file.seal()
        self._end += count * self._dtype.itemsize
        self._runs.append((start, count))

    def _merge(self, runs: list[tuple[int, int]], most_numbers: int) -> Iterator[Numbers]:
        room = max(_SMALLEST_WINDOW, most_numbers // max(1, len(runs)))
        windows = [_Window(self._file, self._dtype, run, room) for run in runs]
        last: Any = None
        while windows:
            for window in windows:
                window.refill()
            bounds = [window.held[-1] for window in windows if window.left]
            taken = [window.take(min(bounds) if bounds else None) for window in windows]
            piece = np.concatenate(taken)
            piece.sort()
            if self._unique:
                piece = _distinct(piece, after=last)
            if len(piece):
                last = piece[-1]
                yield piece
            windows = [window for window in windows if window.left or len(window.held)]


class _Window:
    """The part of a run that is in memory."""

    def __init__(
        self, file: ScratchFile, dtype: np.dtype[Any], run: tuple[int, int], room: int
    ) -> None:
        self._file, self._offset, self.left, self._room = file, run[0], run[1], room
        self.held: Numbers = np.empty(0, dtype)

    def refill(self) -> None:
        """Load more once all that was held has been taken."""
        if len(self.held) == 0 and self.left:
            self.held = np.empty(min(self._room, self.left), self.held.dtype)
            self._file.read(self.held.view(np.uint8), self._offset)
            self._offset += self.held.nbytes
            self.left -= len(self.held)

    def take(self, bound: Any) -> Numbers:
        """Cut off what is not larger than `bound`, or everything."""
        cut = len(self.held) if bound is None else int(np.searchsorted(self.held, bound, "right"))
        taken, self.held = self.held[:cut], self.held[cut:]
        return taken


def _distinct(numbers: Numbers, *, after: Any) -> Numbers:
    keep = np.empty(len(numbers), np.bool_)
    keep[:1] = len(numbers) > 0 and (after is None or numbers[0] != after)
    np.not_equal(numbers[1:], numbers[:-1], out=keep[1:])
    return numbers[keep]


class RunCollector:
    """Collects numbers in a buffer and turns it into sorted runs as it fills.

    Args:
        runs: Where the runs go.
        most_numbers: Size of the buffer.
        dtype: Type of the numbers.
        unique: Whether each run keeps a number once.
    """

    def __init__(
        self, runs: SortedRuns, most_numbers: int, *, dtype: npt.DTypeLike, unique: bool
    ) -> None:
        self._runs, self._unique = runs, unique
        self._buffer: Numbers = np.empty(most_numbers, dtype)
        self._held = 0

    def add(self, numbers: Numbers) -> None:
        """Add numbers in any order, in constant memory."""
        at = 0
        while at < len(numbers):
            count = min(len(numbers) - at, len(self._buffer) - self._held)
            self._buffer[self._held : self._held + count] = numbers[at : at + count]
            self._held, at = self._held + count, at + count
            if self._held == len(self._buffer):
                self._sort()
                # Half full or more of distinct numbers: sorting again would gain too little.
                if not self._unique or self._held > len(self._buffer) // 2:
                    self._spill()

    def finish(self) -> None:
        """Turn what is left into the last run, and free the buffer."""
        self._sort()
        self._spill()
        self._buffer = np.empty(0, self._buffer.dtype)

    def _sort(self) -> None:
        part = self._buffer[: self._held]
        part.sort()
        if self._unique:
            distinct = _distinct(part, after=None)
            self._held = len(distinct)
            self._buffer[: self._held] = distinct

    def _spill(self) -> None:
        self._runs.append(self._buffer[: self._held])
        self._held = 0
