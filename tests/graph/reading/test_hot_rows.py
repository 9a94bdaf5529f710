"""Hot rows: within the budget, once for all processes, the right ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
from confined import PythonResult, make_cold
from overspill.errors import InputError, NoRoomError, StaleFileError
from overspill.graph.dataset import Dataset
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.row_reader import RowReader
from reading_graphs import BUYS, degrees, random_rows, write_market, write_wide

X = ("node", "x")


def wide(path: Path, count: int = 4000, width: int = 64) -> Dataset:
    return write_wide(path, {"x": ("uint8", random_rows("uint8", (count, width)))}, count)


@pytest.mark.parametrize("budget", [0, 64, 1000, 50_000, 10**6, 10**7])
def test_rows_and_table_stay_within_the_budget(tmp_path: Path, budget: int) -> None:
    dataset = wide(tmp_path / "ds")
    counts = np.random.default_rng(0).integers(0, 1000, 4000)
    hot = HotRows.chosen_by_counts(dataset, [X], {"node": counts}, budget)
    assert hot.nbytes <= budget
    # A row takes 64 bytes, and 16 in the table.
    assert hot.count(X) >= min((budget - 200) // 80, np.count_nonzero(counts))
    out = torch.empty((4000, 64), dtype=torch.uint8)
    reader = RowReader(dataset, hot)
    reader.gather(X, range(4000), out=out)
    assert out.equal(dataset.features("x"))
    stats = reader.counts.stats()
    assert stats.hot_hits == hot.count(X)
    if hot.count(X):
        held = np.sort(counts)[::-1][: hot.count(X)]
        used = np.flatnonzero(counts > held[-1])
        reader.gather(X, used, out=out[: used.size])
        assert reader.counts.stats().hot_hits == hot.count(X) + used.size


def test_the_first_rows_need_no_table(tmp_path: Path) -> None:
    dataset = wide(tmp_path / "ds")
    hot = HotRows.chosen_by_counts(dataset, [X], {"node": np.arange(4000)[::-1]}, 100_000)
    assert hot.nbytes - 64 * hot.count(X) < 64
    reader, out = RowReader(dataset, hot), torch.empty((3, 64), dtype=torch.uint8)
    reader.gather(X, [0, hot.count(X), hot.count(X) - 1], out=out)
    assert out.equal(dataset.features("x")[[0, hot.count(X), hot.count(X) - 1]])
    assert reader.counts.stats().hot_hits == 2


def test_types_share_a_budget_by_uses_a_byte(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    hot = HotRows.chosen_by_degree(dataset, [("user", "x"), ("item", "x")], 6000)
    assert hot.nbytes <= 6000
    # A user's row takes 32 bytes, an item's 12, and each 16 in the table.
    density = {
        name: np.sort(degrees(dataset, name, "source") / cost)[::-1]
        for name, cost in (("user", 48), ("item", 28))
    }
    taken = {name: hot.count((name, "x")) for name in density}
    assert min(taken.values()) > 0
    least = min(held[taken[name] - 1] for name, held in density.items())
    most = max(held[taken[name]] for name, held in density.items())
    assert least >= most


def test_rows_of_edges_are_chosen_by_counts_alone(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    with pytest.raises(InputError, match="no degree"):
        HotRows.chosen_by_degree(dataset, [(BUYS, "w")], 1000)
    counts = np.zeros(2000, np.int64)
    counts[[3, 1500]] = 9
    hot = HotRows.chosen_by_counts(dataset, [(BUYS, "w")], {BUYS: counts}, 1000, shared=False)
    reader, out = RowReader(dataset, hot), torch.empty(3)
    reader.gather((BUYS, "w"), [1500, 4, 3], out=out)
    assert out.equal(dataset.edge_features("w", BUYS)[[1500, 4, 3]])
    assert (hot.count((BUYS, "w")), reader.counts.stats().hot_hits) == (2, 2)


def test_arrays_that_are_not_held_are_read(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    hot = HotRows.chosen_by_degree(dataset, [("user", "x")], 10_000, shared=False)
    reader, out = RowReader(dataset, hot), torch.empty((1, 3))
    reader.gather(("item", "x"), [7], out=out)
    assert out.equal(dataset.features("x", "item")[[7]])
    assert reader.counts.stats().hot_lookups == 0


def test_another_dataset_is_refused(tmp_path: Path) -> None:
    one, other = wide(tmp_path / "one"), wide(tmp_path / "other")
    hot = HotRows.chosen_by_counts(one, [X], {"node": np.ones(4000, int)}, 1000, shared=False)
    with pytest.raises(StaleFileError, match="another dataset"):
        RowReader(other, hot)


@pytest.mark.parametrize("short", ["memory_limit_bytes", "shm_reserve_bytes"])
def test_what_does_not_fit_is_refused_before_it_is_made(tmp_path: Path, short: str) -> None:
    dataset, counts = wide(tmp_path / "ds"), {"node": np.ones(4000, int)}
    with (
        ov.settings(**{short: 1 if short == "memory_limit_bytes" else 1 << 60}),
        pytest.raises(NoRoomError, match=r"hot rows were to be held.*smaller size"),
    ):
        HotRows.chosen_by_counts(dataset, [X], counts, 100_000)
    # What the whole takes is all that is needed.
    hot = HotRows.chosen_by_counts(dataset, [X], counts, 1 << 60)
    assert (hot.count(X), hot.nbytes) == (4000, 4000 * 64)


IN_LITTLE_MEMORY = """
import sys, numpy as np, torch
import overspill as ov
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.row_reader import RowReader
from overspill.linux.processes import process_memory

