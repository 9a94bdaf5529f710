from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import overspill as ov
from confined import make_cold
from loaded_batches import market
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.paged import BLOCK_ITEMS
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.row_reader import RowReader
from overspill.graph.warm import warm_reading
from overspill.pyg import NeighborLoader, projection
from overspill.tensors import headroom
from small_graphs import compress, write_graph

GIB = 1 << 30


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 TiB of memory, nothing reserved by the environment."""
    monkeypatch.setattr(headroom, "binding_memory_group", lambda: None)
    monkeypatch.setattr(headroom, "physical_memory_bytes", lambda: 1024 * GIB)
    monkeypatch.setattr(projection, "available_memory_bytes", lambda: 1024 * GIB)
    for name in (
        "OVERSPILL_RANDOM_ACCESS_RESERVE_BYTES",
        "GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES",
    ):
        monkeypatch.delenv(name, raising=False)


def test_the_reserve_is_an_eighth_of_the_limit_and_at_most_16_gib() -> None:
    assert projection.measure_room("64GiB").reserve_bytes == 8 * GIB
    assert projection.measure_room(None).reserve_bytes == 16 * GIB


@pytest.mark.parametrize("reserve", [0, 20 * GIB])
def test_a_reserve_that_is_asked_for_is_kept_as_it_is(reserve: int) -> None:
    with ov.settings(random_access_reserve_bytes=reserve):
        assert projection.measure_room(None).reserve_bytes == reserve


def test_so_is_gigls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES", str(20 * GIB))
    assert projection.measure_room("64GiB").reserve_bytes == 20 * GIB


KEY = ("node", "x")


@pytest.fixture
def scattered(tmp_path: Path) -> Dataset:
    """Half as many rows again as a block, of 8 bytes."""
    count = BLOCK_ITEMS * 3 // 2
    write_graph(tmp_path / "g", *compress([0], [1], count), {"x": np.arange(count)})
    return open_dataset(tmp_path / "g")


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("cold", [False, True])
def test_what_a_large_gather_takes_is_projected(scattered: Dataset, hot: bool, cold: bool) -> None:
    count = scattered.node_record().count
    rows = HotRows.chosen_by_counts(
        scattered, [KEY], {"node": np.ones(count, np.int64)}, 1 << 16, shared=False
    )
    loader = NeighborLoader(scattered, [1], seed=1)
    recipe = replace(loader.dataset.recipe, hot=rows if hot else None)  # type: ignore[attr-defined]
    cost = projection.reading_cost(recipe, scans=False)
    reader = RowReader(scattered, recipe.hot)
    ids, out = torch.randperm(count), torch.empty(count, dtype=torch.int64)
    warm_reading()
    if cold:
        make_cold(scattered.path / "node.x")
    tracemalloc.start()
    try:
        reader.gather(KEY, ids, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert torch.equal(out, ids)
    assert peak <= cost.most_bytes(count)
    if cold:  # and no more than it has to be
        assert cost.most_bytes(count) < 2 * peak


def test_what_each_option_reads_is_projected(tmp_path: Path) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    loader = NeighborLoader(ds, [2], "user", features=[], edge_features=[])
    recipe = loader.dataset.recipe  # type: ignore[attr-defined]
    bare = projection.reading_cost(recipe, scans=False)
    assert bare.block_items == BLOCK_ITEMS and bare.id_bytes == 0
    assert projection.reading_cost(recipe, scans=True).fixed_bytes == bare.fixed_bytes + (24 << 20)
    whole = projection._mapped_bytes(NeighborLoader(ds, [2], "user").dataset.recipe)  # type: ignore[attr-defined]
    rows = sum(ds.node_record(type).arrays["x"].nbytes for type in ("user", "item"))
    assert whole >= projection._mapped_bytes(recipe) + rows
    timed = replace(recipe, spec=replace(recipe.spec, weight="w", time="t"))
    assert projection._mapped_bytes(timed) > projection._mapped_bytes(recipe)
