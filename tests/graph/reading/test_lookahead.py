"""Batches read together against plain indexing, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from confined import PythonResult, make_cold
from overspill.errors import InputError, NoRoomError, StaleFileError
from overspill.graph.dataset import Dataset
from overspill.graph.paged import PagedArray
from overspill.graph.reading import lookahead
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.lookahead import ReadingBuffer, SharedReading
from overspill.graph.reading.row_reader import RowReader
from overspill.kernels.row_table import collect_ids, copy_held, enter_ids, list_missing
from overspill.kernels.rows import take_rows
from overspill.linux.pages import resident_pages
from reading_graphs import DTYPES, random_rows, same_bytes, write_wide, zipf_batches

X = ("node", "x")


@pytest.fixture(autouse=True)
def file_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagedArray, "fits_cache", lambda _array: False)


def wide(path: Path, dtype: str = "uint8", shape: tuple[int, ...] = (64,)) -> Dataset:
    return write_wide(path, {"x": (dtype, random_rows(dtype, (3000, *shape)))}, 3000)


def cold(dataset: Dataset) -> Dataset:
    make_cold(dataset.path / "node.x")
    return dataset


def budget_for(rows: int, row_bytes: int = 64) -> int:
    return rows * (row_bytes + 8 + 16) + 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hot", [False, True])
def test_batches_equal_plain_indexing(
    tmp_path: Path, dtype: str, hot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PagedArray, "present_share", lambda _array, _ids: 0.0)
    dataset = wide(tmp_path / "ds", dtype, (3,))
    held = None
    if hot:
        counts = np.arange(3000) % 11
        held = HotRows.chosen_by_counts(dataset, [X], {"node": counts}, 30_000, shared=False)
    reader = RowReader(dataset, held)
    buffer = ReadingBuffer(reader, X, 1 << 20)
    whole = dataset.features("x")
    for seed in range(2):  # the buffer is used again
        lists = [*zipf_batches(3000, 5, 400, seed=seed), np.zeros(0, np.int64), np.array([4, 4])]
        reading = SharedReading(reader, X, lists, buffer=buffer)
        assert len(reading) == 7
        for i, ids in enumerate(lists):
            out = torch.empty((ids.size, 3), dtype=whole.dtype)
            reading.copy(i, out)
            assert same_bytes(out, whole[torch.from_numpy(ids)])
    stats = reader.counts.stats()
    assert stats.rows == 2 * 2002
    assert stats.hot_lookups == (2 * 2002 if hot else 0)
    assert (stats.hot_hits > 0) == hot


def test_a_file_that_the_cache_can_hold_is_read_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PagedArray, "fits_cache", lambda _array: True)
    reader = RowReader(wide(tmp_path / "ds"))
    make_cold(tmp_path / "ds" / "node.x")
    lists = [np.arange(0, 3000, 3), np.arange(0, 3000, 2)]
    reading = SharedReading(reader, X, lists, buffer=ReadingBuffer(reader, X, budget_for(2000)))
    for i, ids in enumerate(lists):
        out = torch.empty((ids.size, 64), dtype=torch.uint8)
        reading.copy(i, out)
        assert torch.equal(out, reader.dataset.features("x")[torch.from_numpy(ids)])
    mapping = reader.array(X).mapping
    assert resident_pages(mapping.address, mapping.nbytes).mean() > 0.9


def test_each_row_is_read_once_in_file_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = wide(tmp_path / "ds")
    reader, read = RowReader(dataset), []
    real = lookahead.read_in_order
    monkeypatch.setattr(
        lookahead,
        "read_in_order",
        lambda array, ids, out: (read.append(ids.copy()), real(array, ids, out)),
    )
    lists = zipf_batches(3000, 4, 500)
    cold(dataset)
    reading = SharedReading(reader, X, lists, buffer=ReadingBuffer(reader, X, 1 << 20))
    assert not read  # nothing before it is asked for
    for i in range(4):
        reading.copy(i, torch.empty((500, 64), dtype=torch.uint8))
    assert [ids.tolist() for ids in read] == [np.unique(np.concatenate(lists)).tolist()]


def test_batches_that_do_not_fit_together_are_read_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = wide(tmp_path / "ds")
    reader, read = RowReader(dataset), []
    real = lookahead.read_in_order
    monkeypatch.setattr(
        lookahead,
        "read_in_order",
        lambda array, ids, out: (read.append(ids.tolist()), real(array, ids, out)),
    )
    lists = [np.arange(0, 40), np.arange(30, 60), np.arange(100), np.arange(50, 90), np.arange(9)]
    buffer = ReadingBuffer(reader, X, budget_for(70))
    assert buffer.rows == 70
    monkeypatch.setattr(PagedArray, "present_share", lambda _array, _ids: 0.0)
    reading = SharedReading(reader, X, lists, buffer=buffer)
    for i in (0, 1, 2, 3, 4, 1):  # and a step back
        out = torch.empty((len(lists[i]), 64), dtype=torch.uint8)
        reading.copy(i, out)
        assert out.equal(dataset.features("x")[torch.from_numpy(lists[i])])
    # The third alone exceeds the buffer: it is gathered alone.
    assert read == [
        list(range(60)), [*range(9), *range(50, 90)], list(range(30, 60))
    ]  # fmt: skip


def test_rows_in_the_page_cache_are_copied_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = wide(tmp_path / "ds")
    (dataset.path / "node.x").read_bytes()
    monkeypatch.delattr(lookahead, "read_in_order")
    reader = RowReader(dataset)
    lists = zipf_batches(3000, 3, 500)
    reading = SharedReading(reader, X, lists, buffer=ReadingBuffer(reader, X, 1 << 20))
    for i, ids in enumerate(lists):
        out = torch.empty((500, 64), dtype=torch.uint8)
        reading.copy(i, out)
        assert out.equal(dataset.features("x")[torch.from_numpy(ids)])
    assert reader.counts.stats().rows == 1500


def test_the_buffer_takes_what_it_says(tmp_path: Path) -> None:
    reader = RowReader(wide(tmp_path / "ds"))
    for budget in (budget_for(1), budget_for(77) + 50, 1 << 30):
        buffer = ReadingBuffer(reader, X, budget)
        held = sum(part.nbytes for part in buffer.memory())
        assert held == buffer.nbytes <= budget
        assert buffer.rows == min((budget - 8) // 88, 3000)
    with pytest.raises(NoRoomError, match="no row"):
        ReadingBuffer(reader, X, budget_for(1) - 1)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    dataset = wide(tmp_path / "ds")
    reader = RowReader(dataset)
    buffer = ReadingBuffer(reader, X, 1 << 20)
    with pytest.raises(InputError, match="out of range"):
        SharedReading(reader, X, [np.array([0]), np.array([3000])], buffer=buffer)
    reading = SharedReading(reader, X, [np.array([0])], buffer=buffer)
    with pytest.raises(InputError, match="no batch 1 among 1"):
        reading.copy(1, torch.empty((1, 64), dtype=torch.uint8))
    with pytest.raises(InputError, match="out is"):
        reading.copy(0, torch.empty((2, 64), dtype=torch.uint8))
    (dataset.path / "node.x").unlink()
    with pytest.raises(StaleFileError):
        SharedReading(reader, X, [np.array([0])], buffer=buffer).copy(
            0, torch.empty((1, 64), dtype=torch.uint8)
        )


def signatures(kernels: Iterable[object]) -> list[int]:
    """How often each was compiled; nothing is with the compiler off."""
    return [len(getattr(kernel, "signatures", ())) for kernel in kernels]


def test_nothing_is_compiled_after_warming(tmp_path: Path) -> None:
    rows = {
        name: (dtype, random_rows(dtype, (50, 3)))
        for name, dtype in (("a", "uint8"), ("b", "int64"))
    }
    dataset = write_wide(tmp_path / "ds", rows, 50)
    keys = [("node", "a"), ("node", "b")]
    used = (collect_ids, copy_held, enter_ids, list_missing, take_rows)
    lookahead.warm_lookahead(dataset, keys)
    before = signatures(used)
    held = HotRows.chosen_by_counts(
        dataset, keys[:1], {"node": np.arange(50) % 3}, 900, shared=False
    )
    reader = RowReader(dataset, held)
    for key in keys:
        buffer = ReadingBuffer(reader, key, 1 << 20)
        out = torch.empty((9, 3), dtype=dataset.features(key[1]).dtype)
        SharedReading(reader, key, [np.arange(9)], buffer=buffer).copy(0, out)
    assert signatures(used) == before


IN_LITTLE_MEMORY = """
import sys, numpy as np, torch
import overspill as ov
from overspill.graph.paged import PagedArray
from overspill.graph.reading.lookahead import ReadingBuffer, SharedReading
from overspill.graph.reading.row_reader import RowReader
from overspill.linux.processes import process_memory

