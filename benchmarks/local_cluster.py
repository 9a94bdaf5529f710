"""A Ray cluster of several nodes on this machine, on loopback addresses of their own."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 160 << 20
# Nothing but the nodes themselves, so that what is measured is alone; set before Ray reads them.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}


def address_of(number: int) -> str:
    """The address of a node, counted from 0."""
    return f"127.0.0.{2 + number}"


def on_node(number: int) -> dict[str, float]:
    """Resources that put a task or an actor on a node: ``.options(resources=on_node(1))``."""
    return {f"node:{address_of(number)}": 0.001}


@contextmanager
def local_cluster(nodes: int, *, num_cpus: int = 1) -> Iterator[str]:
    """Nodes for the span, with this process as a driver on the first of them.

    Args:
        nodes: How many.
        num_cpus: Processors that each claims to have.

    Yields:
        The cluster's address.
    """
    with ExitStack() as stack:
        # A socket's path may have 107 bytes.
        place = tempfile.mkdtemp(prefix="ov-", dir="/tmp")
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        # Its address is left there too, for whoever looks for a cluster on this machine.
        stack.enter_context(mock.patch.dict(os.environ, _QUIET | {"RAY_TMPDIR": place}))
        arguments = {
            "num_cpus": num_cpus,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }
        sessions = Path(place) / "ray"
        sessions.mkdir()
        head = {"node_ip_address": address_of(0), "temp_dir": str(sessions)}
        cluster = Cluster(initialize_head=True, head_node_args=arguments | head)
        stack.callback(cluster.shutdown)
        for number in range(1, nodes):
            cluster.add_node(wait=False, node_ip_address=address_of(number), **arguments)
        cluster.wait_for_nodes()
        stack.callback(ray.shutdown)
        ray.init(
            address=cluster.address,
            _node_ip_address=address_of(0),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield str(cluster.address)
