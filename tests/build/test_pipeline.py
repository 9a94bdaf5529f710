from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from overspill.build.pipeline import Behind, prefetched


def test_items_come_in_order() -> None:
    assert list(prefetched(iter(range(100)))) == list(range(100))
    assert list(prefetched(iter([]))) == []


def test_at_most_three_items_are_alive() -> None:
    taken = made = 0
    widest = 0

    def produce() -> Iterator[int]:
        nonlocal made, widest
        for number in range(50):
            made += 1
            widest = max(widest, made - taken)
            yield number

    for _ in prefetched(produce()):
        taken += 1
    # Counted when the item before was asked for to be replaced: the consumer's own included.
    assert widest <= 3 and taken == 50


def test_a_failing_producer_is_raised_in_the_consumer() -> None:
    def produce() -> Iterator[int]:
        yield 1
        raise KeyError("no more")

    items = prefetched(produce())
    assert next(items) == 1
    with pytest.raises(KeyError, match="no more"):
        next(items)


class FailingClose:
    """An iterator of one item that cannot be closed."""

    def __init__(self) -> None:
        self._items = iter([1])

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._items)

    def close(self) -> None:
        raise OSError(5, "it cannot be closed")


def test_a_producer_that_cannot_be_closed_is_raised_in_the_consumer() -> None:
    items = prefetched(FailingClose())
    assert next(items) == 1
    with pytest.raises(OSError, match="cannot be closed"):
        next(items)
    with closing(prefetched(FailingClose())) as early:  # type: ignore[type-var]
        assert next(early) == 1


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_early_ends_the_thread_and_the_producer(taken: int) -> None:
    closed = threading.Event()

    def produce() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    with closing(prefetched(produce())) as items:  # type: ignore[type-var]
        for _ in range(taken):
            next(items)
    assert closed.is_set() == (taken > 0)
    assert "overspill-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_calls_run_in_order_one_behind() -> None:
    done: list[int] = []
    behind: Behind[int] = Behind("test")

    def act(number: int) -> int:
        done.append(number)
        return number

    assert behind.submit(act, 1) is None
    assert behind.submit(act, 2) == 1
    assert behind.wait() == 2 and behind.wait() is None
    behind.close()
    assert done == [1, 2]


def test_an_error_behind_is_raised_at_the_next_step() -> None:
    behind: Behind[None] = Behind("test")

    def fail() -> None:
        raise OSError(28, "full")

    behind.submit(fail)
    with pytest.raises(OSError, match="full"):
        behind.submit(fail)
    behind.close()


def test_a_deeper_queue_waits_for_the_oldest_call_when_it_is_full() -> None:
    open_gate, done = threading.Event(), []
    behind: Behind[int] = Behind("test", depth=2)

    def act(number: int) -> int:
        open_gate.wait()
        done.append(number)
        return number

    assert behind.submit(act, 1) is None and behind.submit(act, 2) is None
    assert done == []
    open_gate.set()
    assert behind.submit(act, 3) == 1
    behind.wait_for_all()
    assert done == [1, 2, 3] and behind.wait() is None
    behind.close()


def test_waiting_for_all_raises_what_failed_first() -> None:
    behind: Behind[None] = Behind("test", depth=3)

    def fail(number: int) -> None:
        raise OSError(number, "full")

    for number in (5, 28):
        behind.submit(fail, number)
    with pytest.raises(OSError, match="full") as caught:
        behind.wait_for_all()
    assert caught.value.errno == 5
    behind.close()
