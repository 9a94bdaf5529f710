"""The manifest of a dataset: what it holds, written last, checked at every open.

A directory without a manifest is an unfinished build and is never opened as data. Opening checks
format, version, and the size and header of each file, which takes milliseconds and touches no
payload page; checksums are for `verify_checksums`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overspill.errors import FormatError, StaleFileError
from overspill.storage.arrays import read_array_info
from overspill.storage.json_files import publish_json, read_document
from overspill.storage.part_records import PartRecord as PartRecord
from overspill.storage.records import FileRecord as FileRecord
from overspill.storage.type_records import EdgeName as EdgeName
from overspill.storage.type_records import EdgeTypeRecord as EdgeTypeRecord
from overspill.storage.type_records import NodeTypeRecord as NodeTypeRecord

MANIFEST_NAME = "manifest.json"
UNFINISHED_NAME = ".overspill-build"  # what marks a directory until its manifest is there
FORMAT = "overspill-dataset"
VERSION = 2


@dataclass(frozen=True)
class Manifest:
    """Everything that a dataset says about itself.

    Attributes:
        identifier: 32 hex digits, the same for the same files: tells datasets at one path apart.
        node_types: By name.
        edge_types: By (source, relation, target).
        options: The build's options, as JSON.
        sources: What it was built from: path and size of each input.
        created: UTC time, ISO 8601.
        overspill_version: The version that wrote it.
        partition: Which part of which partition it is; None: a whole dataset.
    """

    identifier: str
    node_types: dict[str, NodeTypeRecord]
    edge_types: dict[EdgeName, EdgeTypeRecord]
    options: dict[str, Any] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)
    created: str = ""
    overspill_version: str = ""
    partition: PartRecord | None = None

    def files(self) -> list[FileRecord]:
        """Every array file of the dataset."""
        nodes = [record for node in self.node_types.values() for record in node.files()]
        edges = [record for edge in self.edge_types.values() for record in edge.files()]
        return nodes + edges + ([] if self.partition is None else list(self.partition.files()))


def publish_manifest(directory: str | Path, manifest: Manifest) -> None:
    """Write the manifest durably; the directory is a dataset from the moment this returns.

    Temporary name, fsync, rename, fsync of the directory: a crash leaves either no manifest or all
    of it.

    Raises:
        DiskRefusedError: The disk refused; no manifest is left.
    """
    publish_json(Path(directory) / MANIFEST_NAME, _encode(manifest))


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
        manifest = read_document(path, _decode, form=FORMAT, version=VERSION)
    except OSError as error:
        raise _no_manifest(Path(directory), error) from error
    if check_files:
        for record in manifest.files():
            check_file(Path(directory), record)
    return manifest


def _no_manifest(directory: Path, error: OSError) -> FormatError:
    """Say what there is instead of a dataset."""
    remedy, path = "build it with build_dataset, or check the path", directory
    # Not pathlib: it raises where a directory may not be searched.
    if os.path.lexists(directory / UNFINISHED_NAME):
        told = f"{directory} holds an unfinished build"
        remedy = "build it with build_dataset: the same call starts over, or resumes (resume=True)"
    elif os.path.lexists(directory / "partition.json"):
        told = f"{directory} holds a partition, not one dataset"
        remedy = (
            "open it with open_partition or overspill.cluster.open_dataset, or one of its parts"
        )
    elif error.errno == errno.ENOENT and not os.path.lexists(directory):
        told = f"{directory} does not exist"
    elif error.errno == errno.ENOTDIR:
        told = f"{directory} is a file; an Overspill dataset is a directory"
    elif error.errno in (errno.EACCES, errno.EPERM):
        told = f"{directory} cannot be read: {error.strerror}"
        remedy = "read it as a user who may, or check the path"
    else:
        told = f"{directory} is not an Overspill dataset: {MANIFEST_NAME}: {error.strerror}"
        path = directory / MANIFEST_NAME
    return FormatError(told, path=str(path), errno=error.errno, remedy=remedy)


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
    return {
        "format": FORMAT,
        "version": VERSION,
        "identifier": manifest.identifier,
        "created": manifest.created,
        "overspill_version": manifest.overspill_version,
        "node_types": {name: node.to_json() for name, node in manifest.node_types.items()},
        "edge_types": [edge.to_json() for edge in manifest.edge_types.values()],
        "partition": manifest.partition and manifest.partition.to_json(),
        "options": manifest.options,
        "sources": manifest.sources,
    }


def _decode(held: dict[str, Any]) -> Manifest:
    nodes = {n: NodeTypeRecord.from_json(n, node) for n, node in held["node_types"].items()}
    edges = [EdgeTypeRecord.from_json(edge, nodes) for edge in held["edge_types"]]
    part = held.get("partition")
    return Manifest(
        identifier=str(held["identifier"]),
        node_types=nodes,
        edge_types={edge.key: edge for edge in edges},
        options=dict(held["options"]),
        sources=list(held["sources"]),
        created=str(held["created"]),
        overspill_version=str(held["overspill_version"]),
        partition=None if part is None else PartRecord.from_json(part, nodes),
    )
