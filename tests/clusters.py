"""A Ray cluster of several nodes on this machine, for the scripts that tests run.

Only within a script, in an interpreter of its own: see the ``on_cluster`` fixture of
``tests/cluster``. Nodes stand on loopback addresses of their own (127.0.0.2, 127.0.0.3, ...) and
are told apart by these, as machines are.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import Any

import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20


def address_of(number: int) -> str:
    """The address of a node, counted from 0."""
    return f"127.0.0.{2 + number}"


def report(**found: Any) -> None:
    """Hand findings to the test, as JSON."""
    print("found", json.dumps(found), flush=True)


class LocalCluster:
    """Nodes on this machine, up when the span begins and gone when it ends.

    Args:
        nodes: How many.
        num_cpus: Processors that each claims to have.
        store_bytes: Object store of each.
        connect: Connect this process, as a driver on the first node.

    Attributes:
        address: To connect by.
        nodes: Ray's nodes by number; None where one was killed.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        num_cpus: int = 1,
        store_bytes: int = STORE_BYTES,
        connect: bool = True,
    ) -> None:
        self._count, self._connect = nodes, connect
        self._arguments = {
            "num_cpus": num_cpus,
            "object_store_memory": store_bytes,
            "include_dashboard": False,
            # Two interpreters less: nobody reads the logs, and no machines are to be had.
            "include_log_monitor": False,
            "no_monitor": True,
        }
        self.nodes: list[Any] = []

    def __enter__(self) -> LocalCluster:
        head = {"node_ip_address": address_of(0), "temp_dir": os.environ["RAY_TMPDIR"]}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**self._arguments, **head}, shutdown_at_exit=False
        )
        self.nodes.append(self._cluster.head_node)
        try:
            for _ in range(1, self._count):
                self.add(wait=False)
            self._cluster.wait_for_nodes()
            if self._connect:
                self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()
        for number in range(len(self.nodes)):
            self.kill(number)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def connect(self, number: int = 0) -> None:
        """Make this process a driver on a node."""
        ray.init(
            address=self.address,
            _node_ip_address=address_of(number),
            log_to_driver=False,
            logging_level="ERROR",
        )

    def add(self, number: int | None = None, *, wait: bool = True, **arguments: Any) -> int:
        """Start a node: a further one, or one that was killed, at its address again."""
        number = len(self.nodes) if number is None else number
        node = self._cluster.add_node(
            wait=wait, node_ip_address=address_of(number), **{**self._arguments, **arguments}
        )
        self.nodes[number : number + 1] = [node]
        return number

    def kill(self, number: int) -> None:
        """Kill every process of a node, as a machine that loses its power."""
        node, self.nodes[number] = self.nodes[number], None
        if node is None:
            return
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        if node in self._cluster.worker_nodes:
            self._cluster.worker_nodes.remove(node)

    def node_id(self, number: int) -> str:
        """Ray's name of a node."""
        return str(self.nodes[number].node_id)


def kill_process(pid: int) -> None:
    """Kill one process, which may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
