"""What loaders counted, also those that are gone, and in a fork."""

from __future__ import annotations

import gc
import os
from functools import partial

from overspill.recording.loader_counts import LoaderCounts, LoaderRegistry


class Loader:
    """Something with a life; its counts live elsewhere."""

    def __init__(self, registry: LoaderRegistry) -> None:
        self.rows: list[int] = []
        registry.follow(self, partial(_told, self.rows))


def _told(rows: list[int]) -> LoaderCounts:
    return LoaderCounts(rows=sum(rows), batches=len(rows), asked_bytes=8 * sum(rows), waited_ns=1)


def test_what_a_loader_counted_stays_when_it_is_gone() -> None:
    registry = LoaderRegistry()
    first, second = Loader(registry), Loader(registry)
    first.rows += [10, 20]
    second.rows += [5]
    assert registry.totals() == LoaderCounts(35, 3, 280, 2)
    del first
    gc.collect()
    assert registry.totals() == LoaderCounts(35, 3, 280, 2)
    second.rows += [1]
    assert registry.totals().minus(LoaderCounts(35, 3, 280, 2)) == LoaderCounts(1, 1, 8, 0)
    del second
    gc.collect()
    assert registry._living == {}


def test_a_loader_that_goes_while_the_sums_are_taken_is_settled_next_time() -> None:
    registry = LoaderRegistry()
    held = [Loader(registry)]
    held[0].rows += [3]
    with registry._lock:  # as garbage collection may strike in there
        held.clear()
        gc.collect()
    assert len(registry._living) == 1
    assert registry.totals().rows == 3
    assert registry._living == {} and registry.totals().rows == 3


def test_a_forked_child_counts_its_own_loaders_only() -> None:
    registry = LoaderRegistry()
    os.register_at_fork(after_in_child=registry._reset)
    loader = Loader(registry)
    loader.rows += [100]
    with registry._lock:
        child = os.fork()
        if child == 0:
            own = Loader(registry)  # the lock, held at the fork, is free again
            own.rows += [7]
            before = registry.totals().rows
            del loader  # the parent's: its end must not be taken for that of the child's
            gc.collect()
            os._exit(0 if (before, registry.totals().rows) == (7, 7) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert registry.totals().rows == 100
