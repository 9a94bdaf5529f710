"""Counts what random reads find in the page cache, and lets policy decide about the next ones."""

from __future__ import annotations

import time
from collections.abc import Callable

from overspill.errors import UnavailableError
from overspill.linux.cgroups import available_memory_bytes
from overspill.placement.page_cache import (
    fits_cache,
    is_worth_caching,
    is_worth_reading_whole,
    retry_bytes,
    trial_bytes,
)

_ROOM_AGE_S = 1.0


class CacheUse:
    """How one file is read: through the page cache or past it. Threads may share it.

    What threads count at the same time may be lost: it is an estimate anyway.

    Args:
        file_bytes: The file's size.
        room: Bytes that the cache could hold now, its clean pages of any file included; None where
            that is unknown, which bypasses nothing. Asked a few times as the room is read through.
    """

    def __init__(self, file_bytes: int, room: Callable[[], int | None] | None = None) -> None:
        self._file_bytes = file_bytes
        self._measure = room or _cache_room
        self._past = False
        self._next_bytes: int | None = None  # read until then before deciding again
        self._read = self._whole_read = 0
        self._items = self._found = 0.0

    def note(self, items: int, found: float) -> None:
        """Count items asked for, and how many of them were in the cache."""
        self._items += items
        self._found += found

    def note_read(self, nbytes: int) -> None:
        """Count bytes read from the device, or asked for."""
        self._read += nbytes
        self._whole_read += nbytes

    def passes_by(self) -> bool:
        """Whether to read past the cache now. Asks for the room at the end of a trial only."""
        if self._next_bytes is None or self._read >= self._next_bytes:
            self._decide()
        return self._past

    def fits(self) -> bool:
        """Whether the cache could hold the whole file beside others. Asks for the room."""
        room = self._measure()
        return room is not None and fits_cache(self._file_bytes, room)

    def wants_whole(self) -> bool:
        """Whether to bring the whole file into the cache now; True once, then counts anew."""
        if self._past or self._whole_read * 8 < self._file_bytes:
            return False  # cheap, and far from worth it
        room = self._measure()
        if room is None or not is_worth_reading_whole(self._file_bytes, room, self._whole_read):
            return False
        self._whole_read = 0
        return True

    def _decide(self) -> None:
        room = self._measure()
        first, self._next_bytes = self._next_bytes is None, self._file_bytes
        if room is None:
            self._past = False
        elif self._past or first:
            self._past, self._next_bytes = False, trial_bytes(room)
        else:
            share = self._found / max(self._items, 1)
            self._past = not is_worth_caching(self._file_bytes, room, share)
            self._next_bytes = retry_bytes(room) if self._past else trial_bytes(room)
        self._read, self._items, self._found = 0, 0.0, 0.0


class _Room:
    """What the page cache could hold, measured once a second at most: it takes a millisecond."""

    def __init__(self) -> None:
        self._until = 0.0
        self._bytes: int | None = None

    def __call__(self) -> int | None:
        if time.monotonic() > self._until:
            try:
                self._bytes = available_memory_bytes()
            except UnavailableError:
                self._bytes = None
            self._until = time.monotonic() + _ROOM_AGE_S
        return self._bytes


_cache_room = _Room()
