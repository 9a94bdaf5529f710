"""Says which worker was killed, where torch only finds that a batch can no longer be fetched."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

_LAST_MOMENTS_S = 5  # from a process's closed sockets to its end, on a machine that is busy


class WorkerBatches:
    """torch's iterator over the batches of workers, whose death is always a RuntimeError.

    A batch's tensors are fetched from the worker that made them. When that one is killed on the
    way, its socket says so before its parent is told, and torch lets through what the socket said.

    Args:
        inner: The iterator; its end ends the workers.
    """

    def __init__(self, inner: Iterator[Any]) -> None:
        self.inner = inner

    def __iter__(self) -> WorkerBatches:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.inner)
        except (EOFError, ConnectionError) as error:
            if str(error).startswith("Caught "):
                raise  # of the caller's own code, as torch hands it on from a worker
            ended = _ended(getattr(self.inner, "_workers", []))
            if ended is None:
                raise
            raise RuntimeError(
                f"DataLoader worker (pid {ended.pid}) ended with exit code {ended.exitcode} before "
                "its batch was fetched"
            ) from error


def _ended(workers: list[BaseProcess]) -> BaseProcess | None:
    """One that has ended, by itself or by a signal, or does so now."""
    by_sentinel = {worker.sentinel: worker for worker in workers}
    for sentinel in wait(list(by_sentinel), _LAST_MOMENTS_S):
        worker = by_sentinel[sentinel]  # type: ignore[index] # what was put in
        worker.join()
        return worker
    return None
