"""Write a whole file in order, past the page cache, with several writes in flight.

Bottleneck: the device. Algorithm: aligned buffers are filled in turn and written with O_DIRECT,
each by a thread of its own. Through the page cache the same bytes cost twice the processor time at
best; on a virtual machine that gives freed memory back to its host, every page that they occupy is
fetched from the host first, which ran at a tenth to a third of the device. Direct writes also leave
no dirty page, which a version 1 memory cgroup would not throttle.

Limits: next to nothing stays cached; the first use reads from the device. Where the file system
has no direct I/O, a `WriteBehind` does the work.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from overspill.linux.blocks import refused, write_all
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, set_direct
from overspill.storage.write_behind import WriteBehind

# Measured: one write in flight leaves the device idle between two; more than four gain nothing.
_BUFFERS = 4
_BUFFER_BYTES = 4 << 20
BUFFERED_BYTES = _BUFFERS * _BUFFER_BYTES


def write_past_cache(
    chunks: Iterable[memoryview], fd: int, *, path: str, lasting: bool = False
) -> None:
    """Write flat chunks of bytes from the start of a file, past the page cache as far as it can be.

    What may stay cached: the last part of a block (under 4 KiB), which no direct write can make;
    and, where the file system has no direct I/O, pages that the kernel keeps when asked to drop.

    One copy of each byte, into buffers of 16 MiB in all, or of 12 MiB for chunks that are not
    `lasting`, whose maker has a buffer too; up to four threads that live as long as the call, or
    this one alone where no thread can be had. The caller syncs: neither the device's own cache nor
    the file's size is flushed.

    Args:
        chunks: Flat views, each valid until the next is asked for.
        lasting: They are valid until the call ends, so that the writing threads may copy them:
            under load, four threads get more of the processors than one.
        fd: A descriptor open for writing, its blocks reserved, used by nobody else meanwhile.
        path: For error messages.

    Raises:
        DiskRefusedError: The disk refused; some of the bytes may have been written.
    """
    if not set_direct(fd, True):
        writer = WriteBehind(fd, path=path)
        for chunk in chunks:
            writer.append(chunk)
        writer.drain()
        return
    try:
        with ThreadPoolExecutor(_BUFFERS, thread_name_prefix="overspill-write") as pool:
            ring = _Ring(fd, pool, path=path, lasting=lasting)
            for chunk in chunks:
                ring.append(chunk)
            tail, offset = ring.finish()
    finally:
        set_direct(fd, False)
    # The last part of a block cannot be written directly without making the file longer.
    write_all(fd, tail, offset, path=path)


class _Ring:
    """Buffers that are filled in turn, each waited for before it is filled again."""

    def __init__(self, fd: int, pool: ThreadPoolExecutor, *, path: str, lasting: bool) -> None:
        self._fd = fd
        self._path = path
        self._lasting = lasting
        self._pool: ThreadPoolExecutor | None = pool
        count = _BUFFERS if lasting else _BUFFERS - 1
        self._buffers = [_aligned(_BUFFER_BYTES) for _ in range(count)]
        self._writes: list[Future[None] | None] = [None] * count
        self._turn = self._filled = self._offset = 0

    def append(self, chunk: memoryview) -> None:
        done = 0
        while done < len(chunk):
            take = min(len(chunk) - done, _BUFFER_BYTES - self._filled)
            part = chunk[done : done + take]
            done += take
            self._wait(self._turn)
            if self._lasting and take == _BUFFER_BYTES:
                self._send(take, part)
                continue
            self._buffers[self._turn][self._filled : self._filled + take] = _bytes_in(part)
            self._filled += take
            if self._filled == _BUFFER_BYTES:
                self._send(_BUFFER_BYTES)

    def finish(self) -> tuple[memoryview, int]:
        """Write all but the last part of a block; give that part and its place."""
        tail_bytes = self._filled % DIRECT_ALIGNMENT_BYTES
        whole = self._filled - tail_bytes
        tail = self._buffers[self._turn][whole : self._filled].data
        if whole:
            self._send(whole)
        for turn in range(len(self._writes)):
            self._wait(turn)
        return tail, self._offset

    def _send(self, nbytes: int, source: memoryview | None = None) -> None:
        """Have the buffer written, filled from `source` first where that is given."""
        piece = self._buffers[self._turn][:nbytes]
        fd, path, offset = self._fd, self._path, self._offset

        def job() -> None:
            if source is not None:
                piece[:] = _bytes_in(source)
            _write(fd, piece.data, offset, path)

        if not self._submitted(job):
            job()
        self._offset += nbytes
        self._turn = (self._turn + 1) % len(self._buffers)
        self._filled = 0

    def _submitted(self, job: Callable[[], None]) -> bool:
        if self._pool is None:
            return False
        try:
            self._writes[self._turn] = self._pool.submit(job)
        except RuntimeError:  # no more threads: a limit, or the interpreter is going down
            # Before the buffer is filled again: the job may have been queued all the same.
            self._pool.shutdown()
            self._pool = None
            return False
        return True

    def _wait(self, turn: int) -> None:
        write, self._writes[turn] = self._writes[turn], None
        if write is not None:
            write.result()


def _write(fd: int, piece: memoryview, offset: int, path: str) -> None:
    try:
        written = os.pwrite(fd, piece, offset)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise refused(error, "cannot write", fd, path, len(piece)) from error
        written = 0
    if written < len(piece):
        # A file system that wants another alignment, or a short write, whose rest is not aligned.
        set_direct(fd, False)
        write_all(fd, piece[written:], offset + written, path=path)


def _bytes_in(view: memoryview) -> np.ndarray:
    return np.frombuffer(view, dtype=np.uint8)


def _aligned(nbytes: int) -> np.ndarray:
    raw = np.empty(nbytes + DIRECT_ALIGNMENT_BYTES, dtype=np.uint8)
    skip = -raw.__array_interface__["data"][0] % DIRECT_ALIGNMENT_BYTES
    return raw[skip : skip + nbytes]
