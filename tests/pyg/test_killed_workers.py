from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from overspill.pyg import killed_workers
from overspill.pyg.killed_workers import WorkerBatches

FETCHING_FAILS = [EOFError(), ConnectionResetError(), ConnectionRefusedError(), BrokenPipeError()]


class Fetching:
    """Like torch's iterator: one batch, then what the socket of its maker says."""

    def __init__(self, workers: list[BaseProcess], error: BaseException) -> None:
        self._workers = workers
        self._batches = self._made(error)

    @staticmethod
    def _made(error: BaseException) -> Iterator[int]:
        yield 7
        raise error

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)


@pytest.fixture
def workers() -> Iterator[list[BaseProcess]]:
    context = multiprocessing.get_context("spawn")
    held: list[BaseProcess] = [context.Process(target=signal.pause) for _ in range(2)]
    for worker in held:
        worker.start()
    yield held
    for worker in held:
        worker.kill()
        worker.join()
        worker.close()


@pytest.mark.parametrize("error", FETCHING_FAILS, ids=repr)
def test_a_batch_that_its_killed_maker_cannot_hand_over_names_the_worker(
    error: BaseException, workers: list[BaseProcess]
) -> None:
    batches = WorkerBatches(Fetching(workers, error))
    assert next(batches) == 7
    # The socket is closed before the parent can know of the end.
    killing = threading.Timer(0.2, workers[1].kill)
    killing.start()
    with pytest.raises(RuntimeError, match=rf"pid {workers[1].pid}\).* exit code -9") as raised:
        next(batches)
    assert raised.value.__cause__ is error
    killing.join()


def test_where_all_workers_live_it_stays_what_it_is(
    workers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killed_workers, "_LAST_MOMENTS_S", 0.1)
    batches = WorkerBatches(Fetching(workers, EOFError("no more")))
    assert next(batches) == 7
    with pytest.raises(EOFError, match="no more"):
        next(batches)


class Short(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        raise EOFError("the caller's file ends here")


def test_what_the_callers_own_code_raised_is_raised_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waited(*_: object) -> None:
        raise AssertionError("nobody has ended")

    monkeypatch.setattr(killed_workers, "wait", waited)
    loader = DataLoader(Short(), batch_size=None, sampler=[0], num_workers=1)
    with pytest.raises(EOFError, match="the caller's file ends here"):
        next(WorkerBatches(iter(loader)))


def test_the_end_is_the_end() -> None:
    assert list(WorkerBatches(iter([1, 2]))) == [1, 2]
