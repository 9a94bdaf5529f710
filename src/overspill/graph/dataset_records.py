"""What a dataset's manifest says, looked up by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from overspill.errors import InputError
from overspill.graph.sampling.spec import EdgeType
from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord
from overspill.storage.records import FileRecord

_Record = TypeVar("_Record")
_Key = TypeVar("_Key")


class DatasetRecords:
    """The types, arrays and counts of a dataset.

    Attributes:
        path: The dataset's directory, absolute.
        manifest: What the dataset says about itself.
    """

    path: Path
    manifest: Manifest

    @property
    def node_types(self) -> list[str]:
        """Names of the node types."""
        return list(self.manifest.node_types)

    @property
    def edge_types(self) -> list[EdgeType]:
        """(source, relation, target) of the edge types."""
        return list(self.manifest.edge_types)

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(node.count for node in self.manifest.node_types.values())

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(edge.count for edge in self.manifest.edge_types.values())

    def feature_names(self, type: str | None = None) -> list[str]:
        """Names of the arrays of a node type; `type` may be left out where there is one only."""
        return list(self.node_record(type).arrays)

    def edge_feature_names(
        self, edge_type: EdgeType | None = None, *, layout: str = "csc"
    ) -> list[str]:
        """Names of the arrays of an edge type, as the edges of a layout have them."""
        self._layout(edge_type, layout)
        return list(self.edge_record(edge_type).arrays.get(layout, {}))

    def node_record(self, type: str | None = None) -> NodeTypeRecord:
        """What the manifest says of a node type; it may be left out where there is one only."""
        return _chosen(self.manifest.node_types, type, "node type")

    def node_name(self, type: str | None = None) -> str:
        """The name of a node type that may have been left out."""
        return self.node_record(type).name

    def edge_record(self, edge_type: EdgeType | None = None) -> EdgeTypeRecord:
        """What the manifest says of an edge type; it may be left out where there is one only."""
        return _chosen(self.manifest.edge_types, edge_type, "edge type")

    def _feature(self, name: str, type: str | None) -> FileRecord:
        node = self.node_record(type)
        return named_array(node.arrays, name, of=f"node type {node.name!r}", path=self.path)

    def _edge_feature(self, name: str, edge_type: EdgeType | None, layout: str) -> FileRecord:
        self._layout(edge_type, layout)
        edge = self.edge_record(edge_type)
        held = edge.arrays.get(layout, {})
        return named_array(held, name, of=f"edge type {edge.key}", path=self.path)

    def _layout(self, edge_type: EdgeType | None, layout: str) -> dict[str, FileRecord]:
        edge = self.edge_record(edge_type)
        if layout not in edge.layouts:
            raise InputError(
                f"edge type {edge.key} has no layout {layout!r}",
                path=str(self.path),
                remedy=f"one of: {', '.join(edge.layouts)}; build_dataset(layout=...) decides",
            )
        return edge.layouts[layout]


def named_array(
    held: Mapping[str, FileRecord], name: str, *, of: str, path: str | Path
) -> FileRecord:
    """One of a type's arrays by its name; InputError where there is none.

    Args:
        held: The type's arrays.
        name: The name.
        of: What to call the type.
        path: The dataset's directory.
    """
    if name not in held:
        raise InputError(
            f"{of} has no array {name!r}",
            path=str(path),
            value=str(name),
            remedy=f"one of: {', '.join(held) or '(it has none)'}",
        )
    return held[name]


def _chosen(held: dict[_Key, _Record], wanted: _Key | None, what: str) -> _Record:
    if wanted is None and len(held) == 1:
        return next(iter(held.values()))
    if wanted not in held:
        problem = f"no {what} was named" if wanted is None else f"there is no {what} {wanted!r}"
        raise InputError(problem, remedy=f"one of: {', '.join(map(str, held)) or '(none)'}")
    return held[wanted]
