"""Many reads in flight from one thread: Linux asynchronous I/O over descriptors opened O_DIRECT.

Sources: io_setup(2), io_submit(2), io_getevents(2) and linux/aio_abi.h; the C library wraps none of
them. Chosen over io_uring, which container runtimes forbid by default, and over threads of pread,
which cost a switch each: 1.5 us of processor a 4 KiB read here, at 100k reads a second.

Limits: without O_DIRECT the kernel reads within io_submit, one after the other. Queues count
against /proc/sys/fs/aio-max-nr, which all processes of the machine share.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import platform
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from overspill.linux import libc

DEPTH = 512
_NUMBERS = {  # io_setup, io_destroy, io_submit, io_getevents
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}
_Words = npt.NDArray[np.uint64]
REQUEST_WORDS = 8  # struct iocb
OFFSET_WORD = 5
_EVENT_WORDS = 4  # struct io_event: data, iocb, result, second result
_READ = 0  # IOCB_CMD_PREAD


class ReadQueue:
    """A kernel queue of up to `DEPTH` reads. One thread at a time; of no use to a forked child.

    Raises:
        OSError: The kernel gives none: ENOSYS, EPERM (a seccomp filter), or EAGAIN (aio-max-nr).
    """

    def __init__(self) -> None:
        self._setup, self._destroy, self._submit, self._events = _numbers()
        context = ctypes.c_ulong(0)
        libc.system_call(self._setup, DEPTH, ctypes.addressof(context))
        self._context = int(context.value)
        self._found = np.empty((DEPTH, _EVENT_WORDS), np.uint64)
        self.in_flight = 0

    def submit(self, pointers: _Words) -> int:
        """Hand over requests, as many as the queue takes now.

        Args:
            pointers: (n,) addresses of requests from `fill_requests`, which stay where they are
                until they are done, as the memory does that they read into.

        Returns:
            How many were taken, from the first on.

        Raises:
            OSError: The first was refused.
        """
        count = min(pointers.size, DEPTH - self.in_flight)
        if count <= 0:
            return 0
        taken = libc.system_call(self._submit, self._context, count, pointers.ctypes.data)
        self.in_flight += taken
        return taken

    def wait(self, least: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Wait for requests to be done.

        Args:
            least: How many to wait for; no more than are in flight.

        Returns:
            Numbers of requests, and the bytes that each read, or its negative errno.
        """
        found = self._found
        count = libc.system_call(self._events, self._context, least, DEPTH, found.ctypes.data, 0)
        self.in_flight -= count
        done = found[:count].view(np.int64)
        return done[:, 0].copy(), done[:, 2].copy()

    def close(self) -> None:
        """Give the queue back to the kernel, once nothing is in flight any more; some 10 ms."""
        libc.system_call(self._destroy, self._context)


def fill_requests(
    requests: _Words,
    *,
    fd: int,
    offsets: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    addresses: npt.NDArray[np.int64],
    first_number: int,
) -> None:
    """Write reads into an array of struct iocb.

    Args:
        requests: (n, REQUEST_WORDS), overwritten.
        fd: A descriptor opened with O_DIRECT.
        offsets: (n,) in the file; a multiple of 4096, as lengths and addresses are.
        lengths: (n,) bytes.
        addresses: (n,) of memory.
        first_number: The number of the first request; the others follow.
    """
    requests[:] = 0
    requests[:, 0] = np.arange(first_number, first_number + len(requests))
    requests[:, 2] = (fd << 32) | _READ
    requests[:, 3] = addresses
    requests[:, 4] = lengths
    requests[:, OFFSET_WORD] = offsets


def read_memory(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory for reads to go into: (nbytes,), from the start of a page on.

    A mapping of its own and not of the heap: should it be freed with a read in flight, after an
    interrupt in the wrong moment, the kernel still holds its pages, and nobody else has them. A
    child forked meanwhile has none of it, or a read might go into the copy that the child shares.
    """
    held = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.madvise(mmap.MADV_DONTFORK)
    return np.frombuffer(held, np.uint8)


@functools.cache
def reads_asynchronously() -> bool:
    """Whether this process may have a queue; probed once, inherited by a fork."""
    if not (libc.SUPPORTED and platform.machine() in _NUMBERS and hasattr(os, "O_DIRECT")):
        return False
    return has_queue()


def has_queue() -> bool:
    """Whether a queue is to be had now: all processes of the machine share aio-max-nr."""
    try:
        with borrowed_queue():
            return True
    except OSError:
        return False


_idle: list[ReadQueue] = []
os.register_at_fork(after_in_child=_idle.clear)


@contextlib.contextmanager
def borrowed_queue() -> Iterator[ReadQueue]:
    """A queue with nothing in flight, for one thread and the span.

    It serves again only where the span ended well. A signal's handler may raise between a system
    call and what is written down of it, after which nobody knows what is in flight: such a queue
    is destroyed, for which the kernel waits until its last read has ended.

    Raises:
        OSError: The kernel gives none.
    """
    try:
        queue = _idle.pop()
    except IndexError:
        queue = ReadQueue()
    try:
        yield queue
    except BaseException:
        queue.close()
        raise
    if queue.in_flight:
        queue.close()
    else:
        _idle.append(queue)


def _numbers() -> tuple[int, int, int, int]:
    libc.require_linux("io_submit(2)")
    return _NUMBERS[platform.machine()]
