"""Scattered pages of a file read past the page cache, many at a time, from one thread.

Bottleneck: the device. Algorithm: two windows of memory take turns; the reads of one are in flight
while what came with the other is used, so that the device's queue does not run empty between them.
A page costs 1.5 us of processor, where one that goes through the cache of a full memory group costs
10: it must be found room for, charged, read, copied, and found out again to be worth nothing.

Limits: nothing is cached, so it is for files that the cache cannot hold anyway. Where a file system
has no O_DIRECT, or the process no asynchronous I/O, `is_possible` says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overspill.errors import MappingError
from overspill.linux.aio import (
    DEPTH,
    REQUEST_WORDS,
    ReadQueue,
    borrowed_queue,
    fill_requests,
    has_queue,
    read_memory,
    reads_asynchronously,
)
from overspill.linux.fetch import PAGE_BYTES, reopened
from overspill.linux.mapping import Mapping
from overspill.linux.safe_read import SafeReader

WINDOW_PAGES = 1024
_WINDOWS = 2
# Woken for each page, the processor would be as busy as with one read at a time.
_WAKE_AFTER = 64
_Pages = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
Ranges = Iterator[tuple[_Pages, _Pages]]


@dataclass
class _Window:
    """Page ranges that are read into one of the pieces of memory."""

    turn: int
    firsts: _Pages
    counts: _Pages
    wanted_bytes: _Pages
    submitted: int = 0
    done: int = 0
    failed: bool = False


class DirectPages:
    """Reads pages of one mapped file past the page cache; holds the mapping and no descriptor.

    Threads may read at the same time, each with memory of its own, and a forked child may go on
    using its copy. It does not pickle.

    Args:
        mapping: The mapping of the file.
        reader: What reads again, and names the error, where a direct read fails.
    """

    def __init__(self, mapping: Mapping, reader: SafeReader) -> None:
        self._mapping, self._reader = mapping, reader
        self._refused = False

    def is_possible(self) -> bool:
        """Whether the system can do it now, and the file system, so far as is known, too."""
        possible = not self._refused and PAGE_BYTES % 4096 == 0 and reads_asynchronously()
        return possible and has_queue()

    def read(self, ranges: Ranges) -> Generator[_Bytes]:
        """Read windows of page ranges, the next ones under way meanwhile.

        Takes 8 MiB of memory. Close the generator where it is not used up.

        Args:
            ranges: First pages and page counts, of at most `WINDOW_PAGES` pages together; drawn
                two windows ahead.

        Yields:
            The pages of each window, one after another, valid until the next is asked for. What
            lies after the file's end is not defined.

        Raises:
            StaleFileError: The file was cut, replaced or removed.
            MappingError: The disk refused to read.
        """
        memory = read_memory(_WINDOWS * WINDOW_PAGES * PAGE_BYTES).reshape(_WINDOWS, -1)
        with contextlib.ExitStack() as stack:
            pump = self._pump(memory, stack)
            if pump is None:
                for firsts, counts in ranges:
                    self._reader.read(firsts, counts, memory[0])
                    yield memory[0]
                return
            for window in pump.windows(ranges):
                if window.failed:
                    # It names the error; or there is none, and direct reads are not to be had.
                    self._reader.read(window.firsts, window.counts, memory[window.turn])
                    self._refused = True
                yield memory[window.turn]

    def _pump(self, memory: _Bytes, stack: contextlib.ExitStack) -> _Pump | None:
        """What keeps a queue full; None where there is none, or no direct descriptor."""
        try:
            queue = stack.enter_context(borrowed_queue())
        except OSError:  # other processes have just taken all that there are
            return None
        try:
            fd = stack.enter_context(reopened(self._mapping, flags=os.O_DIRECT))
        except MappingError as error:
            if error.errno != errno.EINVAL:
                raise
            self._refused = True
            return None
        return _Pump(queue, fd, memory, self._mapping.nbytes)


class _Pump:
    """Keeps a queue full of the reads of windows that take turns in memory."""

    def __init__(self, queue: ReadQueue, fd: int, memory: _Bytes, file_bytes: int) -> None:
        self._queue, self._fd, self._file_bytes = queue, fd, file_bytes
        self._addresses = [piece.ctypes.data for piece in memory]
        self._requests = np.empty((len(memory), WINDOW_PAGES, REQUEST_WORDS), np.uint64)
        steps = np.arange(WINDOW_PAGES) * self._requests.strides[1]
        self._pointers = [(piece.ctypes.data + steps).astype(np.uint64) for piece in self._requests]
        self._open: deque[_Window] = deque()

    def windows(self, ranges: Ranges) -> Generator[_Window]:
        """Windows whose reads are done, in order; each one's memory until the next is asked for."""
        free = deque(range(len(self._addresses)))
        more = True
        while True:
            while free and more:
                given = next(ranges, None)
                if given is None:
                    more = False
                else:
                    self._open.append(self._begun(free.popleft(), *given))
            if not self._open:
                return
            first = self._open[0]
            self._submit()
            while first.done < first.firsts.size:
                self._collect(first.firsts.size - first.done)
                self._submit()
            yield self._open.popleft()
            free.append(first.turn)

    def _begun(self, turn: int, firsts: _Pages, counts: _Pages) -> _Window:
        offsets, lengths = firsts * PAGE_BYTES, counts * PAGE_BYTES
        fill_requests(
            self._requests[turn, : firsts.size],
            fd=self._fd,
            offsets=offsets,
            lengths=lengths,
            addresses=self._addresses[turn] + np.cumsum(lengths) - lengths,
            first_number=turn * WINDOW_PAGES,
        )
        return _Window(turn, firsts, counts, np.minimum(lengths, self._file_bytes - offsets))

    def _submit(self) -> None:
        for window in self._open:
            while window.submitted < window.firsts.size and self._queue.in_flight < DEPTH:
                left = self._pointers[window.turn][window.submitted : window.firsts.size]
                try:
                    window.submitted += self._queue.submit(left)
                except OSError as error:
                    if error.errno == errno.EAGAIN and self._queue.in_flight:
                        return
                    # Refused for good: as if it had been read, and failed.
                    window.submitted += 1
                    window.done += 1
                    window.failed = True

    def _collect(self, most: int) -> None:
        numbers, results = self._queue.wait(min(most, _WAKE_AFTER, self._queue.in_flight))
        turns, places = numbers // WINDOW_PAGES, numbers % WINDOW_PAGES
        for window in self._open:
            mine = turns == window.turn
            window.done += int(np.count_nonzero(mine))
            window.failed |= bool((results[mine] != window.wanted_bytes[places[mine]]).any())
