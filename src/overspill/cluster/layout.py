"""Where everything of a dataset in parts is: which part has a row, which machine serves a part.

Pure arithmetic over what was surveyed once; it pickles, and every process that reads has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from overspill.graph.reading.array_keys import Owner
from overspill.kernels.parts import find_hashed, find_ranges, sort_by_group
from overspill.storage.manifest import Manifest

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Machine:
    """A machine that serves parts: a node of Ray's.

    Attributes:
        node_id: Ray's name of the node, as of when the dataset was opened.
        address: Its network address.
        server: The name of the actor that serves its parts.
        parts: Their numbers.
        pinned: Whether the server must stay on this machine, which alone has the files.
    """

    node_id: str
    address: str
    server: str
    parts: tuple[int, ...]
    pinned: bool


@dataclass(frozen=True)
class PartArray:
    """What an array of the whole is in each part.

    Attributes:
        kind: "node" or "edge" for an array of a type; or the part of the layout "csc".
        owner: The type.
        name: The array's name, or the layout's part's.
    """

    kind: str
    owner: Owner
    name: str

    @property
    def of_nodes(self) -> bool:
        """Whether nodes number its rows: places of edges do else."""
        return isinstance(self.owner, str) or self.is_pointers

    @property
    def is_pointers(self) -> bool:
        """Whether it tells where the edges of each node are."""
        return self.kind == "csc" and self.name == "indptr"

    @property
    def numbered_by(self) -> Owner:
        """The type whose nodes or edges number its rows."""
        return self.owner[2] if self.is_pointers else self.owner


@dataclass(frozen=True)
class Layout:
    """A dataset in parts, and who serves it.

    Attributes:
        path: The partition's directory, on every machine that has a part.
        partition: Identifier of the partition.
        manifest: Of the whole, synthesised: what its records call paths are keys of `arrays`.
        arrays: What each array is in the parts.
        node_ends: By node type, int64 (parts,): how many nodes there are up to each part's end.
        edge_ends: By edge type, the same of edges; a part's edges follow those of the one before.
        hashed: Whether nodes are scattered by a hash; else parts are consecutive ranges.
        raw_ids: Whether nodes have raw ids other than their global ids.
        directories: Of each part, relative to `path`.
        identifiers: Of each part.
        machines: Those that serve.
        opened_by: Which process had them serve.
    """

    path: str
    partition: str
    manifest: Manifest
    arrays: dict[str, PartArray]
    node_ends: dict[str, Ids]
    edge_ends: dict[Owner, Ids]
    hashed: bool
    raw_ids: bool
    directories: tuple[str, ...]
    identifiers: tuple[str, ...]
    machines: tuple[Machine, ...]
    opened_by: str

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.directories)

    @cached_property
    def homes(self) -> Ids:
        """int64 (parts,): the number of the machine that serves each part."""
        homes = np.zeros(self.num_parts, np.int64)
        for number, machine in enumerate(self.machines):
            homes[list(machine.parts)] = number
        return homes

    def parts_of(self, owner: Owner, ids: Ids) -> npt.NDArray[np.uint32]:
        """The part of nodes by their global ids, or of edges by their global places.

        Args:
            owner: The node type, or the edge type.
            ids: int64 (ids,), contiguous, within the whole.
        """
        parts = np.empty(ids.size, np.uint32)
        if not isinstance(owner, str):
            find_ranges(ids, self.edge_ends[owner], parts)
        elif self.hashed:
            find_hashed(ids, self.num_parts, parts)
        else:
            find_ranges(ids, self.node_ends[owner], parts)
        return parts

    def only_part(self, owner: Owner, ids: Ids) -> int | None:
        """The part that has all of some nodes or edges, where two looks at the ids tell it."""
        if not ids.size or (self.hashed and isinstance(owner, str)):
            return None
        ends = self.ends_of(owner)
        part = int(np.searchsorted(ends, ids.min(), side="right"))
        return part if ids.max() < ends[part] else None

    def ends_of(self, owner: Owner) -> Ids:
        """How many nodes, or edges, of a type there are up to each part's end."""
        return self.node_ends[owner] if isinstance(owner, str) else self.edge_ends[owner]

    def first_edge(self, owner: Owner, part: int) -> int:
        """The place of a part's first edge."""
        return int(self.edge_ends[owner][part - 1]) if part else 0

    def first_node(self, owner: str, part: int) -> int:
        """The id of a part's first node, where parts are ranges."""
        return int(self.node_ends[owner][part - 1]) if part else 0


def groups_of(
    parts: npt.NDArray[np.uint32], group_of: Ids, count: int
) -> Iterator[tuple[int, Ids | None]]:
    """Positions by the group of their part, in order within each.

    Args:
        parts: The part of each position.
        group_of: int64, the group of each part.
        count: How many groups there are.

    Yields:
        A group that has any, and its positions; None for all of them.
    """
    if not parts.size:
        return
    first = int(group_of[parts[0]])
    if count == 1 or (parts == parts[0]).all():
        yield first, None
        return
    starts, order = np.zeros(count + 1, np.int64), np.empty(parts.size, np.int64)
    sort_by_group(parts, group_of, starts, order)
    for group in np.flatnonzero(np.diff(starts)).tolist():
        held = order[starts[group] : starts[group + 1]]
        yield group, None if held.size == parts.size else held
