"""Through Ray by path: the object store gets a few hundred bytes, whatever the tensor's size.

One session, in an interpreter of its own, for the whole file; each test looks at one finding.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from confined import run_script

SCRIPT = """
import json, os, sys
import overspill as ov
import torch

MIB = 1 << 20
assert "ray" not in sys.modules  # nobody imports it for us
spilled = ov.spill_tensor_to_disk(torch.arange(32 * MIB).view(-1, 1024), required=True)
name = spilled.untyped_storage().filename

import ray

# Bound to the loopback interface; 127.0.0.1 would be replaced by the machine's own address.
ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.2",
         object_store_memory=80 * MIB, log_to_driver=False, _temp_dir=sys.argv[1])

@ray.remote
def look(*tensors):
    maps = open("/proc/self/maps").read().splitlines()
    return {
        "imported": "overspill" in sys.modules,
        "names": [tensor.untyped_storage().filename for tensor in tensors],
        "layouts": [[list(t.shape), list(t.stride()), t.storage_offset()] for t in tensors],
        "types": [type(tensor).__name__ for tensor in tensors],
        "sums": [float(tensor.double().sum()) for tensor in tensors],
        "maps": sum(line.endswith(tensors[0].untyped_storage().filename) for line in maps),
    }

@ray.remote
class Keeper:
    def __init__(self, tensor):
        self.tensor = tensor
    def give(self):
        return self.tensor[5:]
    def write(self):
        self.tensor[0, 0] = 77
    def spill(self):
        import overspill
        return overspill.spill_tensor_to_disk(torch.ones(MIB), required=True)

@ray.remote
def double(tensor):
    return tensor * 2

@ray.remote
def stale(tensor):
    return tensor.sum()

try:
    views = [spilled, spilled[3:9], spilled.t(), torch.nn.Parameter(spilled, requires_grad=False)]
    reference = ray.put(spilled)  # 256 MiB into a store of 80
    kept = Keeper.remote(spilled)
    back, handed = ray.get([kept.give.remote(), kept.spill.remote()])
    ray.get(kept.write.remote())
    opened = ray.get(ray.put(ov.handle(spilled)))
    gone = ov.spill_tensor_to_disk(torch.ones(MIB), required=True)
    os.unlink(gone.untyped_storage().filename)
    try:
        ray.get(stale.remote(gone))
        told = "nothing"
    except ray.exceptions.RayError as error:
        told = str(error)
    found = {
        "name": name,
        "looked": ray.get(look.remote(*views)),
        "sums": [float(view.double().sum()) for view in views],
        "own mapping": ray.get(reference).data_ptr() == spilled.data_ptr(),
        "from the actor": [back.data_ptr() == spilled[5:].data_ptr(), list(back.shape)],
        "seen write": int(spilled[0, 0]),
        "spilled there": [
            float(handed.sum()),
            os.path.dirname(handed.untyped_storage().filename) == os.path.dirname(name),
        ],
        "handle": opened.open().data_ptr() == spilled.data_ptr(),
        "memory": ray.get(double.remote(torch.arange(1000))).sum().item(),
        "stale": told,
    }
finally:
    ray.shutdown()
print("found", json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    place = tmp_path_factory.mktemp("ray")
    short = tempfile.mkdtemp(prefix="ov-")  # a socket's path may have 107 bytes
    env = {"OVERSPILL_DIR": str(place / "spill"), "OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
    try:
        result = run_script(
            SCRIPT,
            place,
            arguments=[short],
            env={**env, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        ).check()
    finally:
        shutil.rmtree(short, ignore_errors=True)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("found ")]
    yield json.loads(line.removeprefix("found "))
    shutil.rmtree(place)


def test_tasks_get_views_by_path_over_one_mapping(found: dict[str, Any]) -> None:
    looked = found["looked"]
    assert looked["imported"]
    assert looked["names"] == [found["name"]] * 4
    assert looked["maps"] == 1
    assert looked["layouts"][1:3] == [[[6, 1024], [1024, 1], 3072], [[1024, 32768], [1, 1024], 0]]
    assert looked["types"] == ["Tensor", "Tensor", "Tensor", "Parameter"]
    assert looked["sums"] == found["sums"]


def test_the_object_store_never_holds_the_bytes(found: dict[str, Any]) -> None:
    assert found["own mapping"]  # put and got back, three times the store's size


def test_actors_keep_the_mapping_and_send_it_back(found: dict[str, Any]) -> None:
    assert found["from the actor"] == [True, [32763, 1024]]
    assert found["seen write"] == 77


def test_an_actor_spills_into_the_drivers_run(found: dict[str, Any]) -> None:
    assert found["spilled there"] == [float(1 << 20), True]


def test_handles_and_ordinary_tensors_travel(found: dict[str, Any]) -> None:
    assert found["handle"]
    assert found["memory"] == 999 * 1000


def test_a_missing_file_is_an_error_in_the_task(found: dict[str, Any]) -> None:
    assert "StaleFileError" in found["stale"]
