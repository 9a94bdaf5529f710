"""What the loader refuses before anything starts, what it plans, and the habits it answers."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from overspill.errors import InputError, NoRoomError, SettingsError
from overspill.graph.construct import build_dataset
from overspill.graph.dataset import Dataset, open_dataset
from overspill.pyg import NeighborLoader
from overspill.pyg.arguments import chosen_context
from overspill.settings import settings
from overspill.tensors.headroom import held_memory_bytes
from small_graphs import compress, random_graph, write_graph


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_neighbors": []}, ["num_neighbors"]),
        ({"num_neighbors": 5}, ["num_neighbors", "5"]),
        ({"num_neighbors": [5, -2]}, ["hop 1", "-2"]),
        ({"input_nodes": [3, 400]}, ["400", "400 nodes", "position 1"]),
        ({"input_nodes": [-1]}, ["-1", "400 nodes"]),
        ({"features": ["x", "z"]}, ["'z'", "x, y"]),
        ({"batch_size": 0}, ["batch_size", "0"]),
        ({"collate_fn": list}, ["collate_fn"]),
        ({"shuffle": True, "sampler": range(3)}, ["shuffle", "sampler"]),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    random_graph(tmp_path)
    chosen: dict[str, Any] = {"num_neighbors": [2], **options}
    with pytest.raises(InputError) as caught:
        NeighborLoader(open_dataset(tmp_path), num_workers=2, **chosen)
    assert all(word in str(caught.value) for word in words)


def test_an_array_that_would_hide_a_part_of_the_batch_is_refused(tmp_path: Path) -> None:
    write_graph(tmp_path, *compress([], [], 3), {"n_id": np.arange(3), "x": np.ones(3)})
    ds = open_dataset(tmp_path)
    with pytest.raises(InputError, match="'n_id' would hide"):
        NeighborLoader(ds, [1])
    assert len(list(NeighborLoader(ds, [1], features=["x"]))) == 3


def test_prefetch_is_lowered_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random_graph(tmp_path, width=20_000)
    ds = open_dataset(tmp_path)
    options: dict[str, Any] = {"batch_size": 400, "num_workers": 2, "prefetch_factor": 8}
    roomy = NeighborLoader(ds, [3], **options)
    limit = roomy.plan.projected_bytes * 8 // 7  # an eighth is kept free
    with caplog.at_level(logging.WARNING, "overspill"):
        tight = NeighborLoader(ds, [3], memory_limit=limit - (300 << 20), **options)
    assert 1 <= tight.prefetch_factor < 8  # type: ignore[operator]
    assert [r for r in caplog.records if "prefetch_factor lowered from 8" in r.message]
    assert len(caplog.records) == 1
    assert tight.plan.projected_bytes <= tight.plan.allowed_bytes <= limit


def test_no_room_is_told_before_workers_start(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    # Room for the batches, an eighth kept free, and none for two more processes.
    limit = (held_memory_bytes() + (64 << 20)) * 8 // 7
    with pytest.raises(NoRoomError, match=r"batch_size.*num_workers=0"):
        NeighborLoader(ds, [3], num_workers=2, memory_limit=limit)
    with settings(memory_limit_bytes="64MiB"), pytest.raises(NoRoomError, match="a limit of"):
        NeighborLoader(ds, [3])
    with pytest.raises(SettingsError, match="memory_limit='lots'"):
        NeighborLoader(ds, [3], memory_limit="lots")


def test_all_neighbours_are_planned_by_measure_where_the_graph_does_not_fit(
    tmp_path: Path,
) -> None:
    # Separate pairs: the bound of a batch is the whole graph, the batches are small.
    odd = np.arange(1, 60_000, 2)
    arrays = {"x": np.zeros((60_000, 2_000), np.uint8)}
    write_graph(tmp_path, *compress(odd, odd - 1, 60_000), arrays)
    ds = open_dataset(tmp_path)
    whole = NeighborLoader(ds, [-1], batch_size=4)
    assert whole.plan.nodes == 30_004 and whole.plan.edges == 30_000
    limit = whole.plan.projected_bytes - (64 << 20)
    loader = NeighborLoader(ds, [-1], batch_size=4, memory_limit=limit * 8 // 7)
    assert loader.plan.nodes == 7 and loader.plan.edges == 3
    assert max(batch.num_nodes for batch, _ in zip(loader, range(50), strict=False)) == 4


def test_a_list_of_seeds_that_is_overwritten_later_is_an_error_not_a_crash(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ids = torch.arange(50)
    loader = NeighborLoader(open_dataset(tmp_path), [3], batch_size=10, input_nodes=ids)
    ids[25] = 10**9
    with pytest.raises(InputError, match="1000000000"):
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"data": "ds"}, "wants an opened dataset, not str.*open_dataset"),
        ({"data": Data()}, "wants an opened dataset, not Data"),
        ({"dataset": Data()}, "makes its own dataset"),
        ({"num_workers": "2"}, "num_workers='2' is not a number of processes"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"transform": 3}, "transform=3 cannot be called"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor=0"),
        ({"filter_per_worker": False}, "has no filter_per_worker=False.*always gathered"),
        ({"directed": False}, 'has no directed=False.*subgraph_type="induced"'),
        ({"neighbor_sampler": object()}, "no argument 'neighbor_sampler'.*NodeLoader"),
        ({"custom_cls": Data}, "no argument 'custom_cls'"),
        ({"transform_sampler_output": 3}, "transform_sampler_output=3 cannot be called"),
        ({"hot_rows": "lots"}, "hot_rows='lots' is not a size"),
        ({"pack": "d", "sampler": range(3)}, "a fixed set of batches"),
        ({"input_nodes": "paper"}, "'paper', which there is not.*pass the ids alone"),
        ({"input_nodes": ("paper", torch.arange(3))}, "pass the ids alone"),
        ({"input_nodes": [1.7]}, "whole numbers, not float64"),
        ({"input_nodes": [[1], [2, 3]]}, "ids cannot be read"),
        ({"input_nodes": [True, False]}, r"mask of input nodes has shape \(2,\) for 400 nodes"),
        ({"input_nodes": np.zeros(3, bool)}, r"mask of input nodes has shape \(3,\)"),
    ],
)
def test_habits_from_elsewhere_are_answered(
    tmp_path: Path, arguments: dict[str, Any], told: str
) -> None:
    random_graph(tmp_path)
    options = {"data": open_dataset(tmp_path), "num_neighbors": [2], **arguments}
    with pytest.raises((InputError, SettingsError), match=told):
        NeighborLoader(**options)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_masks_of_any_kind_are_masks(tmp_path: Path, kind: Callable[..., Any]) -> None:
    random_graph(tmp_path)
    mask = [node in (3, 7) for node in range(400)]
    (batch,) = NeighborLoader(open_dataset(tmp_path), [0], batch_size=9, input_nodes=kind(mask))
    assert batch.n_id.tolist() == batch.input_id.tolist() == [3, 7]


def test_a_process_that_outgrew_the_limit_is_told_to_raise_it(tmp_path: Path) -> None:
    random_graph(tmp_path)
    with pytest.raises(NoRoomError) as caught:
        NeighborLoader(open_dataset(tmp_path), [5], memory_limit="10MiB")
    assert (caught.value.remedy or "").startswith("a limit of ")


def test_a_dataset_without_csc_is_refused(tmp_path: Path) -> None:
    edges = torch.randint(0, 9, (2, 40))
    rows = build_dataset(tmp_path / "r", edges=edges, num_nodes=9, layout="csr")
    with pytest.raises(InputError, match=r"layout csc; .* has csr.*layout="):
        NeighborLoader(rows, [2])


class Elsewhere(Dataset):
    """A dataset that, as one of other machines, no forked child could read."""

    survives_fork = False


@pytest.mark.parametrize(
    ("given", "workers", "chosen"),
    [
        (None, 1, "spawn"),
        (None, 0, None),
        ("spawn", 1, "spawn"),
        ("forkserver", 1, "forkserver"),
        ("fork", 0, "fork"),
    ],
)
def test_workers_are_spawned_where_a_fork_would_not_do(
    tmp_path: Path, given: str | None, workers: int, chosen: str | None
) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    assert chosen_context(given, ds, workers) == given
    assert chosen_context(given, Elsewhere(ds.path, ds.manifest), workers) == chosen


@pytest.mark.parametrize("given", ["fork", multiprocessing.get_context("fork")])
def test_a_fork_that_would_not_do_is_refused(tmp_path: Path, given: Any) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    with pytest.raises(InputError, match="does not survive a fork") as caught:
        NeighborLoader(
            Elsewhere(ds.path, ds.manifest), [2], num_workers=1, multiprocessing_context=given
        )
    assert "spawn" in str(caught.value)
