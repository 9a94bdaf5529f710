"""Ray's memory monitor beside scans of more than the memory there is.

The session runs in a memory group, within mounts where that group stands where Ray looks for the
limit and the use, as in a container. What the group holds beyond the processes' own memory is the
cache of the dataset, which the monitor does not count: a process that maps and gathers stays,
while one that takes the same memory for itself is killed by it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capabilities import demand
from confined import make_cold
from overspill.storage.arrays import ArrayWriter
from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord, publish_manifest
from small_graphs import write_array

GROUP_BYTES = 1024 << 20
ROWS, COLUMNS = 280_000, 1024  # 1.07 GiB of float32
BLOCK = 4000

SCRIPT = """
import ctypes, os, sys, threading, time
from pathlib import Path
from overspill.linux.cgroups import kill_count, memory_directories, read_group

(group,) = [held[0] for held in memory_directories() if "overspill-test" in held[0].name]
point = "/sys/fs/cgroup" if (group / "memory.max").exists() else "/sys/fs/cgroup/memory"
libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
for done in (libc.unshare(0x20000),  # CLONE_NEWNS
             libc.mount(None, b"/", None, 0x44000, None),  # MS_REC | MS_PRIVATE
             libc.mount(os.fsencode(group), point.encode(), None, 0x1000, None)):  # MS_BIND
    assert done == 0, os.strerror(ctypes.get_errno())

import numpy as np
import ray
import torch
import overspill as ov
from clusters import LocalCluster, report

MIB = 1 << 20

@ray.remote(max_restarts=0, max_task_retries=0)
class Reader:
    def read(self, dataset, seconds):
        rows, generator = dataset.features("x"), np.random.default_rng(0)
        total = sum(float(block.sum(dtype=torch.float64)) for block in rows.split(4000))
        gathered, until = True, time.monotonic() + seconds
        while time.monotonic() < until:  # for some of the monitor's looks, with a full group
            ids = torch.from_numpy(generator.integers(len(rows), size=2000))
            gathered &= torch.equal(dataset.gather("x", ids)[:, 0], ids.float())
        use = read_group(Path(point))
        return {"total": total, "gathered": gathered, "cached": use.clean_file_bytes,
                "free": use.limit_bytes - use.usage_bytes, "limit": use.limit_bytes}

@ray.remote(max_retries=0)
def take_for_itself():
    held = []
    while ov.available_memory_bytes() > 24 * MIB:  # 2% of the limit; Ray kills at 5%
        held.append(np.ones(8 * MIB, np.uint8))
    threading.Event().wait()

with LocalCluster(1):
    reader = Reader.remote()
    read = ray.get(reader.read.remote(ov.open_dataset(sys.argv[1]), 2.0))
    ray.kill(reader)
    try:
        taken = "lived", str(ray.get(take_for_itself.remote(), timeout=60))
    except ray.exceptions.RayError as error:
        taken = type(error).__name__, str(error)
    report(read=read, taken=taken, memory=ray.cluster_resources()["memory"],
           kills=kill_count(Path(point)))
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """More than the group may hold, written here and cached nowhere."""
    path = tmp_path_factory.mktemp("large") / "dataset"
    path.mkdir()
    block = np.ones((BLOCK, COLUMNS), np.float32)
    with ArrayWriter(path / "x", dtype="float32", shape=(ROWS, COLUMNS)) as writer:
        for start in range(0, ROWS, BLOCK):
            block[:, 0] = np.arange(start, start + BLOCK)
            writer.append(block)
    edges = {
        "indptr": write_array(path / "indptr", np.zeros(ROWS + 1, np.int64)),
        "indices": write_array(path / "indices", np.zeros(0, np.int32)),
    }
    node = NodeTypeRecord("node", ROWS, {"x": writer.result})
    edge = EdgeTypeRecord("node", "to", "node", 0, {"csc": edges})
    publish_manifest(path, Manifest("0" * 32, {"node": node}, {edge.key: edge}))
    make_cold(path / "x")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def found(on_cluster: Callable[..., dict[str, Any]], dataset: Path) -> dict[str, Any]:
    demand("memory_cgroup")
    demand("private_mount")
    monitored = {"RAY_memory_monitor_refresh_ms": "250"}  # Ray's own default
    return on_cluster(SCRIPT, arguments=[dataset], limit_bytes=GROUP_BYTES, env=monitored)


def test_a_scan_of_more_than_the_group_holds_is_not_killed(found: dict[str, Any]) -> None:
    read = found["read"]
    assert read["total"] == ROWS * (COLUMNS - 1) + ROWS * (ROWS - 1) / 2
    assert read["gathered"]
    assert found["kills"] == 0
    # The cache took all there was: by what is used in all, the monitor's 95% were passed.
    assert read["limit"] == GROUP_BYTES < ROWS * COLUMNS * 4
    assert read["free"] < GROUP_BYTES * 0.05 < read["cached"]


def test_ray_reads_that_group_and_kills_who_takes_as_much_for_itself(found: dict[str, Any]) -> None:
    assert found["memory"] < GROUP_BYTES
    kind, told = found["taken"]
    assert kind == "OutOfMemoryError", told
