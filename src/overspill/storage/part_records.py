"""What the manifest of a part says: which part it is, and which nodes of the whole it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from overspill.storage.records import FileRecord
from overspill.storage.type_records import NodeTypeRecord, require_vector, whole_count

METHODS = ("range", "hash", "degree-balanced")
_ID_DTYPES = ("int32", "int64")


@dataclass(frozen=True)
class PartNodes:
    """Which nodes of one type a part has; exactly one of `first` and `ids` says it.

    Attributes:
        global_count: Nodes of the type in the whole dataset.
        first: Its nodes are this one and those after it.
        ids: int32 or int64 (count,), strictly increasing: the id in the whole of each node.
        raw_ids: Whether the part knows the raw ids of its nodes; of nodes that were renumbered
            they are kept with the whole dataset alone.
    """

    global_count: int
    first: int | None = None
    ids: FileRecord | None = None
    raw_ids: bool = True

    def to_json(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return {
            "global_count": self.global_count,
            "first": self.first,
            "ids": self.ids and self.ids.to_json(),
            "raw_ids": self.raw_ids,
        }

    @classmethod
    def from_json(cls, held: dict[str, Any], node: NodeTypeRecord) -> PartNodes:
        """Read a record, trusting nothing: ValueError or another plain error where it is wrong."""
        nodes = cls(
            whole_count(held["global_count"]),
            None if held["first"] is None else whole_count(held["first"]),
            None if held["ids"] is None else FileRecord.from_json(held["ids"]),
            held["raw_ids"],
        )
        what = f"the nodes of type {node.name!r} in a part"
        if (nodes.first is None) == (nodes.ids is None) or type(nodes.raw_ids) is not bool:
            raise ValueError(f"{what} are told by a first one or by their ids: {held!r}")
        if (nodes.first or 0) + node.count > nodes.global_count:
            raise ValueError(f"{what} are more than there are: {held!r}")
        if nodes.ids is not None:
            require_vector(nodes.ids, _ID_DTYPES, node.count)
        return nodes


@dataclass(frozen=True)
class PartRecord:
    """Which part of which partition a dataset is.

    A part has its own nodes and the rows of edges that belong to them, numbered from 0 in the order
    of their ids in the whole; its ``indices`` are ids in the whole, for neighbours may be anywhere.

    Attributes:
        partition: Identifier of the partition.
        index: The part's number, from 0.
        num_parts: How many parts there are.
        method: One of `METHODS`.
        nodes: By node type.
    """

    partition: str
    index: int
    num_parts: int
    method: str
    nodes: dict[str, PartNodes] = field(default_factory=dict)

    def files(self) -> Iterator[FileRecord]:
        """Every array file that the record names."""
        for nodes in self.nodes.values():
            if nodes.ids is not None:
                yield nodes.ids

    def to_json(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return {
            "partition": self.partition,
            "index": self.index,
            "num_parts": self.num_parts,
            "method": self.method,
            "nodes": {name: nodes.to_json() for name, nodes in self.nodes.items()},
        }

    @classmethod
    def from_json(cls, held: dict[str, Any], types: Mapping[str, NodeTypeRecord]) -> PartRecord:
        """Read a record, trusting nothing: ValueError or another plain error where it is wrong."""
        part = cls(
            str(held["partition"]),
            whole_count(held["index"]),
            whole_count(held["num_parts"]),
            str(held["method"]),
            {name: PartNodes.from_json(held["nodes"][name], node) for name, node in types.items()},
        )
        if part.index >= part.num_parts or part.method not in METHODS:
            raise ValueError(
                f"there is no part {part.index} of {part.num_parts} by {part.method!r}"
            )
        if set(held["nodes"]) != set(types):
            raise ValueError(f"the part's node types are {sorted(types)}, not {sorted(part.nodes)}")
        return part
