"""Servers and machines that are killed, or lose their files, while an epoch is read.

One session, in an interpreter of its own, for the whole file: a head, and two nodes with mounts and
processes of their own, which are killed as by a power cut. Each test looks at one finding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capabilities import demand

# Ray notices a machine that is gone after 15 s and more by default.
_NOTICES_SOON = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "200",
    "RAY_health_check_failure_threshold": "3",
}

SCRIPT = """
import hashlib, os, shutil, signal, sys, time
from pathlib import Path
import numpy as np
import overspill as ov
import ray
import torch
from clusters import LocalCluster, report
from other_machine import OtherMachine
from overspill.cluster import open_dataset
from overspill.errors import OverspillError
from overspill.pyg import NeighborLoader
from small_graphs import random_graph

place = Path(sys.argv[1])
whole = ov.open_dataset(random_graph(place / "whole", num_nodes=2000, num_edges=16000).path)
half = torch.tensor([0, 1999])  # one node of each part

def spread(name):
    # Each machine has one part alone, at the same path; the head has none.
    parts = ov.partition_dataset(whole, 2, out=place / name).parts
    for number, other in ((3, parts[1]), (4, parts[0])):
        shutil.copytree(place / name, place / f"machine-{number}" / name)
        shutil.rmtree(place / f"machine-{number}" / name / other.path.name)
    for part in parts:
        shutil.rmtree(part.path)
    return [part.path.name for part in parts]

def machine(number):
    own = place / f"machine-{number}"
    return OtherMachine(cluster.address, f"127.0.0.{number}", own,
                        own={place / "parts": own / "parts"})

@ray.remote(num_cpus=0)
def touch():
    return True

def up(number):
    ray.get(touch.options(resources={f"node:127.0.0.{number}": 0.001}).remote(), timeout=60)

def epoch(dataset, act=None):
    digests = []
    for batch in NeighborLoader(dataset, [4, 3], batch_size=100, shuffle=True, seed=7):
        if len(digests) == 3 and act is not None:
            act()
        told = hashlib.sha256()
        for name in ("n_id", "edge_index", "e_id", "input_id", "x", "y"):
            told.update(batch[name].contiguous().numpy().tobytes())
        digests.append(told.hexdigest()[:16])
    return digests

def server(dataset, number):
    # Its number among those of the dataset, and its process.
    served = [one.address for one in dataset._reach.layout.machines]
    asked = served.index(f"127.0.0.{number}")
    return asked, ray.get(dataset._reach.connection.send(asked, "pid").reference, timeout=60)

seconds = {}
def lost(name, dataset, number, act, *, answered=False):
    # A request is under way when it happens, or its reply has not been fetched; timed until it is
    # there all the same.
    asked, victim = server(dataset, number)
    reach = dataset._reach
    first = reach.layout.first_node("node", reach.layout.machines[asked].parts[0])
    ids = np.full(4000, first)  # a reply that Ray keeps where it was made
    record = dataset.node_record().arrays["x"]
    if not answered:
        machines[number].signal(victim, signal.SIGSTOP)
    pending = reach.connection.send(asked, "gather", record.path, (48, 48), ids)
    if answered:
        ray.wait([pending.reference], fetch_local=False, timeout=60)
    began = time.monotonic()
    act(victim)
    rows = reach.connection.receive(pending)
    seconds[name] = round(time.monotonic() - began, 2)
    assert rows.tobytes() == whole.gather("x", ids).numpy().tobytes()

def told(act):
    try:
        act()
    except OverspillError as error:
        return [type(error).__name__, str(error), getattr(error, "__notes__", [])]
    return ["none", "", []]

names = spread("parts")
shared_parts = ov.partition_dataset(whole, 3, out=place / "shared")
with LocalCluster(1) as cluster:
    machines = {number: machine(number) for number in (3, 4)}
    try:
        up(3), up(4)
        dataset = open_dataset(place / "parts")
        found = {"alone": epoch(whole), "addresses": list(dataset.addresses),
                 "undisturbed": epoch(dataset)}

        found["server killed"] = epoch(dataset, lambda: lost(
            "server killed", dataset, 3, lambda pid: machines[3].signal(pid, signal.SIGKILL)))

        def replace_machine(_):
            machines[4].kill()
            machines[4] = machine(4)
        found["machine replaced"] = epoch(
            dataset, lambda: lost("machine replaced", dataset, 4, replace_machine))

        x = place / "machine-3" / "parts" / names[0] / "nodes/node/arrays/x.safetensors"
        os.truncate(x, x.stat().st_size // 2)
        found["shrunk"] = told(lambda: dataset.gather("x", half))
        shutil.rmtree(place / "machine-4" / "parts" / names[1])
        found["vanished"] = told(lambda: dataset.gather("x", half[1:]))
        dataset.close()

        shared = open_dataset(place / "shared")
        found["shared addresses"] = list(shared.addresses)
        found["machine removed"] = epoch(shared, lambda: lost(
            "machine removed", shared, 4, lambda _: machines[4].kill(), answered=True))
        found["seconds"] = seconds
        report(**found)
    finally:
        for one in machines.values():
            one.kill()
"""


@pytest.fixture(scope="module")
def found(
    on_cluster: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    demand("private_mount")
    place: Path = tmp_path_factory.mktemp("machines")
    found = on_cluster(SCRIPT, arguments=[place], env=_NOTICES_SOON)
    print("seconds until the request under way was answered:", found["seconds"])
    return found


@pytest.mark.parametrize(
    "fault", ["undisturbed", "server killed", "machine replaced", "machine removed"]
)
def test_every_batch_comes_once_and_as_on_one_machine(found: dict[str, Any], fault: str) -> None:
    assert len(found["alone"]) == 20
    assert found[fault] == found["alone"]


def test_the_faults_were_met_by_the_machines_that_were_meant(found: dict[str, Any]) -> None:
    assert found["addresses"] == ["127.0.0.3", "127.0.0.4"]
    assert found["shared addresses"] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    assert set(found["seconds"]) == {"server killed", "machine replaced", "machine removed"}


@pytest.mark.parametrize(("fault", "number"), [("shrunk", 3), ("vanished", 4)])
def test_a_file_that_shrank_or_vanished_is_told_as_where_it_is(
    found: dict[str, Any], fault: str, number: int
) -> None:
    error, told, notes = found[fault]
    assert error == "StaleFileError"
    assert f"parts/part-0000{number - 3}" in told
    assert notes == [f"raised on machine 127.0.0.{number}"]
