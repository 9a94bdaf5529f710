"""One thread ahead and one behind: reading overlaps computing, and writing overlaps both.

The kernels and the system calls release the interpreter's lock, so two plain threads are enough.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """Run an iterator in a thread, one item ahead.

    Three items are alive at a time: the consumer's, the waiting one, the one being made. So a
    producer may cycle through three buffers.

    Yields:
        The items; an error of the producer, or of closing it, is raised here. Closing early ends
        the thread, and drops such an error.
    """
    ready: queue.Queue[Any] = queue.Queue(maxsize=1)
    stop = threading.Event()
    ended = object()

    def produce() -> None:
        last: object = ended
        try:
            try:
                for item in items:
                    ready.put(item)
                    if stop.is_set():
                        break
            finally:
                getattr(items, "close", lambda: None)()
        except BaseException as error:  # noqa: BLE001 (handed over whole to the consumer)
            last = _Failed(error)
        ready.put(last)

    thread = threading.Thread(target=produce, name="overspill-prefetch", daemon=True)
    thread.start()
    last = None
    try:
        while True:
            last = ready.get()
            if last is ended:
                return
            if isinstance(last, _Failed):
                raise last.error
            yield last
    finally:
        stop.set()
        while last is not ended and not isinstance(last, _Failed):
            last = ready.get()
        thread.join()


class Behind(Generic[Item]):
    """Runs calls in order in one thread; `submit` waits where too many are under way.

    Args:
        name: Of the thread.
        depth: Calls under way at most: with 1, `submit` waits for the one before.
    """

    def __init__(self, name: str, *, depth: int = 1) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._depth = depth
        self._pending: deque[Future[Item]] = deque()

    def submit(self, act: Callable[..., Item], *arguments: Any) -> Item | None:
        """Start a call; returns the result of the one it had to wait for, or raises its error."""
        before = self.wait() if len(self._pending) >= self._depth else None
        self._pending.append(self._pool.submit(act, *arguments))
        return before

    def wait(self) -> Item | None:
        """The result of the oldest call under way, once it is there; None when there is none."""
        return self._pending.popleft().result() if self._pending else None

    def wait_for_all(self) -> None:
        """Wait until no call is under way; raises the error of the first that failed."""
        while self._pending:
            self.wait()

    def close(self) -> None:
        """Wait for the thread to end; the results or errors of the last calls are dropped."""
        self._pool.shutdown(wait=True)
