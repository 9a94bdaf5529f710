"""The files of the parts while they are written: opened, filled, closed, several at a time.

Bottleneck: the device's answers to fsync, of which each file wants two, and the checksums; so files
are closed four at a time, and four threads append to those of a group. Memory: none of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from overspill.build.remedies import REPORT
from overspill.errors import FormatError
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import FileRecord, numpy_view_dtype

Rows = npt.NDArray[Any]
THREADS = 4


class Sink:
    """Writes the file of one part, which is made by `open`.

    Args:
        path: Where it goes.
        dtype: A name of `STORED_DTYPES`.
        shape: The whole shape.
        record_path: The path as the part's manifest names it.
        summed: What is appended are lengths; what is written is where each ends, after a zero.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: str,
        shape: tuple[int, ...],
        record_path: str,
        summed: bool = False,
    ) -> None:
        self._path, self._name, self._shape = path, dtype, shape
        self._record_path, self._summed = record_path, summed
        self._dtype = numpy_view_dtype(dtype)
        self._total = 0
        self._writer: ArrayWriter | None = None

    def open(self, window_bytes: int) -> None:
        """Make the file; as much of it may be dirty, twice."""
        writer = ArrayWriter(
            self._path,
            dtype=self._name,
            shape=self._shape,
            record_path=self._record_path,
            window_bytes=window_bytes,
        )
        self._writer = writer.__enter__()
        if self._summed:
            writer.append(np.zeros(1, self._dtype))

    def append(self, elements: Rows) -> None:
        """Append elements, as bits of any width."""
        held = elements.view(np.uint8).view(self._dtype)
        if self._summed:
            held = np.cumsum(held)
            held += self._total
            self._total = int(held[-1])
        self._opened().append(held)

    def close(self) -> None:
        """Publish the file; after an error it is gone."""
        self._opened().__exit__(None, None, None)

    def abandon(self, error: BaseException) -> None:
        """Remove the file, if it was made and not published."""
        if self._writer is not None and not self._writer.published:
            self._writer.__exit__(type(error), error, error.__traceback__)

    def record(self) -> FileRecord:
        """What was written."""
        return self._opened().result

    def _opened(self) -> ArrayWriter:
        if self._writer is None:
            raise FormatError(f"{self._path} was not opened", path=str(self._path), remedy=REPORT)
        return self._writer


class Workers:
    """A few threads, as a context manager; at most so many calls wait or run."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="overspill-parts")
        self._pending: deque[Future[None]] = deque()

    def submit(self, act: Callable[..., None], *arguments: Any) -> None:
        """Start a call; where all threads are taken, wait for the oldest, or raise its error."""
        if len(self._pending) >= THREADS:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(act, *arguments))

    def wait(self) -> None:
        """Wait for all calls, or raise the first error."""
        while self._pending:
            self._pending.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True)
