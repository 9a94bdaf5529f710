"""The manifest of a dataset: what it holds, written last, checked at every open.

A directory without a manifest is an unfinished build and is never opened as data. Opening checks
format, version, and the size and header of each file, which takes milliseconds and touches no
payload page; checksums are for `verify_checksums`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overspill.errors import DiskRefusedError, FormatError, StaleFileError
from overspill.storage.arrays import read_array_info, sync_directory
from overspill.storage.records import FileRecord as FileRecord

MANIFEST_NAME = "manifest.json"
FORMAT = "overspill-dataset"
VERSION = 1
EdgeName = tuple[str, str, str]
_LARGEST_MANIFEST = 64 << 20


@dataclass(frozen=True)
class NodeTypeRecord:
    """One node type.

    Attributes:
        name: Its name.
        count: Number of nodes.
        arrays: One file a named array, its first axis the nodes.
        ids: int64 (count,), strictly increasing: the raw id of each dense id; None when ids were
            dense already.
    """

    name: str
    count: int
    arrays: dict[str, FileRecord] = field(default_factory=dict)
    ids: FileRecord | None = None


@dataclass(frozen=True)
class EdgeTypeRecord:
    """One edge type.

    Attributes:
        source: Node type that the edges leave.
        relation: Name of the relation.
        target: Node type that the edges enter.
        count: Number of edges.
        layouts: Layout -> part -> file, for example ``{"csc": {"indptr": ..., "indices": ...}}``.
    """

    source: str
    relation: str
    target: str
    count: int
    layouts: dict[str, dict[str, FileRecord]] = field(default_factory=dict)

    @property
    def key(self) -> EdgeName:
        """(source, relation, target)."""
        return self.source, self.relation, self.target


@dataclass(frozen=True)
class Manifest:
    """Everything that a dataset says about itself.

    Attributes:
        identifier: Random, 32 hex digits: tells two datasets at one path apart.
        node_types: By name.
        edge_types: By (source, relation, target).
        options: The build's options, as JSON.
        sources: What it was built from: path and size of each input.
        created: UTC time, ISO 8601.
        overspill_version: The version that wrote it.
    """

    identifier: str
    node_types: dict[str, NodeTypeRecord]
    edge_types: dict[EdgeName, EdgeTypeRecord]
    options: dict[str, Any] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)
    created: str = ""
    overspill_version: str = ""

    def files(self) -> list[FileRecord]:
        """Every array file of the dataset."""
        found: list[FileRecord] = []
        for node in self.node_types.values():
            found += [*node.arrays.values(), *([node.ids] if node.ids else [])]
        for edge in self.edge_types.values():
            found += [record for parts in edge.layouts.values() for record in parts.values()]
        return found


def publish_manifest(directory: str | Path, manifest: Manifest) -> None:
    """Write the manifest durably; the directory is a dataset from the moment this returns.

    Temporary name, fsync, rename, fsync of the directory: a crash leaves either no manifest or all
    of it.

    Raises:
        DiskRefusedError: The disk refused; no manifest is left.
    """
    target = Path(directory) / MANIFEST_NAME
    partial = written = target.with_name(MANIFEST_NAME + ".partial")
    text = json.dumps(_encode(manifest), indent=1).encode() + b"\n"
    try:
        with partial.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written = partial.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        written.unlink(missing_ok=True)
        raise DiskRefusedError(
            f"the disk refused {target}: {error.strerror}", path=str(target), errno=error.errno
        ) from error


def read_manifest(directory: str | Path, *, check_files: bool = True) -> Manifest:
    """Read a manifest and check, cheaply, that the dataset's files are as it says.

    Args:
        directory: The dataset.
        check_files: Whether to hold size and header of each file against the manifest; False is for
            who looks at each file anyway.

    Raises:
        FormatError: No dataset, a foreign or damaged manifest, or an unknown version.
        StaleFileError: A file of the dataset is gone or has another size or header.
    """
    path = Path(directory) / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_MANIFEST)
    except OSError as error:
        raise FormatError(
            f"{directory} is not an Overspill dataset: {MANIFEST_NAME}: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="build it with build_dataset; an interrupted build starts over",
        ) from error
    try:
        manifest = _decode(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} cannot be understood: {error}", path=str(path)) from error
    if check_files:
        for record in manifest.files():
            check_file(Path(directory), record)
    return manifest


def check_file(directory: Path, record: FileRecord) -> None:
    """Compare one file's size and header with its record, without reading its payload.

    Raises:
        StaleFileError: It is gone or differs.
        FormatError: Its header is damaged.
    """
    path = directory / record.path
    info = read_array_info(path)
    if (info.dtype, info.shape, info.nbytes) != (record.dtype, record.shape, record.nbytes):
        raise StaleFileError(
            f"{path} holds {info.dtype} {info.shape} where the manifest says "
            f"{record.dtype} {record.shape}",
            path=str(path),
            remedy="the file was replaced: build the dataset again",
        )


def _encode(manifest: Manifest) -> dict[str, Any]:
    nodes = {
        name: {
            "count": node.count,
            "arrays": {key: record.to_json() for key, record in node.arrays.items()},
            "ids": node.ids.to_json() if node.ids else None,
        }
        for name, node in manifest.node_types.items()
    }
    edges = [
        {
            "type": list(edge.key),
            "count": edge.count,
            "layouts": {
                layout: {part: record.to_json() for part, record in parts.items()}
                for layout, parts in edge.layouts.items()
            },
        }
        for edge in manifest.edge_types.values()
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "identifier": manifest.identifier,
        "created": manifest.created,
        "overspill_version": manifest.overspill_version,
        "node_types": nodes,
        "edge_types": edges,
        "options": manifest.options,
        "sources": manifest.sources,
    }


def _decode(held: dict[str, Any]) -> Manifest:
    if held["format"] != FORMAT:
        raise ValueError(f"its format is {held['format']!r}, not {FORMAT!r}")
    if held["version"] != VERSION:
        raise ValueError(f"its version is {held['version']!r}; this Overspill reads {VERSION}")
    nodes = {name: _decode_node(name, node) for name, node in held["node_types"].items()}
    edges = [_decode_edge(edge, nodes) for edge in held["edge_types"]]
    return Manifest(
        identifier=str(held["identifier"]),
        node_types=nodes,
        edge_types={edge.key: edge for edge in edges},
        options=dict(held["options"]),
        sources=list(held["sources"]),
        created=str(held["created"]),
        overspill_version=str(held["overspill_version"]),
    )


def _decode_node(name: str, held: dict[str, Any]) -> NodeTypeRecord:
    count = _count(held["count"])
    arrays = {key: FileRecord.from_json(value) for key, value in held["arrays"].items()}
    ids = None if held["ids"] is None else FileRecord.from_json(held["ids"])
    for record in arrays.values():
        if record.shape[:1] != (count,):
            raise ValueError(f"{record.path} has {record.shape} for {count} nodes of {name!r}")
    if ids is not None:
        _require_vector(ids, ("int64",), count)
    return NodeTypeRecord(name, count, arrays, ids)


def _decode_edge(held: dict[str, Any], nodes: dict[str, NodeTypeRecord]) -> EdgeTypeRecord:
    source, relation, target = (str(part) for part in held["type"])
    for name in (source, target):
        if name not in nodes:
            raise ValueError(f"an edge type has nodes of type {name!r}, which there is not")
    count = _count(held["count"])
    layouts = {
        layout: {part: FileRecord.from_json(value) for part, value in parts.items()}
        for layout, parts in held["layouts"].items()
    }
    if "csc" in layouts:
        _require_vector(layouts["csc"]["indptr"], ("int64",), nodes[target].count + 1)
        _require_vector(layouts["csc"]["indices"], ("int32", "int64"), count)
    return EdgeTypeRecord(source, relation, target, count, layouts)


def _require_vector(record: FileRecord, dtypes: tuple[str, ...], length: int) -> None:
    # The sampler follows these arrays without looking at their bounds.
    if record.dtype not in dtypes or record.shape != (length,):
        wanted = f"{' or '.join(dtypes)} ({length},)"
        raise ValueError(f"{record.path} is {record.dtype} {record.shape}, not {wanted}")


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"not a count: {value!r}")
    return value
