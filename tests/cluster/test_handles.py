"""Datasets and tensors through Ray, to the same machine and to another one.

One session, in an interpreter of its own, for the whole file: a head, and a node that has mounts, a
host name, a boot id and a memory limit of its own. Each test looks at one finding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capabilities import demand

LIMIT_BYTES = 900 << 20

SCRIPT = """
import json, os, signal, subprocess, sys
from pathlib import Path
import numpy as np
import overspill as ov
import torch
from overspill.linux.identity import host_identity
from other_machine import OtherMachine
from small_graphs import random_graph

place, limit_bytes = Path(sys.argv[1]), int(sys.argv[2])
MIB = 1 << 20
# At one path, a directory of this machine and one of the other; beside it one that both share.
here, there = place / "here", place / "there"
for name in ("private", "spill"):
    (there / name).mkdir(parents=True)
    (here / name).mkdir(parents=True)
random_graph(here / "private" / "only-here", num_nodes=300)
random_graph(here / "private" / "both")
random_graph(there / "private" / "both")
random_graph(place / "shared", num_nodes=3000)
spill = os.environ["OVERSPILL_DIR"] = str(here / "spill")
os.environ["OVERSPILL_MIN_BYTES"] = "1"

spilled = ov.spill_tensor_to_disk(torch.arange(4 * MIB).view(-1, 1024), required=True)
KILLED = '''
import os, signal, torch, overspill as ov
ov.spill_tensor_to_disk(torch.ones(1000), required=True)
os.kill(os.getpid(), signal.SIGKILL)
'''
subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "OVERSPILL_RUN": ""})

import ray
from ray._private.worker import global_worker
from clusters import LocalCluster, report

@ray.remote(num_cpus=0)
class Receiver:
    def receive(self, sent):
        if isinstance(sent, ov.TensorHandle):
            sent = sent.open()
        first = sent[:3] if isinstance(sent, torch.Tensor) else sent.gather("x", [2, 1, 0])
        return host_identity(), first.double().sum().item()
    def spill(self):
        held = ov.spill_tensor_to_disk(torch.ones(1000), required=True)
        self.run = Path(held.untyped_storage().filename).parent
        lease = json.loads((self.run / "lease").read_text())
        return lease["host"], sorted(one.name for one in self.run.parent.iterdir())
    def available(self):
        return ov.available_memory_bytes()
    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

def told(reference):
    try:
        return ray.get(reference, timeout=60)
    except ray.exceptions.RayError as error:
        return str(error)

def nbytes(sent):
    return global_worker.get_serialization_context().serialize(sent).total_bytes

def run_names(directory):
    return sorted(one.name for one in Path(directory).iterdir())

with LocalCluster(1) as cluster, OtherMachine(
    cluster.address, "127.0.0.3", place, limit_bytes=limit_bytes,
    own={here / "private": there / "private", here / "spill": there / "spill"},
) as machine:
    only_here, both = (ov.open_dataset(here / "private" / name) for name in ("only-here", "both"))
    shared = ov.open_dataset(place / "shared")
    parts = ov.partition_dataset(shared, 2, out=place / "parts", method="hash")
    sent = {"dataset": only_here, "another dataset": both, "shared dataset": shared,
            "partition": parts, "part": parts.parts[1],
            "features": only_here.features("x"), "other features": both.features("x"),
            "shared features": shared.features("x"), "indices": shared.topology().indices,
            "handle": ov.handle(both.features("x")), "spilled": spilled,
            "a row of it": spilled[7], "transposed": spilled.t(),
            "parameter": torch.nn.Parameter(spilled, requires_grad=False)}
    found = {"nbytes": {name: nbytes(one) for name, one in sent.items()},
             "identifiers": [both.manifest.identifier,
                             ov.open_dataset(there / "private" / "both").manifest.identifier],
             "here": host_identity(), "there": machine.identity}
    names = ["dataset", "another dataset", "shared dataset", "features", "other features",
             "shared features", "handle", "spilled"]
    receivers = {where: Receiver.options(resources={f"node:{ip}": 0.001})
                 for where, ip in (("here", "127.0.0.2"), ("there", "127.0.0.3"))}
    started = {where: one.remote() for where, one in receivers.items()}
    for where, one in started.items():
        found[f"opened {where}"] = {name: told(one.receive.remote(sent[name])) for name in names}
    first = started["there"]
    found["available"] = [ov.available_memory_bytes(), ray.get(first.available.remote())]
    found["first"] = ray.get(first.spill.remote())
    told(first.die.remote())
    found["left"] = run_names(there / "spill")
    found["second"] = ray.get(receivers["there"].remote().spill.remote())
    mine = Path(spilled.untyped_storage().filename).parent.name
    found["here before"] = [mine, run_names(spill)]
    subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "OVERSPILL_RUN": ""})
    found["here after"] = run_names(spill)
    report(**found)
"""


@pytest.fixture(scope="module")
def found(
    on_cluster: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    demand("memory_cgroup")
    demand("private_mount")
    place: Path = tmp_path_factory.mktemp("machines")
    return on_cluster(SCRIPT, arguments=[place, LIMIT_BYTES], env={"OVERSPILL_RUN": ""})


def test_everything_by_path_is_under_a_kibibyte_to_ray(found: dict[str, Any]) -> None:
    assert {name: size for name, size in found["nbytes"].items() if not 0 < size < 1024} == {}
    assert len(found["nbytes"]) == 14


def test_on_the_senders_machine_everything_opens(found: dict[str, Any]) -> None:
    for name, told in found["opened here"].items():
        assert told[0] == found["here"], (name, told)


@pytest.mark.parametrize("name", ["shared dataset", "shared features"])
def test_what_both_machines_share_opens_on_the_other_too(found: dict[str, Any], name: str) -> None:
    host, total = found["opened there"][name]
    assert host == found["there"] != found["here"]
    assert total == found["opened here"][name][1]


@pytest.mark.parametrize(
    "name", ["dataset", "another dataset", "features", "other features", "handle", "spilled"]
)
def test_what_stands_elsewhere_is_an_error_that_names_both_machines(
    found: dict[str, Any], name: str
) -> None:
    told = found["opened there"][name]
    assert "StaleFileError" in told
    assert f"sent from {found['here']}, and this is {found['there']}" in told


def test_another_dataset_at_the_path_is_told_by_its_identifier(found: dict[str, Any]) -> None:
    sent, stands = found["identifiers"]
    assert f"{stands}, where {sent} was meant" in found["opened there"]["another dataset"]


def test_available_memory_is_that_of_the_machine_asked(found: dict[str, Any]) -> None:
    here, there = found["available"]
    assert 0 < there < LIMIT_BYTES < here


def test_a_lease_names_its_machine_and_an_inherited_run_of_another_is_left_out(
    found: dict[str, Any],
) -> None:
    host, runs = found["first"]
    assert host == found["there"]
    assert len(runs) == 1 and runs[0] not in found["here before"][1]


def test_dead_runs_are_reclaimed_by_their_own_machine_alone(found: dict[str, Any]) -> None:
    assert found["left"] == found["first"][1]  # killed: its run is left
    second = found["second"][1]
    assert len(second) == 1 and second != found["left"]  # the next one there removed it
    mine, before = found["here before"]
    assert len(before) == 2 and mine in before  # and left alone what is dead here
    after = found["here after"]
    assert mine in after and len(after) == 2 and after != before
