"""The workflow that the tensor layer comes from: loaders that exit, samplers that map, no copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
import torch.multiprocessing as mp
import overspill as ov
from overspill.linux.processes import process_memory

MIB = 1 << 20
EDGES, NODES = 16 * MIB, 8 * MIB  # times 2 int64, times 4 float32: 256 and 128 MiB

def load_edges(table):
    edges = torch.arange(2 * EDGES).view(2, EDGES)
    table["edges"] = ov.spill_tensor_to_disk(edges, required=True)

def load_nodes(table):
    nodes = torch.arange(4 * NODES, dtype=torch.float32).view(NODES, 4)
    table["nodes"] = ov.spill_tensor_to_disk(nodes, required=True)

def load(target):
    child = context.Process(target=target, args=(table,))
    child.start()
    child.join(120)
    assert child.exitcode == 0

def shm_used():
    held = os.statvfs("/dev/shm")
    return (held.f_blocks - held.f_bfree) * held.f_frsize

def files():
    return sorted(str(path) for path in Path(os.environ["OVERSPILL_DIR"]).glob("run-*/*.bin"))

def sample(held, seed, answers):
    before = process_memory().anon_bytes
    rows = torch.randint(0, EDGES, (100_000,), generator=torch.Generator().manual_seed(seed))
    picked = held["edges"][0, rows]
    features = held["nodes"][picked % NODES]
    held["edges"].sum()  # every page of it, too
    answers.put({
        "right": bool((picked == rows).all() and (features[:, 0] == 4 * (rows % NODES)).all()),
        "names": [held[name].untyped_storage().filename for name in ("edges", "nodes")],
        "grown": process_memory().anon_bytes - before,
    })

if __name__ == "__main__":
    method, strategy = sys.argv[1:]
    mp.set_sharing_strategy(strategy)
    context = mp.get_context(method)
    ov.prepare_spill_dir()
    with context.Manager() as manager:
        table = manager.dict()
        for target in (load_edges, load_nodes):
            load(target)
        before = process_memory().anon_bytes, shm_used(), files()
        held = {name: table[name] for name in ("edges", "nodes")}
    ov.share_memory(held)
    answers = context.Queue()
    workers = [
        context.Process(target=sample, args=(held, seed, answers)) for seed in range(2)
    ]
    for worker in workers:
        worker.start()
    told = [answers.get(timeout=240) for _ in workers]
    for worker in workers:
        worker.join(120)
    print(json.dumps({
        "workers": told,
        "names": [held[name].untyped_storage().filename for name in ("edges", "nodes")],
        "files": files(),
        "files before": before[2],
        "grown": process_memory().anon_bytes - before[0],
        "shm grown": shm_used() - before[1],
        "sums": [int(held["edges"][1, -1]), float(held["nodes"][1, 0])],
        "backed": [ov.is_disk_backed(held[name]) for name in ("edges", "nodes")],
    }))
"""


@pytest.mark.parametrize(
    ("method", "strategy"), [("spawn", "file_descriptor"), ("forkserver", "file_system")]
)
def test_loaders_exit_samplers_map_and_nothing_is_copied_or_deleted(
    method: str, strategy: str, run_python: Callable[..., Any], tmp_path: Path
) -> None:
    env = {"OVERSPILL_DIR": str(tmp_path / "spill"), "OVERSPILL_MIN_BYTES": "1MiB"}
    result = run_python(SCRIPT, arguments=[method, strategy], env={**env, "OVERSPILL_RUN": ""})
    told = json.loads(result.check().stdout)
    assert told["backed"] == [True, True]
    assert told["files"] == told["files before"] == sorted(told["names"])
    assert told["sums"] == [(32 << 20) - 1, 4.0]
    # Together 384 MiB: a copy anywhere would show. Indexing brings a little of torch's own.
    assert told["grown"] < 16 * MIB
    assert told["shm grown"] < 1 * MIB
    for worker in told["workers"]:
        assert worker["right"] and worker["names"] == told["names"]
        assert worker["grown"] < 32 * MIB
