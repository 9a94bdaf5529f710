"""The physical limit of random reads: 4 KiB blocks past the page cache, at a queue depth.

Bottleneck: the device at its full queue depth. Algorithm: Linux's asynchronous I/O, as fio's libaio
engine does it: the places of reads that are done are filled anew by numpy and handed over together,
so that one thread keeps the queue full without a loop over single reads.

Limits: where there is no asynchronous I/O (seccomp, other architectures, no O_DIRECT), threads read
a block each; the interpreter then sets a limit of its own, and the way is told with the result.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError, StaleFileError
from overspill.linux.aio import DEPTH as MOST_DEPTH
from overspill.linux.aio import (
    OFFSET_WORD,
    REQUEST_WORDS,
    ReadQueue,
    borrowed_queue,
    fill_requests,
    read_memory,
    reads_asynchronously,
)
from overspill.linux.blocks import refused
from overspill.linux.direct import aligned_bytes, set_direct

BLOCK_BYTES = 4096
DEPTH = 256
_THREADS = 32
_Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RandomReads:
    """What was read.

    Attributes:
        count: Blocks read.
        seconds: How long it took.
        way: How they were asked for.
        direct: Whether the page cache was passed by.
    """

    count: int
    seconds: float
    way: Literal["asynchronous", "threads"]
    direct: bool

    @property
    def per_second(self) -> float:
        """Blocks a second."""
        return self.count / self.seconds


def read_randomly(
    path: Path, *, seconds: float, seed: int = 0, depth: int = DEPTH, start: int = 0
) -> RandomReads:
    """Read blocks of 4 KiB in random order, each at most once, until the time or the file is over.

    Args:
        path: The file, written and not only reserved; its cache should be dropped before.
        seconds: How long to ask for more; what is in flight then is waited for and counted.
        seed: Of the order.
        depth: Reads in flight, at most as many as a queue takes.
        start: Byte of the file from which on to read, a multiple of 4096.

    Returns:
        How many, and in what time. Takes 8 bytes of memory a block of the file, and a block for
        each read in flight.

    Raises:
        InputError: The file holds no whole block from there on.
        StaleFileError: The file is not there.
        DiskRefusedError: The disk refused to read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StaleFileError(
            f"cannot open the file: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="check the path, and that no other process replaces it",
        ) from error
    try:
        blocks = (os.fstat(fd).st_size - start) // BLOCK_BYTES
        if blocks < 1:
            raise InputError(
                "there is no block of 4096 bytes to read",
                path=str(path),
                remedy="take a larger file",
            )
        offsets = np.random.default_rng(seed).permutation(blocks) * BLOCK_BYTES + start
        direct = set_direct(fd, True)
        return _read(fd, offsets, seconds, min(depth, blocks, MOST_DEPTH), direct)
    except OSError as error:
        raise refused(error, "cannot read", fd, str(path), None) from error
    finally:
        os.close(fd)


def _read(fd: int, offsets: _Ids, seconds: float, depth: int, direct: bool) -> RandomReads:
    with contextlib.ExitStack() as stack:
        queue = _borrowed(stack) if direct else None
        begin = time.perf_counter()
        if queue is None:
            count = _read_by_threads(fd, offsets, begin + seconds)
            return RandomReads(count, time.perf_counter() - begin, "threads", direct)
        count = _Flight(queue, fd, depth).read_until(offsets, begin + seconds)
        return RandomReads(count, time.perf_counter() - begin, "asynchronous", direct)


class _Flight:
    """The reads in flight: a request and a block of memory for each place."""

    def __init__(self, queue: ReadQueue, fd: int, depth: int) -> None:
        self._queue, self._depth = queue, depth
        self._memory = read_memory(depth * BLOCK_BYTES)
        self._requests = np.empty((depth, REQUEST_WORDS), np.uint64)
        places = np.arange(depth)
        fill_requests(
            self._requests,
            fd=fd,
            offsets=np.zeros(depth, np.int64),
            lengths=np.full(depth, BLOCK_BYTES),
            addresses=places * BLOCK_BYTES + self._memory.ctypes.data,
            first_number=0,
        )
        size = self._requests.itemsize * REQUEST_WORDS
        self._pointers = (self._requests.ctypes.data + places * size).astype(np.uint64)

    def read_until(self, offsets: _Ids, deadline: float) -> int:
        """Keep as many in flight as there are places, until the deadline; how many were read."""
        asked = done = 0
        free = np.arange(self._depth)
        while True:
            late = time.perf_counter() >= deadline
            count = 0 if late else min(free.size, offsets.size - asked)
            self._ask(free[:count], offsets[asked : asked + count])
            asked += count
            if asked == done:
                return done
            # An eighth at a time: the queue stays full, and a call brings more than one.
            free = self._done(min(max(1, self._depth // 8), asked - done))
            done += free.size

    def _ask(self, places: _Ids, offsets: _Ids) -> None:
        self._requests[places, OFFSET_WORD] = offsets
        pointers, first = self._pointers[places], 0
        while first < pointers.size:
            first += self._queue.submit(pointers[first:])

    def _done(self, least: int) -> _Ids:
        places, results = self._queue.wait(least)
        wrong = results[results != BLOCK_BYTES]
        if wrong.size:
            number = -int(wrong[0]) if wrong[0] < 0 else errno.EIO
            raise OSError(number, os.strerror(number))
        return places


def _borrowed(stack: contextlib.ExitStack) -> ReadQueue | None:
    if not reads_asynchronously():
        return None
    try:
        return stack.enter_context(borrowed_queue())
    except OSError:  # others hold all that the system gives
        return None


def _read_by_threads(fd: int, offsets: _Ids, deadline: float) -> int:
    def read_every(first: int) -> int:
        memory, count = aligned_bytes(BLOCK_BYTES), 0
        for offset in offsets[first::_THREADS].tolist():
            if time.perf_counter() >= deadline:
                break
            if os.preadv(fd, [memory.data], offset) != BLOCK_BYTES:
                raise OSError(errno.EIO, "a short read: the file was cut")
            count += 1
        return count

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="overspill-read") as pool:
        return sum(pool.map(read_every, range(_THREADS)))
