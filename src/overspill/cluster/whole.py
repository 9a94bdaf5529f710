"""The manifest of the whole, put together from those of its parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from overspill.cluster.layout import Ids, PartArray
from overspill.errors import FormatError, InputError
from overspill.graph.reading.array_keys import Owner
from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord
from overspill.storage.records import FileRecord

_LAYOUT = "csc"


@dataclass(frozen=True)
class Whole:
    """What all parts are together; see `overspill.cluster.layout.Layout`."""

    manifest: Manifest
    arrays: dict[str, PartArray]
    node_ends: dict[str, Ids]
    edge_ends: dict[Owner, Ids]


def whole_of(partition: str, parts: Sequence[Manifest], path: str) -> Whole:
    """Put the manifests of all parts together.

    Arrays of the layout "csr" are left out: nothing that reads at random follows them.

    Args:
        partition: Identifier of the partition.
        parts: Manifests of the parts, in order.
        path: Where the partition is, for messages.

    Raises:
        FormatError: Parts that are not of one whole.
        InputError: No in-edges, layout "csc".
    """
    making = _Making(parts, path)
    first = parts[0]
    nodes = {name: making.node_type(name) for name in first.node_types}
    edges = {key: making.edge_type(key) for key in first.edge_types}
    manifest = Manifest(
        identifier=partition,
        node_types=nodes,
        edge_types=edges,
        options=dict(first.options),
        created=first.created,
        overspill_version=first.overspill_version,
    )
    return Whole(manifest, making.arrays, making.node_ends, making.edge_ends)


class _Making:
    def __init__(self, parts: Sequence[Manifest], path: str) -> None:
        self._parts, self._path = parts, path
        self.arrays: dict[str, PartArray] = {}
        self.node_ends: dict[str, Ids] = {}
        self.edge_ends: dict[Owner, Ids] = {}
        named = [(list(part.node_types), list(part.edge_types)) for part in parts]
        self._require(all(held == named[0] for held in named), "have other types")

    def node_type(self, name: str) -> NodeTypeRecord:
        """A node type of the whole."""
        held = [part.node_types[name] for part in self._parts]
        ends = np.cumsum([node.count for node in held], dtype=np.int64)
        self._require_ranges(name, ends)
        self.node_ends[name] = ends
        arrays = {
            array: self._whole(
                PartArray("node", name, array), [node.arrays.get(array) for node in held]
            )
            for array in held[0].arrays
        }
        return NodeTypeRecord(name, int(ends[-1]), arrays)

    def edge_type(self, key: tuple[str, str, str]) -> EdgeTypeRecord:
        """An edge type of the whole."""
        held = [part.edge_types[key] for part in self._parts]
        if _LAYOUT not in held[0].layouts:
            raise InputError(
                f"the parts in {self._path} have no layout {_LAYOUT!r} of edge type {key}, whose "
                "in-edges sampling follows",
                path=self._path,
                remedy='build the dataset with layout="csc", or with both, and partition it again',
            )
        ends = np.cumsum([edge.count for edge in held], dtype=np.int64)
        self.edge_ends[key] = ends
        layout = {
            part: self._whole(
                PartArray(_LAYOUT, key, part), [edge.layouts[_LAYOUT].get(part) for edge in held]
            )
            for part in held[0].layouts[_LAYOUT]
        }
        arrays = {
            name: self._whole(
                PartArray("edge", key, name),
                [edge.arrays.get(_LAYOUT, {}).get(name) for edge in held],
            )
            for name in held[0].arrays.get(_LAYOUT, {})
        }
        return EdgeTypeRecord(*key, int(ends[-1]), {_LAYOUT: layout}, {_LAYOUT: arrays})

    def _whole(self, array: PartArray, records: Sequence[FileRecord | None]) -> FileRecord:
        there = [record for record in records if record is not None]
        kinds = {(record.dtype, record.shape[1:]) for record in there}
        self._require(
            len(there) == len(records) and len(kinds) == 1, f"differ in {array.name} of its type"
        )
        rows = sum(record.shape[0] for record in there)
        if array.is_pointers:
            rows -= len(there) - 1
        owner = array.owner if isinstance(array.owner, str) else "|".join(array.owner)
        path = f"{array.kind} {owner} {array.name}"
        self.arrays[path] = array
        nbytes = sum(record.nbytes for record in there)
        return replace(
            there[0], path=path, shape=(rows, *there[0].shape[1:]), nbytes=nbytes, sha256=""
        )

    def _require_ranges(self, name: str, ends: Ids) -> None:
        """Hold what each part says of its nodes against the others."""
        firsts = itertools.chain([0], ends.tolist())
        for part, first in zip(self._parts, firsts, strict=False):
            nodes = part.partition.nodes[name] if part.partition is not None else None
            there = nodes is not None and nodes.first in (first, None)
            self._require(there, f"do not follow each other in {name!r}")
            assert nodes is not None
            self._require(nodes.global_count == int(ends[-1]), f"lack nodes of {name!r}")

    def _require(self, held: bool, problem: str) -> None:
        if not held:
            raise FormatError(
                f"the parts in {self._path} {problem}",
                path=self._path,
                remedy="partition the dataset again, or take all parts from one partition",
            )


def raw_ids_are_kept(parts: Iterable[Manifest]) -> bool:
    """Whether nodes have raw ids other than their global ids."""
    return any(
        node.ids is not None
        or (part.partition is not None and not part.partition.nodes[name].raw_ids)
        for part in parts
        for name, node in part.node_types.items()
    )
