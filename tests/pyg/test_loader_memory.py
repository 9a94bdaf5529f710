"""The loader in a real memory group: its projection bounds what it takes, and no kill comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from confined import PythonResult, make_cold
from overspill.graph.paged import BLOCK_ITEMS
from small_graphs import compress, write_graph
from typed_graphs import write_typed

MIB = 1 << 20
NODES, WIDTH = 2 << 20, 128  # 1 GiB of features

EPOCHS = """
import sys
import numpy as np, torch
from overspill.graph.dataset import open_dataset
from overspill.linux.processes import process_memory
from overspill.pyg import NeighborLoader

if __name__ == "__main__":
    path, method, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    ds = open_dataset(path)
    seeds = torch.arange(0, ds.num_nodes, 251)
    loader = NeighborLoader(
        ds, [10, 5], batch_size=512, input_nodes=seeds, shuffle=True,
        num_workers=2 if method == "fork" else 1,
        multiprocessing_context=method, memory_limit=sys.argv[4], seed=1,
    )
    anon = []
    for epoch in range(epochs):
        rows = 0
        for batch in loader:
            assert torch.equal(batch.x[:, 0], batch.n_id.to(torch.float32))
            rows += batch.num_nodes
        anon.append(process_memory().anon_bytes)
    print(loader.plan.projected_bytes, loader.plan.allowed_bytes, rows, *anon)
"""


@pytest.fixture(scope="module")
def large_graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large")
    ends = np.random.default_rng(0).integers(0, NODES, (2, 4 * NODES))
    x = np.zeros((NODES, WIDTH), np.float32)
    x[:, 0] = np.arange(NODES)
    write_graph(path, *compress(ends[0], ends[1], NODES), {"x": x})
    yield path
    for file in path.iterdir():
        file.unlink()


def run_epochs(
    run_python: Callable[..., PythonResult], path: Path, method: str, epochs: int, limit: int
) -> tuple[PythonResult, list[int]]:
    make_cold(*path.iterdir())
    arguments = [path, method, epochs, limit]
    result = run_python(EPOCHS, limit_bytes=limit, arguments=arguments).check()
    return result, [int(word) for word in result.stdout.split()]


@pytest.mark.memory
@requires("memory_cgroup")
@pytest.mark.parametrize(
    ("method", "limit", "epochs"), [("fork", 700 * MIB, 2), ("spawn", 1000 * MIB, 1)]
)
def test_an_epoch_over_larger_features_keeps_to_its_projection(
    run_python: Callable[..., PythonResult], large_graph: Path, method: str, limit: int, epochs: int
) -> None:
    result, (projected, allowed, rows, *anon) = run_epochs(
        run_python, large_graph, method, epochs, limit
    )
    assert result.kills == 0
    assert rows > NODES // 251 * 10
    assert result.peaks.anon_shmem_bytes <= projected <= allowed <= limit
    # Once the first epoch has filled its buffers nothing grows any more.
    assert anon[-1] <= anon[0] + 8 * MIB


LARGE_BATCH = """
import sys
import torch
from overspill.graph.dataset import open_dataset
from overspill.pyg import NeighborLoader

if __name__ == "__main__":
    ds = open_dataset(sys.argv[1])
    loader = NeighborLoader(
        ds, [4], batch_size=ds.num_nodes // 5 + 1, input_nodes=torch.arange(0, ds.num_nodes, 5),
        features=[], memory_limit=int(sys.argv[2]), seed=1,
    )
    (batch,) = loader
    print(loader.plan.projected_bytes, loader.plan.allowed_bytes, batch.edge_index.shape[1])
