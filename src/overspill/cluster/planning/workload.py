"""What is planned for: a graph, machines, and how batches are sampled; checked at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from overspill.errors import InputError
from overspill.units import parse_bytes

NARROW_NODES = 2**31 - 1
MOST_NODES = 2**48
# Of a million nodes or more people seldom have labels for all.
_SEEDS_SHARE = 100


class PlanOptions(TypedDict, total=False):
    """What may be said beside the size of the graph; see `plan` for what each of them means."""

    parts: int | None
    input_edge_bytes: int
    build_memory: str | int | None
    num_neighbors: Sequence[int]
    batch_size: int
    seeds: float | None
    workers: int
    local_share: float | None
    shared_disk: bool
    rows_everywhere: bool


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A graph and the machines that build and sample it. Sizes of a machine are of each of them.

    Attributes:
        nodes: Nodes of the whole graph.
        edges: Its edges.
        feature_bytes: Bytes of all node arrays, a node.
        machines: How many.
        memory_bytes: Memory that the work may use, a machine.
        parts: Parts of the dataset.
        input_edge_bytes: Bytes of the edge files, an edge: 16 of int64 pairs in a .npy file.
        build_memory_bytes: `memory_limit` of the build; None: what the machine has.
        num_neighbors: One fan-out a hop; -1 for all.
        batch_size: Seeds a batch.
        seeds: Seeds an epoch, of all machines together.
        workers: Loader workers a machine.
        local_share: Share of the neighbours that lie on the machine of their node.
        shared_disk: Whether all machines see one file system.
        rows_everywhere: Whether each has the files of node arrays, not one machine alone.
    """

    nodes: int
    edges: int
    feature_bytes: int
    machines: int
    memory_bytes: int
    parts: int
    input_edge_bytes: int
    build_memory_bytes: int | None
    num_neighbors: tuple[int, ...]
    batch_size: int
    seeds: int
    workers: int
    local_share: float
    shared_disk: bool
    rows_everywhere: bool

    @property
    def id_bytes(self) -> int:
        """Bytes of an id on disk."""
        return 4 if self.nodes <= NARROW_NODES else 8

    @property
    def degree(self) -> float:
        """Mean number of in-edges of a node."""
        return self.edges / self.nodes

    @property
    def parts_a_machine(self) -> int:
        """Parts of the machine that has the most."""
        return -(-self.parts // self.machines)

    @property
    def load(self) -> float:
        """Share of the graph on the machine that has the most: nodes and edges spread evenly."""
        return self.parts_a_machine / self.parts

    @property
    def nodes_a_machine(self) -> int:
        """Nodes of the machine that has the most."""
        return min(self.nodes, self.parts_a_machine * -(-self.nodes // self.parts))

    @property
    def edges_a_machine(self) -> int:
        """Edges of the machine that has the most."""
        return math.ceil(self.edges * self.load)


def workload_of(
    nodes: float,
    edges: float,
    *,
    feature_bytes: int,
    machines: int,
    memory: str | int,
    options: PlanOptions,
) -> Workload:
    """Understand what a caller says.

    Raises:
        InputError: A number is none, too small or too large; names it.
    """
    count = _whole("nodes", nodes, least=1, most=MOST_NODES)
    among = _whole("machines", machines, least=1)
    fan_outs = tuple(_whole("num_neighbors", fan, least=-1) for fan in _fans(options))
    seeds = options.get("seeds")
    parts = options.get("parts")
    share, limit = options.get("local_share"), options.get("build_memory")
    return Workload(
        nodes=count,
        edges=_whole("edges", edges, least=0),
        feature_bytes=_whole("feature_bytes", feature_bytes, least=0),
        machines=among,
        memory_bytes=_size("memory", memory),
        parts=among if parts is None else _whole("parts", parts, least=1),
        input_edge_bytes=_whole("input_edge_bytes", options.get("input_edge_bytes", 16), least=1),
        build_memory_bytes=None if limit is None else _size("build_memory", limit),
        num_neighbors=fan_outs,
        batch_size=_whole("batch_size", options.get("batch_size", 1024), least=1),
        seeds=-(-count // _SEEDS_SHARE) if seeds is None else _whole("seeds", seeds, least=1),
        workers=_whole("workers", options.get("workers", 2), least=1),
        local_share=1 / among if share is None else _share("local_share", share),
        shared_disk=bool(options.get("shared_disk", False)),
        rows_everywhere=bool(options.get("rows_everywhere", False)),
    )


def _fans(options: PlanOptions) -> Sequence[int]:
    fans = options.get("num_neighbors", (15, 10, 5))
    if not fans:
        raise InputError("num_neighbors names no hop", remedy="give one fan-out a hop")
    return fans


def _whole(name: str, value: float, *, least: int, most: int | None = None) -> int:
    """A whole number, also such as 1e9."""
    whole = isinstance(value, int | float) and math.isfinite(value) and value == int(value)
    if isinstance(value, bool) or not whole or value < least or (most and value > most):
        range_ = f"from {least:,} on" if most is None else f"from {least:,} to {most:,}"
        raise InputError(
            f"{name}={value!r} is no whole number {range_}",
            value=str(value),
            remedy=f"give {name} as a whole number, such as 1000 or 1e9",
        )
    return int(value)


def _size(name: str, value: str | int) -> int:
    try:
        size = parse_bytes(value)
    except ValueError as error:
        raise InputError(
            f"{name}={value!r} is not a size",
            value=str(value),
            remedy=f'give {name} such as "64GiB"',
        ) from error
    if size < 1:
        raise InputError(f"{name}={value!r} is nothing", remedy=f'give {name} such as "64GiB"')
    return size


def _share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(
            f"{name}={value!r} is no share", value=str(value), remedy="give one from 0 to 1"
        )
    return float(value)
