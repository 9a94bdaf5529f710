from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from confined import PythonResult, make_cold
from loaded_batches import stop_workers
from overspill.errors import StaleFileError
from overspill.graph.dataset import open_dataset
from overspill.linux.cache import cached_bytes
from overspill.pyg import NeighborLoader
from small_graphs import SmallGraph, compress, full_neighborhood, random_graph, write_graph


def assert_whole(graph: SmallGraph, batch: Data, hops: int) -> None:
    expected = full_neighborhood(graph, batch.n_id[: batch.batch_size].tolist(), hops)
    assert batch.n_id.tolist() == expected.nodes
    assert batch.edge_index.tolist() == [list(row) for row in zip(*expected.edges, strict=True)]
    assert batch.num_sampled_nodes == expected.nodes_per_hop
    assert batch.num_sampled_edges == expected.edges_per_hop
    assert_rows(graph, batch)


def assert_rows(graph: SmallGraph, batch: Data) -> None:
    assert batch.num_nodes == len(batch.n_id)
    for name, values in graph.arrays.items():
        np.testing.assert_array_equal(batch[name], values[batch.n_id])


def as_lists(batches: Any) -> list[dict[str, Any]]:
    return [
        {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in b.to_dict().items()}
        for b in batches
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_neighbours_equal_pygs_semantics(tmp_path: Path, num_workers: int) -> None:
    graph = random_graph(tmp_path)
    loader = NeighborLoader(
        open_dataset(tmp_path), [-1, -1], batch_size=32, num_workers=num_workers
    )
    batches = list(loader)
    assert len(batches) == len(loader) == 13 and len(loader.dataset) == 400  # type: ignore[arg-type]
    for batch in batches:
        assert_whole(graph, batch, 2)
        assert batch.edge_index.dtype == batch.n_id.dtype == torch.int64
        assert batch.input_id.tolist() == batch.n_id[: batch.batch_size].tolist()
        assert "batch" not in batch
        sources, targets = batch.n_id[batch.edge_index].numpy()
        np.testing.assert_array_equal(graph.indices[batch.e_id], sources)
        found = np.searchsorted(graph.indptr, batch.e_id.numpy(), side="right") - 1
        np.testing.assert_array_equal(found, targets)
    assert batches[-1].batch_size == 400 - 12 * 32


def test_finite_fan_outs_bound_degrees_and_choose_real_edges(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    for batch in NeighborLoader(open_dataset(tmp_path), [3, 2], batch_size=50, shuffle=True):
        assert_rows(graph, batch)
        nodes = batch.n_id.tolist()
        sources, columns = batch.edge_index.tolist()
        for source, column in zip(sources, columns, strict=True):
            assert nodes[source] in graph.in_neighbors(nodes[column])
        assert max(np.bincount(columns[: batch.num_sampled_edges[0]])) <= 3
        assert sum(batch.num_sampled_edges) == len(sources)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_do_not_depend_on_the_workers(tmp_path: Path, method: str) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    options = {"batch_size": 37, "shuffle": True, "seed": 5}
    alone = NeighborLoader(ds, [4, 3], **options)
    expected = [as_lists(alone), as_lists(alone)]
    assert expected[0] != expected[1]
    for workers in (1, 2) if method == "fork" else (2,):
        loader = NeighborLoader(
            ds, [4, 3], num_workers=workers, multiprocessing_context=method, **options
        )
        assert as_lists(loader) == expected[0]
        if method == "fork":
            assert as_lists(loader) == expected[1]
        stop_workers(loader)


def test_a_workers_batch_is_in_shared_memory(tmp_path: Path) -> None:
    random_graph(tmp_path)
    loader = NeighborLoader(open_dataset(tmp_path), [4], batch_size=100, num_workers=1)
    for batch in loader:
        assert all(batch[name].is_shared() for name in ("x", "y", "n_id", "edge_index"))


def test_persistent_workers_go_through_the_epochs(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    alone = NeighborLoader(ds, [3], batch_size=64, shuffle=True, seed=1)
    loader = NeighborLoader(
        ds, [3], batch_size=64, shuffle=True, seed=1, num_workers=1, persistent_workers=True
    )
    for _ in range(3):
        assert as_lists(loader) == as_lists(alone)
    stop_workers(loader)


def test_an_epoch_can_be_repeated(tmp_path: Path) -> None:
    random_graph(tmp_path)
    loader = NeighborLoader(open_dataset(tmp_path), [3], batch_size=64, shuffle=True, seed=1)
    first, second = as_lists(loader), as_lists(loader)
    loader.set_epoch(0)
    assert as_lists(loader) == first != second


def test_without_a_seed_torchs_generator_decides(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    torch.manual_seed(3)
    first = as_lists(NeighborLoader(ds, [2], batch_size=200))
    other = as_lists(NeighborLoader(ds, [2], batch_size=200))
    torch.manual_seed(3)
    assert as_lists(NeighborLoader(ds, [2], batch_size=200)) == first != other


@pytest.mark.parametrize(("names", "held"), [(["y"], ["y"]), ([], []), (None, ["x", "y"])])
def test_features_are_chosen_by_name(
    tmp_path: Path, names: list[str] | None, held: list[str]
) -> None:
    random_graph(tmp_path)
    (batch,) = NeighborLoader(open_dataset(tmp_path), [2], batch_size=400, features=names)
    assert [name for name in ("x", "y") if name in batch] == held
    assert batch.num_nodes == 400


def test_the_transform_runs_on_every_batch(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    counts = list(NeighborLoader(ds, [2], batch_size=100, transform=lambda batch: batch.num_nodes))
    assert counts == [batch.num_nodes for batch in NeighborLoader(ds, [400], batch_size=100)] or (
        len(counts) == 4 and all(count >= 100 for count in counts)
    )


def test_repeated_seeds_and_seeds_without_neighbours(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    (batch,) = NeighborLoader(
        open_dataset(tmp_path), [-1, -1], batch_size=8, input_nodes=[399, 7, 7, 398]
    )
    assert batch.n_id[:4].tolist() == [399, 7, 7, 398] and batch.batch_size == 4
    assert_whole(graph, batch, 2)


def test_no_seeds_and_no_nodes_give_no_batches(tmp_path: Path) -> None:
    random_graph(tmp_path / "graph")
    write_graph(tmp_path / "empty", *compress([], [], 0), {"x": np.zeros((0, 4), np.float32)})
    assert list(NeighborLoader(open_dataset(tmp_path / "graph"), [2], input_nodes=[])) == []
    assert list(NeighborLoader(open_dataset(tmp_path / "empty"), [2])) == []


def test_making_a_loader_touches_no_feature_page(tmp_path: Path) -> None:
    random_graph(tmp_path, num_nodes=20_000, width=128)
    make_cold(tmp_path / "node.x")
    NeighborLoader(open_dataset(tmp_path), [3, 3], batch_size=64, num_workers=2)
    assert cached_bytes(tmp_path / "node.x") <= 256 << 10


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name", ["node.x", "indices"])
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_file_that_changes_between_batches_is_an_error_and_no_signal(
    tmp_path: Path, num_workers: int, name: str, damage: str
) -> None:
    random_graph(tmp_path, num_nodes=4000, width=64)

    def damage_after_third(batch: Data) -> Data:
        # Where batches are made, so that it falls between two of them.
        if 40 in batch.input_id.tolist():
            if damage == "cut":
                os.truncate(tmp_path / name, 4096)
            else:
                (tmp_path / name).unlink()
        return batch

    loader = NeighborLoader(
        open_dataset(tmp_path),
        [2],
        batch_size=16,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
        transform=damage_after_third,
    )
    batches = iter(loader)
    assert len([next(batches) for _ in range(3)]) == 3
    with pytest.raises(StaleFileError, match=name):
        next(batches)
    stop_workers(loader, batches)


KILLED = """
import os, signal, sys
from overspill.graph.dataset import open_dataset
from overspill.pyg import NeighborLoader

def die_at_last(batch):
    # Here, and not at any moment: torch unlinks a segment's name only just after making it.
    if 49_000 in batch.input_id.tolist():
        os.kill(os.getpid(), signal.SIGKILL)
    return batch

if __name__ == "__main__":
    loader = NeighborLoader(
        open_dataset(sys.argv[1]), [2], batch_size=1000, num_workers=2, transform=die_at_last
    )
    try:
        try:
            for batch in loader:
                pass
            print("finished")
        finally:
            # torch's handler would raise again, whatever runs when the next worker ends.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except RuntimeError as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        print("raised", error)
"""


def test_a_killed_worker_is_an_error_in_the_parent(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    # In a process of its own: torch raises from a signal handler, in the middle of anything.
    random_graph(tmp_path / "graph", num_nodes=50_000)
    result = run_python(KILLED, arguments=[tmp_path / "graph"], timeout_s=60).check()
    assert result.stdout.startswith("raised DataLoader worker (pid")


def test_what_a_worker_is_sent_is_small(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    loader = NeighborLoader(ds, [2], batch_size=100, input_nodes=torch.arange(400))
    next(iter(loader))
    assert len(pickle.dumps(loader.dataset)) < 4096


def test_it_prints_on_one_line(tmp_path: Path) -> None:
    random_graph(tmp_path)
    assert repr(NeighborLoader(open_dataset(tmp_path), [2])) == "NeighborLoader()"


def test_threads_share_a_loader_without_workers(tmp_path: Path) -> None:
    random_graph(tmp_path)
    loader = NeighborLoader(open_dataset(tmp_path), [6, 6], batch_size=40, seed=1)
    expected = [batch.n_id.tolist() for batch in loader]

    def collect(_: int) -> list[list[int]]:
        found = []
        for _ in range(20):
            loader.set_epoch(0)
            batches = [batch.n_id for batch in loader]
            assert all(nodes.unique().numel() == nodes.numel() for nodes in batches)
            found.append(batches[0][:40].tolist())
        return found

    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(collect, range(3)):
            assert all(seeds == expected[0][:40] for seeds in found)


def test_what_pyg_users_pass_for_nothing_is_taken(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    plain = NeighborLoader(ds, [3], batch_size=200, seed=1)
    habits = NeighborLoader(
        ds,
        [3],
        None,
        None,
        False,
        "directional",
        batch_size=200,
        seed=1,
        is_sorted=True,
        filter_per_worker=True,
        directed=True,
        neighbor_sampler=None,
        input_id=None,
    )
    assert as_lists(habits) == as_lists(plain)
