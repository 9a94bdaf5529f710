from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaded_batches import all_listed, market
from overspill.errors import InputError
from overspill.graph.dataset import open_dataset
from overspill.pyg import NeighborLoader
from overspill.pyg.ahead import BatchesAhead


def makers() -> list[threading.Thread]:
    return [held for held in threading.enumerate() if held.name.startswith("overspill-batches")]


def test_batches_come_in_order_and_the_thread_ends_with_the_last() -> None:
    threads = set()

    def make(request: int) -> int:
        threads.add(threading.get_ident())
        return request * 10

    batches = BatchesAhead(iter(range(5)), make, 2)
    assert list(batches) == [0, 10, 20, 30, 40]
    assert len(threads) == 1 and threading.get_ident() not in threads
    assert makers() == []
    with pytest.raises(StopIteration):
        next(batches)


def test_no_more_batches_than_asked_for_are_made_ahead() -> None:
    drawn: list[int] = []

    def requests() -> Iterator[int]:
        for request in range(100):
            drawn.append(request)
            yield request

    made = threading.Semaphore(0)

    def make(request: int) -> int:
        made.release()
        return request

    batches = BatchesAhead(requests(), make, 3)
    for taken in range(1, 4):
        next(batches)
        assert len(drawn) == taken + 3
    for _ in range(6):
        made.acquire(timeout=120)  # those that were drawn are made, and no other
    batches.close()
    assert not made.acquire(blocking=False) and makers() == []


def test_an_error_comes_out_where_its_batch_is_asked_for() -> None:
    def make(request: int) -> int:
        if request == 2:
            raise InputError("batch 2 is bad")
        return request

    batches = BatchesAhead(iter(range(9)), make, 4)
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(InputError, match="batch 2 is bad"):
        next(batches)
    assert makers() == []
    with pytest.raises(StopIteration):
        next(batches)


def test_an_iterator_that_is_dropped_ends_its_thread() -> None:
    batches = BatchesAhead(iter(range(9)), lambda request: request, 2)
    next(batches)
    assert len(makers()) == 1
    del batches
    gc.collect()
    assert makers() == []


def test_no_thread_is_alive_at_a_fork_and_both_sides_go_on() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make(request: int) -> int:
        if request == 1:
            begun.set()
            go_on.wait(120)
        return request

    batches = BatchesAhead(iter(range(6)), make, 3)
    assert next(batches) == 0
    begun.wait(120)
    go_on.set()
    child = os.fork()
    if child == 0:
        alive = len(makers())  # only this thread lives here; the executor's must not be counted on
        os._exit(0 if alive == 0 and list(batches) == [1, 2, 3, 4, 5] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(batches) == [1, 2, 3, 4, 5]


def test_a_batch_whose_making_forks_does_not_wait_for_itself() -> None:
    def make(request: int) -> int:
        child = os.fork()
        if child == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + request

    assert list(BatchesAhead(iter(range(3)), make, 2)) == [7, 8, 9]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_an_error_of_the_sampler_comes_at_its_batchs_turn(count: int) -> None:
    def requests() -> Iterator[int]:
        yield from range(3)
        raise KeyError("the sampler's own")

    batches = BatchesAhead(requests(), lambda request: request * 10, count)
    assert [next(batches) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(KeyError, match="the sampler's own"):
        next(batches)
    assert makers() == []
    with pytest.raises(StopIteration):
        next(batches)


def test_makers_and_others_that_fork_at_one_moment_do_not_wait_for_each_other() -> None:
    forking = threading.Barrier(3, timeout=120)

    def forked(inside: Callable[[], bool] = lambda: True) -> int:
        child = os.fork()
        if child == 0:
            os._exit(7 if inside() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def make(request: int) -> int:
        if request == 1:
            forking.wait()
            # Whose batches a child may go on with: it has neither of the two threads.
            return forked(lambda: list(both[0]) == list(both[1]) == [1, 2, 3])
        return request

    both = [BatchesAhead(iter(range(4)), make_in_parent(make), 2) for _ in range(2)]
    assert [next(batches) for batches in both] == [0, 0]
    forking.wait()
    assert forked() == 7
    assert [list(batches) for batches in both] == [[7, 2, 3]] * 2


def make_in_parent(make: Callable[[int], int]) -> Callable[[int], int]:
    """In children a batch is its request."""
    parent = os.getpid()
    return lambda request: make(request) if os.getpid() == parent else request


@pytest.mark.parametrize("count", [1, 3])
def test_a_loader_makes_the_same_batches_ahead(tmp_path: Path, count: int) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    options: dict[str, Any] = {
        "input_nodes": "user", "batch_size": 9, "shuffle": True, "seed": 2,
    }  # fmt: skip
    alone = NeighborLoader(ds, [3, 2], **options)
    ahead = NeighborLoader(ds, [3, 2], prefetch_batches=count, **options)
    assert ahead.plan.prefetch_factor == count and alone.plan.prefetch_factor == 0
    for _ in range(2):
        assert all_listed(ahead) == all_listed(alone)
    assert ahead.plan.projected_bytes > alone.plan.projected_bytes


def test_a_loader_that_is_left_early_leaves_no_thread(tmp_path: Path) -> None:
    market(tmp_path)
    loader = NeighborLoader(open_dataset(tmp_path), [3], "user", batch_size=5, prefetch_batches=4)
    for batch in loader:
        assert batch["user"].batch_size == 5
        break
    gc.collect()
    assert makers() == []


def test_an_error_of_a_transform_comes_out_of_the_loader(tmp_path: Path) -> None:
    market(tmp_path)

    def fail(batch: Any) -> Any:
        if 20 in batch["user"].input_id.tolist():
            raise KeyError("the transform's own")
        return batch

    loader = NeighborLoader(
        open_dataset(tmp_path), [3], "user", batch_size=10, prefetch_batches=2, transform=fail
    )
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(KeyError, match="the transform's own"):
        next(batches)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prefetch_batches": -1}, "prefetch_batches=-1"),
        ({"prefetch_batches": "2"}, "prefetch_batches='2'"),
        ({"prefetch_factor": 2}, "num_workers is 0.*prefetch_batches"),
        ({"prefetch_factor": 2, "prefetch_batches": 2, "num_workers": 1}, "exclude each other"),
        ({"lookahead": -1}, "lookahead=-1"),
        ({"lookahead": 2.0}, "lookahead=2.0"),
    ],
)
def test_numbers_that_are_none_are_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    market(tmp_path)
    with pytest.raises(InputError, match=told):
        NeighborLoader(open_dataset(tmp_path), [3], "user", **options)


def test_with_workers_the_batches_ahead_are_shared_among_them(tmp_path: Path) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    for wanted, factor in ((None, 2), (1, 1), (3, 2), (8, 4)):
        loader = NeighborLoader(ds, [3], "user", num_workers=2, prefetch_batches=wanted)
        assert loader.prefetch_factor == loader.plan.prefetch_factor == factor
