"""Makes the next batches in a thread while the caller works with the last one.

For a loader without workers. Requests are drawn by the caller's thread, so that a sampler that uses
random numbers stays where it was; a thread makes their batches, a few ahead and no more. Kernels
and reads release the GIL.

A thread that is alive when the process forks would leave its locks taken in the child: before a
fork the threads finish the batch they are at and end; the next batch that is asked for starts a new
one, in the parent and in the child alike. Where such a thread itself forks, by a transform, it
waits for none, since others may wait for it: the child forgets the threads that it does not have.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakSet


class BatchesAhead:
    """An iterator over the batches of requests, made ahead in a thread.

    An error of a batch, or of drawing its request, is raised where that batch is asked for.
    `close`, the last batch, an error and the iterator's own end all end the thread. One consumer at
    a time.

    Args:
        requests: What to make, in order.
        make: Makes the batch of a request.
        count: Batches that are held beside the one in the caller's hands, 1 or more.
    """

    def __init__(self, requests: Iterator[Any], make: Callable[[Any], Any], count: int) -> None:
        self._requests, self._make, self._count = requests, make, count
        self._waiting: deque[_Entry] = deque()
        self._thread: _MakerThread | None = None
        self._lock = threading.RLock()
        _OPEN.add(self)

    def __iter__(self) -> BatchesAhead:
        return self

    def __next__(self) -> Any:
        while True:
            with self._lock:
                self._refill()
                if not self._waiting:
                    self.close()
                    raise StopIteration
                future = self._waiting[0].future
            try:
                batch = future.result()
                break
            except CancelledError:
                continue  # by a fork: it is asked for again
            except BaseException:
                self.close()
                raise
        with self._lock:
            self._waiting.popleft()
            self._refill()  # now, so that the thread works while the caller does
        return batch

    def close(self) -> None:
        """End the thread after the batch it is at, and drop what it made. Idempotent."""
        with self._lock:
            self._waiting.clear()
            self._requests = iter(())
            self._end_thread()

    def pause(self) -> None:
        """End the thread, and let none start until `resume`: for a fork."""
        self._lock.acquire()
        self._end_thread()

    def resume(self) -> None:
        """Let it start again."""
        self._lock.release()

    def forget_thread(self) -> None:
        """Have no thread any more: in a child, which it did not come to. Batches are made again."""
        self._lock, self._thread = threading.RLock(), None
        for entry in self._waiting:
            if not entry.future.done():
                entry.future = _not_begun()

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is not None:
            self._end_thread()

    def _refill(self) -> None:
        while len(self._waiting) < self._count:
            try:
                request = next(self._requests)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - the caller's own, raised at its batch's turn
                self._waiting.append(_Entry(None, failed=error))
                self._requests = iter(())
                break
            self._waiting.append(_Entry(request))
        for entry in self._waiting:
            if entry.future.cancelled():
                if self._thread is None:
                    self._thread = _MakerThread()
                entry.future = self._thread.executor.submit(self._make, entry.request)

    def _end_thread(self) -> None:
        thread = self._thread
        if thread is not None and not thread.is_this():
            self._thread = None
            thread.executor.shutdown(wait=True, cancel_futures=True)


class _Entry:
    """A request, and its batch to come: cancelled as long as no thread has been given it."""

    def __init__(self, request: Any, *, failed: Exception | None = None) -> None:
        self.request = request
        self.future: Future[Any] = _not_begun()
        if failed is not None:
            self.future = Future()
            self.future.set_exception(failed)


def _not_begun() -> Future[Any]:
    future: Future[Any] = Future()
    future.cancel()
    return future


class _MakerThread:
    """An executor of one thread that knows itself."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        ids = self._ids  # the thread must not keep this object, nor the iterator, alive

        def begin() -> None:
            ids.append(threading.get_ident())
            _HERE.is_maker = True

        self.executor = ThreadPoolExecutor(1, "overspill-batches", initializer=begin)

    def is_this(self) -> bool:
        """Whether the caller is that thread: a transform that forks."""
        return threading.get_ident() in self._ids


class _Here(threading.local):
    """Whether this thread makes batches, and what its fork has paused: two may fork at a time."""

    def __init__(self) -> None:
        self.paused: list[BatchesAhead] = []
        self.is_maker = False


_OPEN: WeakSet[BatchesAhead] = WeakSet()
_HERE = _Here()


def _pause_all() -> None:
    if _HERE.is_maker:
        return
    # In one order, so that two that fork do not wait for each other.
    for batches in sorted(_OPEN, key=id):
        batches.pause()
        _HERE.paused.append(batches)


def _resume_all() -> None:
    while _HERE.paused:
        _HERE.paused.pop().resume()


def _resume_in_child() -> None:
    _resume_all()
    if _HERE.is_maker:
        for batches in list(_OPEN):
            batches.forget_thread()
        _HERE.is_maker = False


os.register_at_fork(before=_pause_all, after_in_parent=_resume_all, after_in_child=_resume_in_child)
