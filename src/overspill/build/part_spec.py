"""What a build of one part is told: what was staged for it, and which part of which whole it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from overspill.storage.records import FileRecord


@dataclass(frozen=True, kw_only=True)
class StagedFile:
    """What one stager staged for one part.

    Attributes:
        path: The file.
        edges: Number of edges.
        blocks: Number of blocks.
        table: Where the table of the blocks begins.
        nbytes: Size of the file.
    """

    path: str
    edges: int
    blocks: int
    table: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class ReadyArray:
    """An array file that was made for a part elsewhere on its disk.

    Attributes:
        path: Where it lies.
        record: What it holds; its path is the place that it gets in the part.
    """

    path: str
    record: FileRecord


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """Rows that were staged for a part, one for each input edge that is among those staged for it.

    Attributes:
        dtype: A name of `STORED_DTYPES`.
        row_shape: Shape of one row.
        paths: Files of nothing but rows, in the order of the input.
        counts: Rows of each.
    """

    dtype: str
    row_shape: tuple[int, ...]
    paths: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PartNodeSpec:
    """The nodes of one type that a part has.

    Attributes:
        count: How many.
        global_count: How many the whole has.
        first: Its nodes are this one and those after it; None: they are scattered by hash.
        arrays: Name -> its rows.
    """

    count: int
    global_count: int
    first: int | None = None
    arrays: dict[str, ReadyArray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartEdgeSpec:
    """The edges of one type and layout that a part has.

    Attributes:
        type: (source, relation, target).
        layout: "csc": those that enter its nodes; "csr": those that leave them.
        files: What was staged, in the order of the input.
        rows_read: Edges of the type in the whole input.
        wide: Whether records hold 8-byte ids.
        arrays: Name -> its rows.
        edge_ids: The id of each of these rows, increasing; None without arrays.
    """

    type: tuple[str, str, str]
    layout: str
    files: tuple[StagedFile, ...]
    rows_read: int
    wide: bool
    arrays: dict[str, StagedRows] = field(default_factory=dict)
    edge_ids: StagedRows | None = None


@dataclass(frozen=True, kw_only=True)
class PartSpec:
    """One part of a partition that is built where it will be.

    Attributes:
        partition: Identifier of the partition.
        index: The part's number, from 0.
        num_parts: How many parts there are.
        method: How nodes were given to parts.
        nodes: By type.
        edges: By type and layout.
        options: What the manifest says of the options of the build.
        sources: What it says of the inputs.
    """

    partition: str
    index: int
    num_parts: int
    method: str
    nodes: dict[str, PartNodeSpec]
    edges: tuple[PartEdgeSpec, ...]
    options: dict[str, Any] = field(default_factory=dict)
    sources: tuple[dict[str, Any], ...] = ()

    @classmethod
    def from_json(cls, held: dict[str, Any]) -> PartSpec:
        """Read what `dataclasses.asdict` and JSON made of one."""
        nodes = {
            name: PartNodeSpec(**node | {"arrays": _arrays_from(node["arrays"])})
            for name, node in held["nodes"].items()
        }
        edges = tuple(_edge_from(edge) for edge in held["edges"])
        return cls(**held | {"nodes": nodes, "edges": edges, "sources": tuple(held["sources"])})


def _edge_from(held: dict[str, Any]) -> PartEdgeSpec:
    ids = held["edge_ids"]
    return PartEdgeSpec(
        **held
        | {
            "type": tuple(held["type"]),
            "files": tuple(StagedFile(**file) for file in held["files"]),
            "arrays": {name: _rows_from(rows) for name, rows in held["arrays"].items()},
            "edge_ids": None if ids is None else _rows_from(ids),
        }
    )


def _rows_from(held: dict[str, Any]) -> StagedRows:
    parts = {name: tuple(held[name]) for name in ("row_shape", "paths", "counts")}
    return StagedRows(dtype=held["dtype"], **parts)


def _arrays_from(held: dict[str, Any]) -> dict[str, ReadyArray]:
    return {
        name: ReadyArray(path=array["path"], record=FileRecord.from_json(array["record"]))
        for name, array in held.items()
    }
