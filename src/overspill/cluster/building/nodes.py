"""The machines of a Ray cluster, as a build in stages sees them: one by address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from overspill.cluster.connection import start_ray
from overspill.errors import UnavailableError


@dataclass(frozen=True)
class BuildMachine:
    """A node of Ray's.

    Attributes:
        address: Its network address, which stays when it comes back.
        node_id: Ray's name of it, which does not.
        cpus: Processors that Ray may give away.
    """

    address: str
    node_id: str
    cpus: int


def connect(address: str | None = None) -> None:
    """Connect to a cluster, unless this process is connected already.

    Args:
        address: Of the cluster; None: RAY_ADDRESS, or the one on this machine.

    Raises:
        ClusterError: There is none.
        InputError: The address is that of Ray's client server.
    """
    if not ray.is_initialized():
        start_ray(address)


def alive_machines() -> list[BuildMachine]:
    """The machines that are up and have processors to give, by address.

    Raises:
        UnavailableError: There is none.
    """
    found: dict[str, BuildMachine] = {}
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    for node in nodes:
        cpus = int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0
        if cpus:
            address = str(node["NodeManagerAddress"])
            found.setdefault(address, BuildMachine(address, str(node["NodeID"]), cpus))
    if not found:
        raise UnavailableError(
            "no machine of the Ray cluster has processors to give",
            remedy="start one with: ray start --address=... --num-cpus=N",
        )
    return [found[address] for address in sorted(found, key=_numeric)]


def _numeric(address: str) -> tuple[Any, ...]:
    parts = address.split(".")
    return (0, *map(int, parts)) if all(map(str.isdigit, parts)) else (1, address)
