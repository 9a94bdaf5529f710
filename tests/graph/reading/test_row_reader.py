"""Rows gathered through a reader against plain indexing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overspill.errors import InputError, StaleFileError
from overspill.graph.paged import PagedArray
from overspill.graph.reading.counters import SlotCounts
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.row_reader import RowReader
from overspill.linux.cache import drop_cache
from overspill.linux.pages import resident_pages
from reading_graphs import BUYS, DTYPES, random_rows, same_bytes, write_market, write_wide

IDS = [0, 49, 7, 7, 7, 12, 49, 3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (1500,), (0,)], ids=str)
@pytest.mark.parametrize("hot", [False, True])
def test_rows_equal_plain_indexing(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], hot: bool
) -> None:
    rows = random_rows(dtype, (50, *shape))
    dataset = write_wide(tmp_path / "ds", {"x": (dtype, rows)}, 50)
    counts = np.arange(50)[::-1] % 7  # some rows are never used
    held = (
        HotRows.chosen_by_counts(dataset, [("node", "x")], {"node": counts}, 1 << 20, shared=False)
        if hot
        else None
    )
    whole = dataset.features("x")
    reader = RowReader(dataset, held)
    for ids in (IDS, [], [5] * 600, list(range(50))):
        out = torch.zeros((len(ids), *shape), dtype=whole.dtype)
        drop_cache(dataset.path / "node.x")
        reader.gather(("node", "x"), ids, out=out)
        assert same_bytes(out, whole[torch.tensor(ids, dtype=torch.int64)])


def test_rows_of_every_type_and_of_edges_by_place(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    counts = SlotCounts()
    reader = RowReader(dataset, counts=counts)
    out = torch.empty((3, 3))
    reader.gather(("item", "x"), np.array([5, 5, 199]), out=out)
    assert out.equal(dataset.features("x", "item")[[5, 5, 199]])
    weights = torch.empty(2)
    reader.gather((BUYS, "w"), torch.tensor([1999, 0]), out=weights)
    assert weights.equal(dataset.edge_features("w", BUYS)[[1999, 0]])
    stats = counts.stats()
    assert (stats.rows, stats.bytes_asked) == (5, 3 * 12 + 2 * 4)


def test_an_array_that_the_cache_holds_is_read_whole_in_the_end(tmp_path: Path) -> None:
    rows = random_rows("uint8", (8 * 8192, 512))
    dataset = write_wide(tmp_path / "ds", {"x": ("uint8", rows)}, len(rows))
    reader, key = RowReader(dataset), ("node", "x")
    array = reader.array(key)
    assert isinstance(array, PagedArray) and array.fits_cache()
    drop_cache(dataset.path / "node.x")
    for start in (0, 1024, 2048, 7168):  # pages; half of them, the last ones last
        ids = np.arange(start, start + 1024) * 8
        out = torch.zeros((1024, 512), dtype=torch.uint8)
        reader.gather(key, ids, out=out)
        assert same_bytes(out, torch.from_numpy(rows[ids]))
    assert resident_pages(array.mapping.address, array.mapping.nbytes).mean() > 0.9


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_threads_copy_as_torch_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    dataset = write_market(tmp_path / "ds")
    told: list[int | None] = []
    take = PagedArray.take

    def recorded(array: PagedArray, *arguments: Any, **options: Any) -> None:
        told.append(options.get("threads"))
        take(array, *arguments, **options)

    monkeypatch.setattr(PagedArray, "take", recorded)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    RowReader(dataset).gather(("item", "x"), [5], out=torch.empty((1, 3)))
    dataset.gather("x", [5], "item")
    assert told == [threads, threads]


@pytest.mark.parametrize(
    ("key", "ids", "told"),
    [
        (("item", "x"), [0, 200, -1], "2 of 3 ids of node type 'item' are out of range"),
        ((BUYS, "w"), [2000], "1 of 1 places of edges .* there are 2000 edges"),
        (("item", "z"), [0], "node type 'item' has no array 'z'"),
        ((BUYS, "z"), [0], "edge type .* has no array 'z'"),
        (("shop", "x"), [0], "no node type 'shop'"),
        (("item", "x"), [0, 1], "out is torch.float32"),
    ],
)
def test_what_is_not_there_is_refused(
    tmp_path: Path, key: tuple[str, str], ids: list[int], told: str
) -> None:
    reader = RowReader(write_market(tmp_path / "ds"))
    with pytest.raises(InputError, match=told):
        reader.gather(key, ids, out=torch.zeros(len(ids), 4))


def test_files_that_changed_are_noticed(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    reader, out = RowReader(dataset), torch.empty((1, 3))
    reader.check_unchanged()
    reader.gather(("item", "x"), [0], out=out)
    reader.check_unchanged()
    path = dataset.path / "item.x"
    path.rename(dataset.path / "kept")
    path.write_bytes((dataset.path / "kept").read_bytes())
    with pytest.raises(StaleFileError):
        reader.check_unchanged()
    with pytest.raises(StaleFileError):
        reader.gather(("item", "x"), [0], out=out)
