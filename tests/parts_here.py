"""A dataset in parts on machines that are made up: their servers are plain objects of this process.

What goes through Ray is left out, and nothing else: requests are pickled on their way, as Ray
pickles them, and replies come read-only.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from overspill.cluster.connection import Connection, Link, Pending
from overspill.cluster.dataset import ClusterDataset
from overspill.cluster.layout import Layout, Machine
from overspill.cluster.part_server import PartServer
from overspill.cluster.parted_arrays import Reach
from overspill.cluster.warm import read_only
from overspill.cluster.whole import raw_ids_are_kept, whole_of
from overspill.storage.partition_survey import find_parts


class DirectConnection(Connection):
    """Asks servers that are objects.

    Attributes:
        asked: What was asked: machine, method, and the number of ids.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, 1.0)
        self.servers = [PartServer(layout, number) for number in range(len(layout.machines))]
        self.asked: list[tuple[int, str, int]] = []

    def send(self, machine: int, method: str, *arguments: Any) -> Pending:
        sent = pickle.loads(pickle.dumps(arguments))
        sizes = [held.size for held in sent if isinstance(held, np.ndarray)]
        self.asked.append((machine, method, sizes[0]))
        return Pending(machine, method, sent, 0.0, None)

    def receive(self, pending: Pending) -> Any:
        reply = getattr(self.servers[pending.machine], pending.method)(*pending.arguments)
        return read_only(reply) if isinstance(reply, np.ndarray) else reply


def parts_layout(directory: Path, homes: list[list[int]]) -> Layout:
    """The layout of a partition, each list of parts on a machine of its own."""
    found = find_parts(str(directory))
    assert found.partition is not None and not found.problems
    manifests = [found.parts[number] for number in range(len(found.partition.parts))]
    whole = whole_of(found.partition.identifier, manifests, str(directory))
    return Layout(
        path=str(directory),
        partition=found.partition.identifier,
        manifest=whole.manifest,
        arrays=whole.arrays,
        node_ends=whole.node_ends,
        edge_ends=whole.edge_ends,
        hashed=found.partition.method == "hash",
        raw_ids=raw_ids_are_kept(manifests),
        directories=tuple(part.path for part in found.partition.parts),
        identifiers=tuple(part.identifier for part in found.partition.parts),
        machines=tuple(
            Machine(f"node-{number}", f"10.0.0.{number}", f"server-{number}", tuple(parts), False)
            for number, parts in enumerate(homes)
        ),
        opened_by="a test",
    )


def opened_parts(
    directory: Path, homes: list[list[int]], *, here: int | None = 0
) -> tuple[ClusterDataset, DirectConnection]:
    """A partition opened as a dataset, and the way to its servers.

    Args:
        directory: The partition.
        homes: The parts of each machine.
        here: The machine whose parts are read in place.
    """
    layout = parts_layout(directory, homes)
    connection = DirectConnection(layout)
    link = Link(layout.path, layout.partition, "", "", (), 1.0)
    dataset = ClusterDataset(link)
    dataset._held = Reach(layout, connection, here)
    return dataset, connection


def dealt(num_parts: int, machines: int) -> list[list[int]]:
    """Parts dealt out to machines, one after the other."""
    return [list(range(number, num_parts, machines)) for number in range(machines)]
