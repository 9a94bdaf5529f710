"""What the manifest says of one node type and of one edge type: their files and what must fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from overspill.storage.records import FileRecord

EdgeName = tuple[str, str, str]
Files = dict[str, FileRecord]
_INDEX_DTYPES = ("int32", "int64")
# The parts that a layout holds beside indptr, and what each may be.
_EDGE_PARTS = {"indices": _INDEX_DTYPES, "edge_ids": _INDEX_DTYPES, "counts": ("int64",)}


@dataclass(frozen=True)
class NodeTypeRecord:
    """One node type.

    Attributes:
        name: Its name.
        count: Number of nodes.
        arrays: One file a named array, its first axis the nodes.
        ids: int64 (count,), strictly increasing: the raw id of each node as it was numbered at
            first, or, where ids are text, the keyed hash of its id; None when ids were dense.
        texts: For ids that are text, "offsets", int64 (count + 1,), and "data", uint8 (bytes,):
            the ids as UTF-8, one after another, in the order of `ids`; else None.
        salt: Key of the hash; 0 without texts.
        original: int32 or int64 (count,): where nodes were renumbered, the first number of each;
            it then leads to its raw id. None where they keep their first numbers.
        renumbered: int32 or int64 (count,): its inverse, from the first number to the node.
        notes: What the build counted about these nodes, by name.
    """

    name: str
    count: int
    arrays: Files = field(default_factory=dict)
    ids: FileRecord | None = None
    texts: Files | None = None
    salt: int = 0
    original: FileRecord | None = None
    renumbered: FileRecord | None = None
    notes: dict[str, int] = field(default_factory=dict)

    def files(self) -> Iterator[FileRecord]:
        """Every array file of the type."""
        yield from self.arrays.values()
        yield from (self.texts or {}).values()
        for record in (self.ids, self.original, self.renumbered):
            if record is not None:
                yield record

    def to_json(self) -> dict[str, Any]:
        """The record as JSON holds it, without the name."""
        return {
            "count": self.count,
            "arrays": _to_json(self.arrays),
            "ids": self.ids and self.ids.to_json(),
            "texts": None if self.texts is None else _to_json(self.texts),
            "salt": self.salt,
            "original": self.original and self.original.to_json(),
            "renumbered": self.renumbered and self.renumbered.to_json(),
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, name: str, held: dict[str, Any]) -> NodeTypeRecord:
        """Read a record, trusting nothing: ValueError or another plain error where it is wrong."""
        node = cls(
            name,
            whole_count(held["count"]),
            _files_from(held["arrays"]),
            _file_from(held["ids"]),
            None if held["texts"] is None else _files_from(held["texts"]),
            whole_count(held["salt"]),
            _file_from(held["original"]),
            _file_from(held["renumbered"]),
            _notes_from(held),
        )
        node._require_fit()
        return node

    def _require_fit(self) -> None:
        _require_first_axis(self.arrays, self.count, f"nodes of {self.name!r}")
        if self.ids is not None:
            require_vector(self.ids, ("int64",), self.count)
        if self.texts is not None:
            self._require_texts(self.texts)
        elif self.salt:
            raise ValueError(f"node type {self.name!r} has a salt and no texts")
        if (self.original is None) != (self.renumbered is None):
            raise ValueError(f"node type {self.name!r} is renumbered one way only")
        for record in (self.original, self.renumbered):
            if record is not None:
                require_vector(record, _INDEX_DTYPES, self.count)

    def _require_texts(self, texts: Files) -> None:
        if self.ids is None or set(texts) != {"offsets", "data"}:
            raise ValueError(f"the texts of node type {self.name!r} are not whole: {list(texts)}")
        require_vector(texts["offsets"], ("int64",), self.count + 1)
        data = texts["data"]
        if data.dtype != "uint8" or len(data.shape) != 1:
            raise ValueError(f"{data.path} is {data.dtype} {data.shape}, not a row of uint8")


@dataclass(frozen=True)
class EdgeTypeRecord:
    """One edge type.

    Attributes:
        source: Node type that the edges leave.
        relation: Name of the relation.
        target: Node type that the edges enter.
        count: Number of edges.
        layouts: Layout ("csc" by target, "csr" by source) -> part -> file: "indptr", int64 (nodes +
            1,); "indices", int32 or int64 (count,); where they are kept, "edge_ids", int32 or
            int64 (count,), and "counts", int64 (count,).
        arrays: Layout -> name -> file, its first axis the edges in the order of that layout.
        notes: What the build counted about these edges, by name.
        out_count: In a part of a dataset with both layouts, the number of edges in "csr": it has
            the in-edges of its nodes in one and their out-edges in the other. None: `count`.
    """

    source: str
    relation: str
    target: str
    count: int
    layouts: dict[str, Files] = field(default_factory=dict)
    arrays: dict[str, Files] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    out_count: int | None = None

    @property
    def key(self) -> EdgeName:
        """(source, relation, target)."""
        return self.source, self.relation, self.target

    def count_in(self, layout: str) -> int:
        """Number of edges in a layout."""
        return self.count if layout != "csr" or self.out_count is None else self.out_count

    def files(self) -> Iterator[FileRecord]:
        """Every array file of the type."""
        for held in (*self.layouts.values(), *self.arrays.values()):
            yield from held.values()

    def to_json(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return {
            "type": list(self.key),
            "count": self.count,
            "layouts": {layout: _to_json(parts) for layout, parts in self.layouts.items()},
            "arrays": {layout: _to_json(held) for layout, held in self.arrays.items()},
            "notes": self.notes,
            "out_count": self.out_count,
        }

    @classmethod
    def from_json(cls, held: dict[str, Any], nodes: dict[str, NodeTypeRecord]) -> EdgeTypeRecord:
        """Read a record, trusting nothing: ValueError or another plain error where it is wrong."""
        source, relation, target = (str(part) for part in held["type"])
        edge = cls(
            source,
            relation,
            target,
            whole_count(held["count"]),
            {layout: _files_from(parts) for layout, parts in held["layouts"].items()},
            {layout: _files_from(arrays) for layout, arrays in held["arrays"].items()},
            _notes_from(held),
            None if held.get("out_count") is None else whole_count(held["out_count"]),
        )
        edge._require_fit(nodes)
        return edge

    def _require_fit(self, nodes: dict[str, NodeTypeRecord]) -> None:
        for name in (self.source, self.target):
            if name not in nodes:
                raise ValueError(f"an edge type has nodes of type {name!r}, which there is not")
        rows = {"csc": nodes[self.target].count, "csr": nodes[self.source].count}
        for layout, parts in self.layouts.items():
            require_vector(parts["indptr"], ("int64",), rows[layout] + 1)
            for part in {"indices", *parts} - {"indptr"}:
                require_vector(parts[part], _EDGE_PARTS[part], self.count_in(layout))
        for layout, arrays in self.arrays.items():
            if layout not in self.layouts:
                raise ValueError(f"edge arrays are in the order of {layout!r}, which there is not")
            _require_first_axis(arrays, self.count_in(layout), f"edges of {self.key}")


def whole_count(value: Any) -> int:
    """A count as JSON holds it; ValueError for anything else."""
    if type(value) is not int or value < 0:
        raise ValueError(f"not a count: {value!r}")
    return value


def require_vector(record: FileRecord, dtypes: tuple[str, ...], length: int) -> None:
    """Refuse an array of another dtype or length (ValueError)."""
    # The sampler follows these arrays without looking at their bounds.
    if record.dtype not in dtypes or record.shape != (length,):
        wanted = f"{' or '.join(dtypes)} ({length},)"
        raise ValueError(f"{record.path} is {record.dtype} {record.shape}, not {wanted}")


def _require_first_axis(arrays: Files, count: int, what: str) -> None:
    for record in arrays.values():
        if record.shape[:1] != (count,):
            raise ValueError(f"{record.path} has {record.shape} for {count} {what}")


def _to_json(files: Files) -> dict[str, Any]:
    return {name: record.to_json() for name, record in files.items()}


def _files_from(held: dict[str, Any]) -> Files:
    return {name: FileRecord.from_json(value) for name, value in held.items()}


def _file_from(held: Any) -> FileRecord | None:
    return None if held is None else FileRecord.from_json(held)


def _notes_from(held: dict[str, Any]) -> dict[str, int]:
    return {name: whole_count(value) for name, value in held["notes"].items()}
