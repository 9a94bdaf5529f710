"""Counts of several processes, and of the device's reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overspill.errors import InputError
from overspill.graph.reading.counters import LoaderCounters, LoaderStats, SlotCounts
from overspill.recording.loader_counts import LOADERS, LoaderCounts


def _count(counters: LoaderCounters, place: int) -> None:
    counts = counters.slot(place)
    counts.add(rows=10 * place, bytes_asked=100)
    counts.add_batch()


@pytest.mark.parametrize(("method", "places"), [("fork", (1, 2)), ("spawn", (2,))])
def test_processes_count_in_slots_of_their_own(method: Any, places: tuple[int, ...]) -> None:
    counters = LoaderCounters(3)
    context = torch.multiprocessing.get_context(method)
    children = [context.Process(target=_count, args=(counters, place)) for place in places]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    _count(counters, 2)  # as a worker of the next epoch does: it goes on counting
    stats, made = counters.totals(), len(places) + 1
    assert (stats.rows, stats.batches) == (10 * sum(places) + 20, made)
    assert stats.bytes_asked == 100 * made
    assert counters.slot(2).stats().rows == 40
    assert counters.slot(0).stats() == LoaderStats()


def test_a_slot_must_be_there() -> None:
    with pytest.raises(InputError, match="0 slots"):
        LoaderCounters(0)


def test_what_the_device_read_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = iter([1000, 1500, 1700, None, 9000])
    monkeypatch.setattr("overspill.graph.reading.counters.device_bytes_read", lambda: next(told))
    counts = SlotCounts()
    counts.add_batch()
    counts.add_device_bytes()
    assert counts.stats().device_bytes == 700
    counts.add_device_bytes()  # hidden for a while: nothing can be told of the span
    counts.add_device_bytes()
    assert counts.stats().device_bytes == 700


def test_waiting_and_passing_time_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([int(1e9), int(3e9), int(4e9), int(5e9), int(100e9), int(101e9)])
    monkeypatch.setattr("overspill.graph.reading.counters.time.monotonic_ns", lambda: next(now))
    counts = SlotCounts()
    for first in (True, False, True):  # the third is another epoch's first
        counts.wait_begins(first=first)
        counts.wait_ends()
    stats = counts.stats()
    assert (stats.waited_s, stats.elapsed_s) == (4.0, 5.0)


def test_stats_are_one_line_and_rates_need_no_care() -> None:
    assert LoaderStats().rows_per_s == LoaderStats().hot_rate == 0.0
    stats = LoaderStats(
        rows=1000, bytes_asked=512_000, hot_hits=250, hot_lookups=1000, batches=3, elapsed_s=0.5
    )
    assert repr(stats) == (
        "LoaderStats(batches=3, rows=1000, rows_per_s=2000, asked=500.0 KiB, device=0 B, "
        "hot_rate=0.250, waited_s=0.00 of 0.50)"
    )


def test_a_recording_hears_of_all_loaders_also_when_they_are_gone() -> None:
    before = LOADERS.totals()
    for slots in (1, 3):
        counters = LoaderCounters(slots)
        _count(counters, slots - 1)
        counters.slot(0).add(waited_ns=5)
    del counters
    found = LOADERS.totals().minus(before)
    assert found == LoaderCounts(rows=20, batches=2, asked_bytes=200, waited_ns=10)
