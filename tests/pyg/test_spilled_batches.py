"""Overspill's own loader and a /dev/shm that cannot hold one of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capabilities import requires
from small_graphs import compress, write_graph

MIB = 1 << 20
NODES, WIDTH = 40_000, 256  # 1 KiB a node: 39 MiB a batch of all of them
SCRIPT = """
import os, sys
from pathlib import Path
import torch
import overspill as ov
from overspill.graph.dataset import open_dataset
from overspill.pyg import NeighborLoader

if __name__ == "__main__":
    ds = open_dataset(sys.argv[1])
    seeds = torch.arange(10_000)
    method = sys.argv[2]
    make = lambda: NeighborLoader(ds, [8], batch_size=5_000, input_nodes=seeds, seed=1,
                                  num_workers=2 if method == "fork" else 1,
                                  multiprocessing_context=method)
    try:
        make()
    except MemoryError as error:
        print("refused" if "spill_batches" in str(error) else error)
    with ov.spill_batches():
        largest = 0
        for batch in make():
            assert torch.equal(batch.x[:, 0], batch.n_id.to(torch.float32))
            largest = max(largest, batch.x.nbytes)
        print("larger" if largest > 8 << 20 else largest)
        del batch
    print([name for name in os.listdir("/dev/shm") if not name.startswith("sem.")],
          [str(path) for path in Path(os.environ["OVERSPILL_DIR"]).rglob("*.bin")])
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("graph")
    ends = np.random.default_rng(0).integers(0, NODES, (2, 10 * NODES))
    x = np.zeros((NODES, WIDTH), np.float32)
    x[:, 0] = np.arange(NODES)
    yield write_graph(path, *compress(ends[0], ends[1], NODES), {"x": x}).path


@requires("private_mount")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_that_do_not_fit_in_shared_memory_go_through_files(
    method: str, graph: Path, private_shm: Callable[[int], Callable[..., Any]], tmp_path: Path
) -> None:
    env = {"OVERSPILL_DIR": str(tmp_path / "spill"), "OVERSPILL_RUN": ""}
    result = private_shm(8 * MIB)(SCRIPT, arguments=[graph, method], env=env).check()
    assert result.stdout.split() == ["refused", "larger", "[]", "[]"]