# As of a file of the size that this is for.
PagedArray.fits_cache = lambda _: False
PagedArray.present_share = lambda *_: 0.0
dataset, X = ov.open_dataset(sys.argv[1]), ("node", "x")
reader, rng = RowReader(dataset), np.random.default_rng(0)
tiny = ReadingBuffer(reader, X, 1 << 20)
out = torch.ones((20_000, 512), dtype=torch.uint8)
def read(buffer, size, seed):
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, 131072, size) for _ in range(6)]
    reading = SharedReading(reader, X, lists, buffer=buffer)
    for i, ids in enumerate(lists):
        reading.copy(i, out[:size])
        assert (out[:size, :8].contiguous().view(torch.int64).view(-1).numpy() == ids).all()
read(tiny, 1000, 0)
before = process_memory().anon_bytes
large = ReadingBuffer(reader, X, 24 << 20)
for seed in range(3):
    read(large, 20_000, seed)
print(process_memory().anon_bytes - before, large.nbytes)
"""


def test_no_more_memory_than_planned(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    rows = np.zeros((131072, 512), np.uint8)
    rows[:, :8] = np.arange(131072).view(np.uint8).reshape(-1, 8)
    dataset = write_wide(tmp_path / "ds", {"x": ("uint8", rows)}, 131072)
    make_cold(dataset.path / "node.x")
    found = run_python(IN_LITTLE_MEMORY, arguments=[dataset.path], limit_bytes=360 << 20).check()
    grown, planned = (int(part) for part in found.stdout.split())
    assert found.kills == 0
    # Beside the buffer: the ids of six batches, and the pages and pieces on their way.
    assert planned / 2 < grown <= planned + (6 * 20_000 * 8) + (40 << 20)


@pytest.mark.parametrize("changed", [2999, -7, 1 << 40])
@pytest.mark.parametrize("read_first", [False, True])
def test_ids_that_change_meanwhile_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int, read_first: bool
) -> None:
    monkeypatch.setattr(PagedArray, "present_share", lambda _array, _ids: 0.0)
    reader = RowReader(wide(tmp_path / "ds"))
    lists = [np.arange(500), np.arange(500)]
    reading = SharedReading(reader, X, lists, buffer=ReadingBuffer(reader, X, budget_for(500)))
    out = torch.empty((500, 64), dtype=torch.uint8)
    if read_first:
        reading.copy(0, out)
    lists[1][7:300] = changed
    if read_first or changed != 2999:  # else it is a row as good as another
        with pytest.raises(InputError, match="changed after"):
            reading.copy(1, out)