dataset, X = ov.open_dataset(sys.argv[1]), ("node", "x")
def held(budget):
    counts = np.ones(196608, np.int32)
    counts[::7] = 0  # a table is needed
    return HotRows.chosen_by_counts(dataset, [X], {"node": counts}, budget)
held(1 << 20)
before = process_memory().anon_bytes
hot = held(96 << 20)
grown = process_memory().anon_bytes - before
ids = np.arange(0, 196608, 5)
out = torch.empty((ids.size, 512), dtype=torch.uint8)
reader = RowReader(dataset, hot)
reader.gather(X, ids, out=out)
assert (out[:, :8].contiguous().view(torch.int64).view(-1).numpy() == ids).all()
print(grown, hot.nbytes, reader.counts.stats().hot_rate)
"""


def test_making_them_takes_the_budget_and_little_more(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    rows = np.zeros((196608, 512), np.uint8)
    rows[:, :8] = np.arange(196608).view(np.uint8).reshape(-1, 8)
    dataset = write_wide(tmp_path / "ds", {"x": ("uint8", rows)}, 196608)
    make_cold(dataset.path / "node.x")
    found = run_python(IN_LITTLE_MEMORY, arguments=[dataset.path], limit_bytes=400 << 20).check()
    grown, nbytes, rate = map(float, found.stdout.split())
    assert found.kills == 0
    assert grown < 24 << 20  # the rows themselves lie in shared memory
    assert 80 << 20 < nbytes <= 96 << 20
    assert rate > 0.8


def _inode(hot: HotRows) -> tuple[int, int]:
    """Of the shared memory behind the rows, as this process maps it."""
    address = hot._memory.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, device, inode, *_ = line.split()
        first, last = (int(part, 16) for part in span.split("-"))
        if first <= address < last:
            return int(device.replace(":", ""), 16), int(inode)
    raise AssertionError("not mapped")


def _look(dataset: Dataset, hot: HotRows, told: Any) -> None:
    reader, out = RowReader(dataset, hot), torch.empty((4000, 64), dtype=torch.uint8)
    reader.gather(X, range(4000), out=out)
    # By numpy: torch's own threads do not outlive a fork.
    same = bool((out.numpy() == dataset.features("x").numpy()).all())
    told.put((same, reader.counts.stats().hot_hits, _inode(hot)))


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_use_one_copy(tmp_path: Path, method: Any, workers: int) -> None:
    dataset = wide(tmp_path / "ds")
    before = os.statvfs("/dev/shm").f_bavail
    hot = HotRows.chosen_by_counts(dataset, [X], {"node": np.arange(4000) % 50}, 200_000)
    taken = before - os.statvfs("/dev/shm").f_bavail
    context = torch.multiprocessing.get_context(method)
    told = context.Queue()
    children = [context.Process(target=_look, args=(dataset, hot, told)) for _ in range(workers)]
    for child in children:
        child.start()
    found = [told.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert found == [(True, hot.count(X), _inode(hot))] * workers
    assert taken * os.statvfs("/dev/shm").f_frsize < 2 * hot.nbytes
    told.close()
    told.join_thread()
