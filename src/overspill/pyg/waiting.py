"""Counts how long the caller waits for its batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overspill.graph.reading.counters import SlotCounts


class TimedBatches:
    """An iterator that counts what it takes to get each batch of another.

    Args:
        inner: The iterator; with workers it is torch's, and its end ends them.
        length: Batches of the epoch.
        counts: Where to count.
    """

    def __init__(self, inner: Iterator[Any], length: int, counts: SlotCounts) -> None:
        self.inner, self._length, self._counts = inner, length, counts
        self._first = True

    def __iter__(self) -> TimedBatches:
        return self

    def __len__(self) -> int:
        return self._length

    def __next__(self) -> Any:
        self._counts.wait_begins(first=self._first)
        self._first = False
        batch = next(self.inner)
        self._counts.wait_ends()
        return batch
