"""Parts served by actors: from the driver, its threads and its workers, from tasks on both nodes.

One cluster of two nodes, in an interpreter of its own, for the whole file; each test looks at one
finding.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from overspill.cluster import open_dataset
from overspill.cluster.building.nodes import connect
from overspill.errors import ClusterError, InputError

SCRIPT = """
import os, pickle, signal, sys, threading
from pathlib import Path

import numpy as np
import ray
import torch

import overspill as ov
from clusters import LocalCluster, address_of, report
from loaded_batches import all_listed, club
from overspill import cluster
from overspill.errors import OverspillError
from overspill.graph import SamplingSpec
from overspill.pyg import LinkNeighborLoader, NeighborLoader
from typed_graphs import everything_of

OPTIONS = dict(batch_size=40, seed=3, shuffle=True)
SPEC = SamplingSpec(num_neighbors={("person", "knows", "person"): (4, 3)}, edge_places=True)

def refused(act):
    try:
        act()
    except OverspillError as error:
        return [type(error).__name__, str(error), getattr(error, "__notes__", [])]

def loaded(dataset, **options):
    return all_listed(NeighborLoader(dataset, [4, 3], **OPTIONS, **options))

def in_fork(act):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, repr(refused(act)).encode())
        os._exit(0)
    os.wait()
    os.close(write)
    with os.fdopen(read) as pipe:
        return pipe.read()

