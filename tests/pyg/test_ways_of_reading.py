"""Hot rows, reading together and packing: the same batches, read otherwise."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loaded_batches import BUYS, all_listed, club, listed, market, stop_workers
from overspill.errors import FormatError, InputError, StaleFileError
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.reading.hot_rows import HotRows
from overspill.pyg import LinkNeighborLoader, NeighborLoader
from overspill.pyg import batches as batches_module

OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}


def unchanged(out: Any) -> Any:
    return out


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    market(tmp_path / "market")
    return open_dataset(tmp_path / "market")


def users(ds: Dataset, **options: Any) -> NeighborLoader:
    return NeighborLoader(ds, [3, 2], "user", **OPTIONS, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_hot_rows_change_no_batch(ds: Dataset, num_workers: int) -> None:
    expected = all_listed(users(ds))
    loader = users(ds, hot_rows="2KiB", num_workers=num_workers)
    assert all_listed(loader) == expected
    stats = loader.stats()
    assert 0 < stats.hot_hits < stats.hot_lookups and 0 < stats.hot_rate < 1
    stop_workers(loader)


def test_hot_rows_can_be_chosen_by_a_first_pass(ds: Dataset) -> None:
    loader = users(ds)
    uses = loader.count_uses()
    found = {type: np.zeros(ds.node_record(type).count, int) for type in ds.node_types}
    edges = np.zeros(300, int)
    for batch in loader:
        for type, counts in found.items():
            counts += np.bincount(batch[type].n_id, minlength=counts.size)
        edges += np.bincount(batch[BUYS].e_id, minlength=300)
    for type, counts in found.items():
        assert uses[type].tolist() == counts.tolist()
    assert uses[BUYS].tolist() == edges.tolist()
    few = users(ds).count_uses(batches=2)
    assert 16 <= int(few["user"].sum()) < int(uses["user"].sum())
    keys = [("user", "x"), (BUYS, "w")]
    hot = HotRows.chosen_by_counts(ds, keys, uses, 4096, shared=False)
    hotter = users(ds, hot_rows=hot)
    loader.set_epoch(0)
    assert all_listed(hotter) == all_listed(loader)
    assert hotter.stats().hot_hits > 0


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("lookahead", [2, 3, 50])
def test_batches_read_together_are_the_same(ds: Dataset, num_workers: int, lookahead: int) -> None:
    alone = users(ds)
    loader = users(ds, lookahead=lookahead, num_workers=num_workers)
    for _ in range(2):
        assert all_listed(loader) == all_listed(alone)
    stop_workers(loader)


def test_batches_read_together_share_their_reads(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    made = batches_module.BatchGroup

    class Counted(made):
        def take(self, request: Any) -> Any:
            taken.append(request.index)
            return super().take(request)

    monkeypatch.setattr(batches_module, "BatchGroup", Counted)
    loader = users(ds, lookahead=4)
    assert len(list(loader)) == 9 and taken == list(range(9))
    assert loader.dataset._bench._group is None  # type: ignore[attr-defined] # the last is gone
    assert users(ds, lookahead=4).plan.projected_bytes > users(ds).plan.projected_bytes


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"prefetch_batches": 2}])
def test_a_batch_that_is_asked_for_out_of_turn_is_made_alone(
    ds: Dataset, options: dict[str, Any]
) -> None:
    expected = all_listed(users(ds))
    loader = users(ds, lookahead=3, **options)
    first, second = iter(loader), iter(loader)  # the second takes the worker's place in turn
    loader.set_epoch(0)
    third = iter(loader)
    found = [[], []]
    for _ in range(len(loader)):
        found[0].append(next(first))
        next(second)
        found[1].append(next(third))
    assert all_listed(found[0]) == all_listed(found[1]) == expected
    del first, second, third
    stop_workers(loader)


def test_another_samplers_batches_are_not_taken_from_the_group(ds: Dataset) -> None:
    class Walk(torch.utils.data.Sampler[int]):
        start = 0

        def __len__(self) -> int:
            return 32

        def __iter__(self) -> Any:
            self.start += 5
            return iter(range(self.start, self.start + 32))

    options = {"batch_size": 8, "seed": 3, "lookahead": 4}
    loader = NeighborLoader(ds, [3], "user", sampler=Walk(), **options)
    one = iter(loader)
    next(one)
    loader.set_epoch(0)
    other = iter(loader)
    assert next(other)["user"].input_id.tolist() == list(range(10, 18))
    assert next(one)["user"].input_id.tolist() == list(range(13, 21))


def test_lookahead_goes_with_links_and_hot_rows(ds: Dataset) -> None:
    options: dict[str, Any] = {"neg_sampling": "triplet", "batch_size": 40, "seed": 1}
    expected = all_listed(LinkNeighborLoader(ds, [3], BUYS, **options))
    loader = LinkNeighborLoader(ds, [3], BUYS, lookahead=3, hot_rows="2KiB", **options)
    assert all_listed(loader) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pack_holds_the_first_epochs_batches(
    tmp_path: Path, ds: Dataset, num_workers: int
) -> None:
    expected = all_listed(users(ds))
    loader = users(ds, pack=tmp_path / "pack", num_workers=num_workers)
    for _ in range(2):
        assert all_listed(loader) == expected
    stop_workers(loader)
    again = users(ds, pack=str(tmp_path / "pack"))
    assert all_listed(again) == expected
    assert again.stats().rows > 0


@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
def test_links_are_packed_with_their_labels(tmp_path: Path, mode: str | None) -> None:
    club(tmp_path / "club")
    ds = open_dataset(tmp_path / "club")
    options: dict[str, Any] = {"neg_sampling": mode, "batch_size": 150, "seed": 1}
    expected = all_listed(LinkNeighborLoader(ds, [3], **options))
    loader = LinkNeighborLoader(ds, [3], pack=tmp_path / "pack", **options)
    assert all_listed(loader) == all_listed(loader) == expected


def test_trees_and_times_are_packed(tmp_path: Path, ds: Dataset) -> None:
    options: dict[str, Any] = {"input_time": torch.full((70,), 20), "time_attr": "t", **OPTIONS}
    expected = all_listed(NeighborLoader(ds, [3], "user", **options))
    loader = NeighborLoader(ds, [3], "user", pack=tmp_path / "pack", **options)
    assert all_listed(loader) == expected


def test_a_pack_of_other_batches_is_refused(tmp_path: Path, ds: Dataset) -> None:
    loader = users(ds, pack=tmp_path / "pack")
    next(iter(loader))
    for other in (
        NeighborLoader(ds, [3, 3], "user", pack=tmp_path / "pack", **OPTIONS),
        NeighborLoader(ds, [3, 2], ("user", [1, 2]), pack=tmp_path / "pack", **OPTIONS),
        NeighborLoader(ds, [3, 2], "user", pack=tmp_path / "pack", **{**OPTIONS, "seed": 4}),
        users(ds, pack=tmp_path / "pack", features=[]),
        users(ds, pack=tmp_path / "pack", transform_sampler_output=unchanged),
    ):
        with pytest.raises(InputError, match="made otherwise"):
            next(iter(other))
    with pytest.raises(InputError, match="edges that go both ways between types"):
        users(ds, pack=tmp_path / "pack", subgraph_type="bidirectional")


def test_without_a_seed_a_pack_tells_its_own(tmp_path: Path, ds: Dataset) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "pack": tmp_path / "pack"}
    first = NeighborLoader(ds, [3, 2], "user", **options)
    expected = all_listed(first)
    again = NeighborLoader(ds, [3, 2], "user", **options)
    assert again.seed == first.seed and all_listed(again) == expected
    with pytest.raises(InputError, match="made otherwise: seed "):
        next(iter(NeighborLoader(ds, [3, 2], "user", seed=first.seed + 1, **options)))


def test_a_pack_of_other_batches_tells_what_differs_and_no_hash(
    tmp_path: Path, ds: Dataset
) -> None:
    next(iter(users(ds, pack=tmp_path / "pack")))
    other = NeighborLoader(
        ds, [3, 2], ("user", [1, 2]), replace=True, pack=tmp_path / "pack", **OPTIONS
    )
    with pytest.raises(InputError) as caught:
        next(iter(other))
    told = str(caught.value)
    assert "other inputs; replace 'False', not 'True'" in told and "num_neighbors" not in told


class Dropping:
    def __call__(self, out: Any) -> Any:
        return out

    def method(self, out: Any) -> Any:
        return out


@pytest.mark.parametrize(
    "nameless",
    [lambda out: out, partial(unchanged), Dropping(), Dropping().method],
    ids=["lambda", "partial", "object", "method"],
)
def test_a_pack_wants_a_function_with_a_name_of_its_own(
    tmp_path: Path, ds: Dataset, nameless: Any
) -> None:
    with pytest.raises(InputError, match=r"recognised by the name.*top level"):
        users(ds, pack=tmp_path / "pack", transform_sampler_output=nameless)
    users(ds, transform_sampler_output=nameless)
    loader = users(ds, pack=tmp_path / "pack", transform_sampler_output=unchanged)
    assert all_listed(loader) == all_listed(users(ds))


def test_batches_made_before_the_first_pass_do_not_keep_the_pack_from_being_read(
    tmp_path: Path, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    made = batches_module.unpacked
    monkeypatch.setattr(
        batches_module, "unpacked", lambda pack, i, *rest: read.append(i) or made(pack, i, *rest)
    )
    loader = users(ds, pack=tmp_path / "pack")
    alone = listed(loader([0, 1]))
    assert all_listed(loader) == all_listed(users(ds)) and read == list(range(9))
    for epoch in (0, 1):  # some inputs are no batch of the pack, whatever the epoch
        loader.set_epoch(epoch)
        assert loader([0, 1])["user"].input_id.tolist() == [0, 1]
    loader.set_epoch(0)
    assert listed(loader([0, 1])) == alone and read == list(range(9))
    assert all_listed(loader) == all_listed(users(ds))


def test_a_pack_of_no_batch_has_none(tmp_path: Path) -> None:
    club(tmp_path / "club")
    ds, nobody = open_dataset(tmp_path / "club"), torch.empty(0, dtype=torch.int64)
    for _ in range(2):
        loader = NeighborLoader(ds, [3], nobody, seed=1, pack=tmp_path / "pack")
        assert [*loader] == [*loader] == []


def test_ids_of_a_damaged_pack_are_refused(tmp_path: Path, ds: Dataset) -> None:
    list(users(ds, pack=tmp_path / "pack"))
    damaged = 0
    for path in sorted((tmp_path / "pack" / "parts").iterdir()):
        before = path.read_bytes()
        if len(before) <= 4096 + 8:
            continue
        path.write_bytes(before[:-8] + (2**62).to_bytes(8, "little"))
        try:
            list(users(ds, pack=tmp_path / "pack"))
        except FormatError as error:
            assert "outside 0 .." in str(error) and "Pack.verify()" in str(error)
            damaged += 1
        path.write_bytes(before)
    assert damaged >= 6  # nodes of types, rows, columns and places of an edge type at least


def test_a_pack_is_closed_with_the_last_that_reads_it(tmp_path: Path, ds: Dataset) -> None:
    batches = iter(users(ds, pack=tmp_path / "pack"))  # which outlives its loader
    next(batches)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert len(list(batches)) == 8
    del batches
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) < before


def test_a_pack_that_was_cut_is_an_error(tmp_path: Path, ds: Dataset) -> None:
    loader = users(ds, pack=tmp_path / "pack")
    batches = iter(loader)
    next(batches)
    for path in (tmp_path / "pack" / "rows").iterdir():
        with path.open("r+b") as file:
            file.truncate(4096)
    with pytest.raises(StaleFileError):
        list(batches)


def test_what_was_done_is_counted(ds: Dataset) -> None:
    loader = users(ds, num_workers=1)
    batches = list(loader)
    stats = loader.stats()
    rows = sum(len(batch[type].x) for batch in batches for type in ("user", "item")) + sum(
        sum(len(batch[key][name]) for name in batch[key].to_dict() if name in ("w", "a", "t"))
        for batch in batches
        for key in batch.edge_types
    )
    assert stats.batches == len(batches) and stats.rows == rows
    assert stats.bytes_asked > 4 * rows and stats.rows_per_s > 0
    assert 0 < stats.waited_s <= stats.elapsed_s
    stop_workers(loader)
