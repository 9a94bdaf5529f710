"""Which machines have which parts: each is asked to open what it finds at the path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from overspill.cluster.connection import first_line
from overspill.errors import ClusterError, InputError
from overspill.storage.manifest import Manifest
from overspill.storage.partition_manifest import PartitionManifest
from overspill.storage.partition_survey import FoundParts, find_parts


@dataclass(frozen=True)
class Node:
    """A node of the Ray cluster: its name, and its network address."""

    node_id: str
    address: str


@dataclass(frozen=True)
class Survey:
    """What all machines have.

    Attributes:
        partition: The partition.
        manifests: Of all parts, in order.
        holders: The machines that have each part.
        nodes: All machines.
    """

    partition: PartitionManifest
    manifests: list[Manifest]
    holders: list[list[Node]]
    nodes: list[Node]


def nodes_alive() -> list[Node]:
    """The machines that are up, by address."""
    nodes = [
        Node(str(held["NodeID"]), str(held["NodeManagerAddress"]))
        for held in ray.nodes()  # type: ignore[no-untyped-call]
        if held["Alive"]
    ]
    return sorted(nodes, key=lambda node: (node.address, node.node_id))


def this_address() -> str:
    """The network address of the node that this process is connected to."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def survey(path: str, deadline_s: float) -> Survey:
    """Ask all machines.

    Args:
        path: The partition's directory.
        deadline_s: How long it may take.

    Raises:
        InputError: No machine has a partition there, or two have different ones.
        ClusterError: A part is on none of the machines that answered.
    """
    nodes = nodes_alive()
    found = dict(zip(nodes, _asked(path, nodes, deadline_s), strict=True))
    partition = _agreed(path, found)
    manifests, holders = [], []
    for number in range(len(partition.parts)):
        having = [node for node, held in found.items() if number in held.parts]
        if not having:
            raise _absent(path, number, found)
        manifests.append(found[having[0]].parts[number])
        holders.append(having)
    return Survey(partition, manifests, holders, nodes)


def _asked(path: str, nodes: Sequence[Node], deadline_s: float) -> list[FoundParts]:
    # It needs neither torch nor this room: the process that answers is there in a second.
    ask = ray.remote(num_cpus=0, max_retries=1)(find_parts)
    references = [
        ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        ).remote(path)
        for node in nodes
    ]
    ray.wait(references, num_returns=len(references), timeout=deadline_s)
    return [_answer(reference) for reference in references]


def _answer(reference: Any) -> FoundParts:
    """What a machine answered; one that did not has nothing."""
    try:
        found = ray.get(reference, timeout=0)
    except RayError as error:
        # Ray's own message of a task that failed begins with the task, and not with why.
        why = error.cause if isinstance(error, RayTaskError) else error
        return FoundParts(problems={None: f"no answer: {type(why).__name__}: {first_line(why)}"})
    assert isinstance(found, FoundParts)
    return found


def _agreed(path: str, found: Mapping[Node, FoundParts]) -> PartitionManifest:
    """The partition that all machines have which have one."""
    having = {node: held.partition for node, held in found.items() if held.partition is not None}
    if not having:
        told = "; ".join(f"{node.address}: {held.problems[None]}" for node, held in found.items())
        raise InputError(
            f"no machine of the cluster has a partition at {path} ({told})",
            path=path,
            remedy="check the path, or make one with overspill.cluster.build or partition_dataset, "
            "at the same path on every machine that has parts",
        )
    (first, partition), *others = having.items()
    for node, held in others:
        if held.identifier != partition.identifier:
            raise InputError(
                f"machines {first.address} and {node.address} have different partitions at {path}: "
                f"{partition.identifier} and {held.identifier}",
                path=path,
                remedy="remove the one that is not meant",
            )
    return partition


def _absent(path: str, number: int, found: Mapping[Node, FoundParts]) -> ClusterError:
    told = "; ".join(
        f"{node.address}: {held.problems.get(number) or held.problems.get(None)}"
        for node, held in found.items()
    )
    return ClusterError(
        f"no machine of the cluster can open part {number} of {path} ({told})",
        path=path,
        remedy="add the machine that has it to the cluster, or put the part back",
    )
