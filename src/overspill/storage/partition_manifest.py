"""What a partitioned dataset is made of: its parts, and the book of each node type.

`partition.json` is written last, after the manifest of every part, and checked when it is opened
like a dataset's: format, version, and the size and header of each book.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overspill.errors import FormatError
from overspill.storage.json_files import publish_json, read_document
from overspill.storage.manifest import check_file
from overspill.storage.part_records import METHODS
from overspill.storage.records import FileRecord, require_inside
from overspill.storage.type_records import require_vector, whole_count

PARTITION_NAME = "partition.json"
FORMAT = "overspill-partition"
VERSION = 1
_TABLE_DTYPES = ("uint8", "uint16", "uint32")


@dataclass(frozen=True)
class PartEntry:
    """One part: a dataset of its own.

    Attributes:
        path: Its directory, relative to the partition.
        identifier: The identifier of its manifest.
    """

    path: str
    identifier: str


@dataclass(frozen=True)
class BookEntry:
    """The partition book of one node type.

    Attributes:
        count: Nodes of the type in the whole dataset.
        file: For ranges, int64 (num_parts,), where each ends, exclusive; by hash, the part of each
            node, (count,), in the narrowest unsigned dtype.
    """

    count: int
    file: FileRecord


@dataclass(frozen=True)
class PartitionManifest:
    """Everything that a partition says about itself.

    Attributes:
        identifier: 32 hex digits, the same each time that one dataset is partitioned in one way.
        whole: Identifier of the dataset that was partitioned.
        method: One of `METHODS`.
        parts: In order.
        books: By node type.
        created: UTC time, ISO 8601.
        overspill_version: The version that wrote it.
    """

    identifier: str
    whole: str
    method: str
    parts: list[PartEntry]
    books: dict[str, BookEntry] = field(default_factory=dict)
    created: str = ""
    overspill_version: str = ""

    def files(self) -> list[FileRecord]:
        """The books' files; those of the parts are in the manifests of these."""
        return [book.file for book in self.books.values()]


def publish_partition(directory: Path, manifest: PartitionManifest) -> None:
    """Write `partition.json` durably; the directory is a partition from the moment this returns.

    Raises:
        DiskRefusedError: The disk refused; there is no `partition.json`.
    """
    publish_json(directory / PARTITION_NAME, _encode(manifest))


def read_partition(directory: Path, *, check_files: bool = True) -> PartitionManifest:
    """Read `partition.json` and check, cheaply, that the books are as it says.

    Args:
        directory: The partition.
        check_files: Whether to hold size and header of each book against it.

    Raises:
        FormatError: No partition, a foreign or damaged document, or an unknown version.
        StaleFileError: A book is gone or has another size or header.
    """
    path = directory / PARTITION_NAME
    try:
        manifest = read_document(path, _decode, form=FORMAT, version=VERSION)
    except OSError as error:
        raise FormatError(
            f"{directory} is not an Overspill partition: {PARTITION_NAME}: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="make it with partition_dataset; an interrupted one starts over",
        ) from error
    for record in manifest.files() if check_files else ():
        check_file(directory, record)
    return manifest


def _encode(manifest: PartitionManifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "identifier": manifest.identifier,
        "whole": manifest.whole,
        "created": manifest.created,
        "overspill_version": manifest.overspill_version,
        "method": manifest.method,
        "books": {
            name: {"count": book.count, "file": book.file.to_json()}
            for name, book in manifest.books.items()
        },
        "parts": [{"path": part.path, "identifier": part.identifier} for part in manifest.parts],
    }


def _decode(held: dict[str, Any]) -> PartitionManifest:
    manifest = PartitionManifest(
        identifier=str(held["identifier"]),
        whole=str(held["whole"]),
        method=str(held["method"]),
        parts=[PartEntry(str(part["path"]), str(part["identifier"])) for part in held["parts"]],
        books={
            name: BookEntry(whole_count(book["count"]), FileRecord.from_json(book["file"]))
            for name, book in held["books"].items()
        },
        created=str(held["created"]),
        overspill_version=str(held["overspill_version"]),
    )
    if manifest.method not in METHODS or not manifest.parts:
        raise ValueError(f"{len(manifest.parts)} parts by {manifest.method!r}")
    for part in manifest.parts:
        require_inside(part.path)
    for book in manifest.books.values():
        if manifest.method == "hash":
            require_vector(book.file, _TABLE_DTYPES, book.count)
        else:
            require_vector(book.file, ("int64",), len(manifest.parts))
    return manifest
