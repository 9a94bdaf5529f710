"""Passes over a loader beside each other, and what is asked of it between them."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
from loaded_batches import BUYS, KNOWS, LIKED, all_listed, listed, market, stop_workers
from overspill.errors import InputError
from overspill.graph.dataset import Dataset, open_dataset
from overspill.pyg import HotRows, LinkNeighborLoader, NeighborLoader
from overspill.pyg.packed import PackPlace


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    market(tmp_path / "market")
    return open_dataset(tmp_path / "market")


def users(ds: Dataset, **options: Any) -> NeighborLoader:
    return NeighborLoader(ds, [3, 2], "user", batch_size=8, shuffle=True, seed=3, **options)


def test_forked_workers_count_in_slots_of_their_own(ds: Dataset) -> None:
    loader = users(ds, num_workers=2, multiprocessing_context="fork")
    expected = all_listed(users(ds))
    loader([0, 1])
    assert all_listed(loader) == expected
    counters = loader._counters
    assert [counters.slot(place).stats().batches for place in range(3)] == [1, 5, 4]
    assert loader.stats().batches == 10 and loader.stats().device_bytes >= 0
    stop_workers(loader)


def test_a_fork_while_a_thread_makes_a_batch_leaves_workers_no_lock(ds: Dataset) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waits_once(out: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            go_on.wait(120)
        return out

    loader = users(
        ds, num_workers=1, multiprocessing_context="fork", transform_sampler_output=waits_once,
        timeout=120,
    )  # fmt: skip
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(loader, [0, 1])
        begun.wait(120)
        batches = iter(loader)
        first = next(batches)
        go_on.set()
        assert made.result()["user"].input_id.tolist() == [0, 1]
        assert len(all_listed(batches)) == 8 and first["user"].batch_size == 8
    stop_workers(loader, batches)


class ToldLock:
    """A loader's lock that tells when two have come to it, whether they hold it or wait for it."""

    def __init__(self, loader: NeighborLoader) -> None:
        self._lock, self._coming = threading.RLock(), itertools.count()
        self.both_came = threading.Event()
        loader._maker.beginning = self  # type: ignore[assignment]

    def __enter__(self) -> None:
        if next(self._coming) == 1:
            self.both_came.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_first_passes_of_two_threads_pack_once(
    tmp_path: Path, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = users(ds, pack=tmp_path / "pack")
    expected = all_listed(users(ds))
    lock, packed = ToldLock(loader), []
    made = PackPlace.opened_or_made

    def slow(self: PackPlace, outs: Any) -> Any:
        packed.append(threading.get_ident())
        assert lock.both_came.wait(60)  # with the lock the second comes no further
        return made(self, outs)

    monkeypatch.setattr(PackPlace, "opened_or_made", slow)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: all_listed(loader), range(2)))
    assert found == [expected, expected] and len(packed) == 1


def test_each_threads_pass_is_an_epoch_of_its_own(ds: Dataset) -> None:
    alone = users(ds)
    expected = [all_listed(alone) for _ in range(2)]
    loader = users(ds)
    lock = ToldLock(loader)
    begin = loader._batches.__class__.__iter__

    class Slow(type(loader._batches)):  # type: ignore[misc]
        def __iter__(self) -> Any:
            # Another pass that began here would take the epoch for its own.
            assert lock.both_came.wait(60)
            return begin(self)

    loader._batches.__class__ = Slow
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: all_listed(loader), range(2)))
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_the_same_places_give_the_same_batch_whatever_the_epoch(ds: Dataset) -> None:
    loader = users(ds)
    first = listed(loader([0, 1, 2]))
    list(loader)
    loader.set_epoch(7)
    assert listed(loader(torch.tensor([0, 1, 2]))) == first
    assert listed(loader([2, 1, 0])) != first


def test_uses_are_counted_over_no_more_batches_than_asked_for(ds: Dataset) -> None:
    sampled: list[int] = []

    def noted(out: Any) -> Any:
        sampled.append(1)
        return out

    loader = users(ds, transform_sampler_output=noted)
    for batches, expected in ((2, 2), (0, 0), (None, 9), (50, 9)):
        sampled.clear()
        loader.count_uses(batches)
        assert len(sampled) == expected
    for wrong in (-1, 1.5, "2", True):
        with pytest.raises(InputError, match="is not a number of batches"):
            loader.count_uses(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", ["x", 1.5, True, torch.tensor(3)])
def test_a_seed_that_is_no_whole_number_is_refused(ds: Dataset, seed: Any) -> None:
    with pytest.raises(InputError, match="is not a whole number"):
        NeighborLoader(ds, [3], "user", seed=seed)


def test_times_that_are_not_whole_or_not_there_are_told_by_name(ds: Dataset) -> None:
    times = torch.full((70,), 0.5)
    with pytest.raises(InputError, match=r"input_time holds torch.float32.*whole numbers"):
        NeighborLoader(ds, [3], "user", input_time=times, time_attr="t")
    with pytest.raises(InputError, match=r"no 'when'.*an array of theirs: x"):
        NeighborLoader(ds, [3], "user", time_attr="when")
    ends = (BUYS, torch.tensor([[0], [0]]))
    with pytest.raises(InputError, match=r"edge_label_time holds torch.float32"):
        LinkNeighborLoader(ds, [3], ends, edge_label_time=times[:1], time_attr="t")


def test_a_seed_of_numpys_is_the_number(ds: Dataset) -> None:
    loader = NeighborLoader(ds, [3], "user", seed=np.int64(3))  # type: ignore[arg-type]
    assert type(loader.seed) is int and loader.seed == 3


def test_what_the_loaders_tell_people_to_use_is_exported(ds: Dataset) -> None:
    uses = users(ds).count_uses(2)
    hot = HotRows.chosen_by_counts(ds, [("user", "x")], uses, 4096, shared=False)
    assert hot.count(("user", "x")) > 0
    spec = ov.SamplingSpec(num_neighbors={BUYS: (2,), LIKED: (2,), KNOWS: (0,)}, disjoint=True)
    assert ds.sampler(spec) is not None
    assert "SamplingSpec" in ov.__all__
