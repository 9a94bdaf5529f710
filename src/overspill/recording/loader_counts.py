"""What all of this process's loaders have counted, for whoever records it.

A loader's counts stand in memory that it shares with its workers and leave with it; what it had
counted at its end is kept here. Nothing is done per batch.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class LoaderCounts(NamedTuple):
    """Sums over loaders.

    Attributes:
        rows: Rows delivered.
        batches: Batches made.
        asked_bytes: Bytes of the rows.
        waited_ns: Time that callers waited for batches.
    """

    rows: int = 0
    batches: int = 0
    asked_bytes: int = 0
    waited_ns: int = 0

    def plus(self, other: LoaderCounts) -> LoaderCounts:
        """The sum of both."""
        return LoaderCounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: LoaderCounts) -> LoaderCounts:
        """What came since the other."""
        return LoaderCounts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


class LoaderRegistry:
    """The loaders of a process. Thread-safe; a forked child starts with none."""

    def __init__(self) -> None:
        self._names = itertools.count()  # goes on in a forked child, which has the parent's loaders
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, Callable[[], LoaderCounts]] = {}
        self._ended: deque[int] = deque()
        self._past = LoaderCounts()

    def follow(self, loader: object, read: Callable[[], LoaderCounts]) -> None:
        """Count a loader from now until it is collected.

        Args:
            loader: Whose life it is.
            read: Tells its counts; must not hold the loader.
        """
        with self._lock:
            self._settle()
            name = next(self._names)
            self._living[name] = read
        weakref.finalize(loader, self._end, name).atexit = False

    def totals(self) -> LoaderCounts:
        """The counts of all loaders so far, living or not."""
        with self._lock:
            self._settle()
            found = self._past
            for read in self._living.values():
                found = found.plus(read())
            return found

    def _end(self, name: int) -> None:
        # Runs within garbage collection, perhaps on a thread that holds the lock.
        self._ended.append(name)
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        while self._ended:
            read = self._living.pop(self._ended.popleft(), None)
            if read is not None:  # not of the process this one was forked from
                self._past = self._past.plus(read())


LOADERS = LoaderRegistry()
# The lock may be held by a thread that the child does not have.
os.register_at_fork(after_in_child=LOADERS._reset)