"""


@pytest.mark.memory
@requires("memory_cgroup")
def test_a_hop_of_more_edges_than_are_read_at_a_time_keeps_to_its_projection(
    run_python: Callable[..., PythonResult], large_graph: Path
) -> None:
    limit = 1200 * MIB
    make_cold(*large_graph.iterdir())
    arguments = [large_graph, limit]
    result = run_python(LARGE_BATCH, limit_bytes=limit, arguments=arguments).check()
    projected, allowed, edges = (int(word) for word in result.stdout.split())
    assert result.kills == 0 and edges > BLOCK_ITEMS
    assert result.peaks.anon_shmem_bytes <= projected <= allowed <= limit


TYPED = """
import json, sys
import torch
from overspill.graph.dataset import open_dataset
from overspill.pyg import LinkNeighborLoader, NeighborLoader

if __name__ == "__main__":
    ds = open_dataset(sys.argv[1])
    options = json.loads(sys.argv[2])
    links = options.pop("links", False)
    options |= {"batch_size": 400, "shuffle": True, "memory_limit": int(sys.argv[3]), "seed": 1}
    seeds = torch.arange(0, ds.node_record("user").count, 229)
    if links:
        ends = (("user", "buys", "item"), torch.stack([seeds, seeds // 2]))
        loader = LinkNeighborLoader(ds, [8, 4], ends, neg_sampling="binary", **options)
    else:
        loader = NeighborLoader(ds, [8, 4], ("user", seeds), **options)
    nodes = 0
    for batch in loader:
        for type in ds.node_types:
            assert torch.equal(batch[type].x[:, 0], batch[type].n_id.to(torch.float32))
            nodes += batch[type].num_nodes
        for key in ds.edge_types:
            if "w" in batch[key]:
                assert torch.equal(batch[key].w[:, 0], batch[key].e_id)
    print(loader.plan.projected_bytes, loader.plan.allowed_bytes, nodes)
"""


@pytest.fixture(scope="module")
def typed_graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("typed")
    rng = np.random.default_rng(0)
    counts = {"user": 1 << 20, "item": 1 << 19}
    nodes = {}
    for type, count in counts.items():
        x = np.zeros((count, 96), np.float32)
        x[:, 0] = np.arange(count)
        nodes[type] = (count, {"x": x})
    edges = {}
    for key in (("user", "buys", "item"), ("item", "liked_by", "user")):
        targets = np.sort(rng.integers(0, counts[key[2]], 4 << 20))
        sources = rng.integers(0, counts[key[0]], targets.size)
        w = np.zeros((targets.size, 4), np.int64)
        w[:, 0] = np.arange(targets.size)
        edges[key] = (sources, targets, {"w": w})
    write_typed(path, nodes, edges)
    del nodes, edges
    yield path
    for file in path.iterdir():
        file.unlink()


@pytest.mark.memory
@requires("memory_cgroup")
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "hot_rows": "64MiB"},
        {"num_workers": 1, "disjoint": True, "lookahead": 3},
        {"prefetch_batches": 3, "subgraph_type": "bidirectional", "links": True},
        {"prefetch_batches": 2, "subgraph_type": "induced", "lookahead": 4},
    ],
    ids=["hot", "trees", "links", "induced"],
)
def test_batches_of_types_keep_to_their_projection(
    run_python: Callable[..., PythonResult], typed_graph: Path, options: dict[str, object]
) -> None:
    limit = 1000 * MIB
    make_cold(*typed_graph.iterdir())
    result = run_python(
        TYPED, limit_bytes=limit, arguments=[typed_graph, json.dumps(options), limit]
    ).check()
    projected, allowed, nodes = (int(word) for word in result.stdout.split())
    assert result.kills == 0 and nodes > 50_000
    assert result.peaks.anon_shmem_bytes <= projected <= allowed <= limit


@pytest.mark.memory
@requires("memory_cgroup")
def test_a_limit_too_small_is_refused_and_not_met_by_a_kill(
    run_python: Callable[..., PythonResult], large_graph: Path
) -> None:
    result = run_python(
        EPOCHS, limit_bytes=400 * MIB, arguments=[large_graph, "fork", 1, 400 * MIB]
    )
    assert result.returncode == 1 and result.kills == 0
    assert "NoRoomError" in result.stderr and "remedy" in result.stderr
