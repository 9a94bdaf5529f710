"""Loaders and their workers: the same batches by all, errors that come back, nothing left."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from confined import PythonResult
from loaded_batches import BUYS, all_listed, club, market, stop_workers
from overspill.errors import InputError, StaleFileError
from overspill.graph.dataset import open_dataset
from overspill.pyg import LinkNeighborLoader, NeighborLoader
from typed_graphs import write_typed

REPOSITORY = Path(__file__).parents[2]
FRIENDS = ("person", "knows", "person")


@pytest.mark.parametrize(("method", "workers"), [("fork", 1), ("fork", 2), ("spawn", 1)])
def test_batches_of_types_and_links_do_not_depend_on_the_workers(
    tmp_path: Path, method: str, workers: int
) -> None:
    market(tmp_path, node_times=True)
    ds = open_dataset(tmp_path)
    # Of spawned workers, one loader: each takes seconds to start.
    chosen = slice(None) if method == "fork" else slice(1, 2)
    nodes: dict[str, Any] = {"time_attr": "t", "temporal_strategy": "last", "batch_size": 15}
    links: dict[str, Any] = {
        "neg_sampling": {"mode": "triplet", "dst_weight": torch.arange(50.0)},
        "weight_attr": "w",
        "batch_size": 60,
    }

    def made(num_workers: int) -> list[Any]:
        shared: dict[str, Any] = {"shuffle": True, "seed": 6, "num_workers": num_workers}
        if num_workers:
            shared["multiprocessing_context"] = method
        found = []
        loaders = (
            NeighborLoader(ds, [3, 2], "user", **nodes, **shared),
            LinkNeighborLoader(ds, [3, 2], BUYS, **links, **shared),
            LinkNeighborLoader(ds, [2], BUYS, subgraph_type="bidirectional", **links, **shared),
        )
        for loader in loaders[chosen]:
            found += all_listed(loader)
            stop_workers(loader)
        return found

    assert made(workers) == made(0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_weight_that_is_none_is_an_error_of_ours_from_a_worker(
    tmp_path: Path, num_workers: int
) -> None:
    weights = np.ones(700, np.float32)
    weights[350] = -1
    ends = np.random.default_rng(0).integers(0, 50, (2, 700))
    write_typed(tmp_path, {"person": (50, {})}, {FRIENDS: (*ends, {"w": weights})})
    loader = NeighborLoader(
        open_dataset(tmp_path), [3], batch_size=10, weight_attr="w", num_workers=num_workers
    )
    with pytest.raises(InputError, match=r"has the weight -1\.0"):
        list(loader)
    stop_workers(loader)


@pytest.mark.parametrize("options", [{}, {"lookahead": 2}])
@pytest.mark.parametrize("name", ["person.x", "person-knows-person.a.w"])
def test_rows_that_vanish_are_an_error_from_every_worker(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    club(tmp_path)
    loader = NeighborLoader(
        open_dataset(tmp_path), [3], batch_size=10, num_workers=2, seed=0, **options
    )
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size - 8)
    for _ in range(2):
        batches = iter(loader)
        for _ in range(2):  # of the first worker, then of the second
            with pytest.raises(StaleFileError, match=name):
                next(batches)
        stop_workers(loader, batches)


def test_a_consumer_that_stops_early_leaves_nothing(tmp_path: Path) -> None:
    # Of processes, descriptors, threads and /dev/shm: the fixture of all tests looks.
    market(tmp_path)
    ds = open_dataset(tmp_path)
    for options in (
        {"num_workers": 2, "hot_rows": "4KiB", "lookahead": 2},
        {"prefetch_batches": 3},
    ):
        loader = LinkNeighborLoader(
            ds, [3, 2], BUYS, neg_sampling="binary", batch_size=10, **options
        )
        for batch in loader:
            assert batch[BUYS].edge_label.numel() == 20
            break
        stop_workers(loader)
        del batch, loader
        gc.collect()


def test_a_fork_in_mid_epoch_leaves_both_sides_their_batches(tmp_path: Path) -> None:
    market(tmp_path)
    loader = NeighborLoader(
        open_dataset(tmp_path), [3], "user", batch_size=10, seed=0, prefetch_batches=3
    )
    expected = [batch["user"].n_id.tolist() for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        found = [batch["user"].n_id.tolist() for batch in batches]
        os._exit(0 if found == expected[1:] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [batch["user"].n_id.tolist() for batch in batches] == expected[1:]


KILLED = """
import os, signal, sys, time
from overspill.graph.dataset import open_dataset
from overspill.pyg import LinkNeighborLoader

def die_at_last(batch):
    if batch["user", "buys", "item"].input_id[0] >= 250:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch

if __name__ == "__main__":
    loader = LinkNeighborLoader(
        open_dataset(sys.argv[1]), [2], ("user", "buys", "item"), batch_size=10, num_workers=2,
        lookahead=3, neg_sampling="binary", transform=die_at_last,
    )
    try:
        try:
            for batch in loader:
                pass
            print("finished")
        finally:
            # torch's handler would raise again, whatever runs when the next worker ends.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except (RuntimeError, ConnectionError) as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        print("raised", error)
"""


def test_a_killed_worker_of_links_is_an_error_within_seconds(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    market(tmp_path / "graph")
    result = run_python(KILLED, arguments=[tmp_path / "graph"], timeout_s=60).check()
    assert result.stdout.startswith("raised")


ENDURE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from benchmarks.loader_endurance import build_shop, endure_fresh, endure_persistent

if __name__ == "__main__":
    shop = build_shop(Path(sys.argv[1]) / "shop", nodes=4000, edges=30_000)
    for one in (
        endure_persistent(shop, "links", epochs=8, batches=8, workers=1),
        endure_fresh(shop, "fork", epochs=4, batches=4, workers=2),
    ):
        assert one.is_flat, one
        print(one.batches)
"""


def test_memory_stays_flat_over_epochs(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    result = run_python(ENDURE, arguments=[tmp_path, REPOSITORY], timeout_s=180).check()
    assert result.stdout.split() == ["64", "16"]