def main(place):
    whole = ov.open_dataset(club(place / "whole").path)
    ov.partition_dataset(whole, 5, out=place / "parts")
    ov.partition_dataset(whole, 2, out=place / "lacking")
    batches, everything = loaded(whole), torch.arange(whole.num_nodes).flip(0)
    rows = whole.gather("x", everything)
    with LocalCluster(2, connect=False) as nodes:
        found = {}
        dataset = cluster.open_dataset(place / "parts", address=nodes.address)
        found["machines"] = [list(dataset.addresses), list(dataset.machines) == [
            nodes.node_id(0), nodes.node_id(1)]]
        found["local"] = [list(dataset.local_parts), dataset.num_parts]
        found["nbytes"] = ray._private.worker.global_worker.get_serialization_context(
            ).serialize(dataset).total_bytes

        seeds, key = np.arange(50), np.uint64(7)
        sampled = everything_of(whole.sampler(SPEC).sample(seeds, key=key))

        @ray.remote(num_cpus=0, resources={f"node:{address_of(1)}": 0.001})
        def there(sent):
            assert "not connected yet" in repr(sent)
            same = torch.equal(sent.gather("x", everything), rows)
            found = everything_of(sent.sampler(SPEC).sample(seeds, key=key))
            again = pickle.loads(pickle.dumps(sent))
            return list(sent.local_parts), same, found == sampled, again._link.node
        found["task"] = ray.get(there.remote(dataset))

        found["same"] = {
            "here": loaded(dataset) == batches,
            "in a thread": loaded(dataset, prefetch_batches=2) == batches,
            "in a worker": loaded(dataset, num_workers=1) == batches,
            "links": all_listed(LinkNeighborLoader(dataset, [3], neg_sampling="triplet", **OPTIONS))
            == all_listed(LinkNeighborLoader(whole, [3], neg_sampling="triplet", **OPTIONS)),
        }
        told = []
        def gather_often():
            told.extend(torch.equal(dataset.gather("x", everything), rows) for _ in range(20))
        threads = [threading.Thread(target=gather_often) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        found["threads"] = [len(told), all(told)]

        found["fork asked for"] = refused(lambda: loaded(
            dataset, num_workers=1, multiprocessing_context="fork"))
        found["forked"] = in_fork(lambda: dataset.gather("x", everything))

        again = cluster.open_dataset(place / "parts", deadline_s=1.5)
        names = [machine.server for machine in dataset._reach.layout.machines]
        servers = [ray.get_actor(name, namespace="overspill") for name in names]
        pids = ray.get([server.pid.remote() for server in servers])
        found["reused"] = again._reach.layout.machines == dataset._reach.layout.machines
        theirs = again._reach.layout.machines[1].parts[0]
        first = int(again._reach.layout.node_ends["person"][theirs]) - 1  # a node of that part

        os.kill(pids[1], signal.SIGSTOP)
        found["stopped"] = refused(lambda: again.gather("x", [first]))
        found["meanwhile"] = torch.equal(
            again.gather("x", [0]), whole.gather("x", [0]))  # what lies here waits for nobody
        os.kill(pids[1], signal.SIGCONT)

        held = ov.open_partition(place / "parts").parts[theirs]
        path = held.path / held.manifest.node_types["person"].arrays["x"].path
        kept = path.read_bytes()
        path.unlink()
        path.write_bytes(kept)
        found["replaced"] = refused(lambda: dataset.gather("x", [first]))

        dataset.close()
        found["after one close"] = torch.equal(
            again.gather("t", [0], edge_type=whole.edge_types[0]),
            whole.gather("t", [0], edge_type=whole.edge_types[0]))
        again.close()
        again.close()
        sent = pickle.loads(pickle.dumps(again))
        found["closed"] = refused(lambda: sent.num_nodes)

        found["nowhere"] = refused(lambda: cluster.open_dataset(place / "nothing"))
        part = next((place / "lacking").glob("part-*1"))
        part.rename(place / "elsewhere")
        found["lacking"] = refused(lambda: cluster.open_dataset(place / "lacking"))
    again.close()
    found["disconnected"] = refused(lambda: again.gather("x", everything))
    report(**found)

if __name__ == "__main__":
    main(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def found(
    on_cluster: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return on_cluster(SCRIPT, arguments=[tmp_path_factory.mktemp("served")])


def test_every_part_is_served_and_those_of_this_machine_are_read_in_place(
    found: dict[str, Any],
) -> None:
    assert found["machines"] == [["127.0.0.2", "127.0.0.3"], True]
    local, count = found["local"]
    assert 0 < len(local) < count == 5


def test_it_travels_in_less_than_a_kibibyte_and_a_task_reads_its_own_parts(
    found: dict[str, Any],
) -> None:
    assert found["nbytes"] < 1024
    local, *same, node = found["task"]
    assert sorted(local + found["local"][0]) == list(range(5))
    assert same == [True, True]
    assert node == "127.0.0.3"  # which a process that the task starts connects to


@pytest.mark.parametrize("where", ["here", "in a thread", "in a worker", "links"])
def test_batches_are_those_of_the_whole(found: dict[str, Any], where: str) -> None:
    assert found["same"][where] is True


def test_threads_ask_side_by_side(found: dict[str, Any]) -> None:
    assert found["threads"] == [80, True]


def test_forks_are_refused_and_told_what_to_do(found: dict[str, Any]) -> None:
    kind, told, _ = found["fork asked for"]
    assert kind == "InputError" and "spawn" in told
    assert "ClusterError" in found["forked"] and "does not survive a fork" in found["forked"]


def test_a_second_opening_finds_the_servers_and_outlives_the_first(found: dict[str, Any]) -> None:
    assert found["reused"]
    assert found["after one close"]
    kind, told, _ = found["closed"]
    assert kind == "ClusterError" and "has ended" in told
    kind, told, _ = found["disconnected"]
    assert kind == "ClusterError" and "open the dataset again after ray.init()" in told


def test_a_machine_that_does_not_answer_is_named_with_its_parts(found: dict[str, Any]) -> None:
    kind, told, _ = found["stopped"]
    assert kind == "ClusterError"
    assert "machine 127.0.0.3 did not answer within 1.5 s, and it serves part 1, 3" in told
    assert found["meanwhile"]


def test_what_a_server_raises_comes_as_it_is(found: dict[str, Any]) -> None:
    kind, told, notes = found["replaced"]
    assert kind == "StaleFileError"
    assert "RayTaskError" not in told
    assert notes == ["raised on machine 127.0.0.3"]


def test_what_no_machine_has_is_said_for_each(found: dict[str, Any]) -> None:
    kind, told, _ = found["nowhere"]
    assert kind == "InputError" and "127.0.0.2: " in told and "127.0.0.3: " in told
    kind, told, _ = found["lacking"]
    assert kind == "ClusterError" and "can open part 1" in told and "127.0.0.3: " in told


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "5", None])
def test_what_is_no_deadline_is_refused(seconds: Any) -> None:
    with pytest.raises(InputError, match="is no time"):
        open_dataset("/d/parts", deadline_s=seconds)


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ClusterError, match=rf"{address}: .*refused"):
            open_dataset("/d/parts", address=address)
        with pytest.raises(ClusterError, match=rf"{address}: .*refused"):
            connect(address)
