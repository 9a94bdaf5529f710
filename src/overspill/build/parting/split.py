"""A dataset split into parts: which node goes where, and then one file after another.

Bottleneck: the device: every file of the dataset is read once (by hash, once for each 64 parts, and
row ends once more for each file beside them), and written once. Memory and page cache: those of
`split_moves`. Limits: raw ids of nodes that were renumbered are not moved.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from overspill import __version__
from overspill.build.directory import BuildDirectory
from overspill.build.moving.row_ends import RowEnds
from overspill.build.parting.books import book_path, table_dtype, write_book
from overspill.build.parting.split_moves import (
    Stream,
    move,
    passes,
    stream_of,
    stream_of_ends,
    stream_of_ids,
)
from overspill.build.parting.split_owners import (
    HashOwners,
    Owners,
    RangeOwners,
    balanced_ranges,
    equal_ranges,
)
from overspill.build.parting.split_sinks import Sink
from overspill.build.progress import Event, Progress
from overspill.build.remedies import FREE_SPACE
from overspill.errors import DiskRefusedError, OutputDirError
from overspill.linux.mounts import filesystem_type, free_disk_bytes, is_memory_backed
from overspill.storage.manifest import (
    MANIFEST_NAME,
    EdgeTypeRecord,
    Manifest,
    NodeTypeRecord,
    PartRecord,
    publish_manifest,
)
from overspill.storage.part_records import PartNodes
from overspill.storage.partition_manifest import BookEntry, PartEntry, PartitionManifest
from overspill.storage.records import STORED_DTYPES, FileRecord, require_inside

Files = dict[str, FileRecord]
_FILE_ROOM_BYTES = 8192  # a header, and the rest of the last block
_NARROW_NODES = 2**31 - 1


@dataclass(frozen=True)
class _Nodes:
    """What became of one node type: one entry a part in each list."""

    counts: list[int]
    arrays: dict[str, list[FileRecord]]
    ids: list[FileRecord] | None
    texts: dict[str, list[FileRecord]] | None
    global_ids: list[FileRecord] | None


@dataclass(frozen=True)
class _Edges:
    """What became of one edge type: by layout, and one entry a part in each list."""

    counts: dict[str, list[int]] = field(default_factory=dict)
    layouts: dict[str, dict[str, list[FileRecord]]] = field(default_factory=dict)
    arrays: dict[str, dict[str, list[FileRecord]]] = field(default_factory=dict)


def split_dataset(
    source: Path,
    whole: Manifest,
    *,
    num_parts: int,
    method: str,
    directory: BuildDirectory,
    send: Callable[[Event], None],
) -> PartitionManifest:
    """Split a dataset into parts, each a dataset in a directory of its own.

    Args:
        source: The dataset's directory.
        whole: Its manifest.
        num_parts: How many parts.
        method: One of `METHODS`.
        directory: Where the parts go; to be published with what is returned.
        send: Receives progress events.

    Returns:
        What the directory then is; every file is complete, and every part's manifest published.

    Raises:
        OutputDirError: The directory lies in memory.
        DiskRefusedError: The disk has no room, or refused.
        FormatError: A file of the dataset is damaged.
        StaleFileError: A file of it is gone, was cut or replaced.
    """
    _require_no_memory(directory.path)
    split = _Split(source, whole, num_parts, method, directory)
    progress = Progress(send)
    split.require_disk()
    progress.begin("partition", split.read_bytes(), "B")
    manifest = split.run(progress)
    progress.end()
    return manifest


class _Split:
    def __init__(
        self, source: Path, whole: Manifest, num_parts: int, method: str, directory: BuildDirectory
    ) -> None:
        self._source, self._whole = source, whole
        self._num_parts, self._method = num_parts, method
        self._directory = directory
        self._owners = {name: self._owners_of(node) for name, node in whole.node_types.items()}
        self._progress: Progress | None = None

    def read_bytes(self) -> int:
        """Bytes that will be read, of the files that are moved."""
        most = max((passes(owners) for owners in self._owners.values()), default=1)
        return most * sum(record.nbytes for record in self._whole.files())

    def require_disk(self) -> None:
        """Refuse at once what the disk would refuse after hours."""
        whole = self._whole.files()
        needed = sum(record.nbytes for record in whole)
        needed += (len(whole) + 2) * self._num_parts * _FILE_ROOM_BYTES
        for name, owners in self._owners.items():
            if isinstance(owners, HashOwners):
                item = (
                    STORED_DTYPES[self._id_dtype(name)][1] + table_dtype(self._num_parts).itemsize
                )
                needed += owners.count * item
        free = free_disk_bytes(self._directory.path)
        if needed > free:
            raise DiskRefusedError(
                "the parts do not fit the disk",
                path=str(self._directory.path),
                errno=errno.ENOSPC,
                needed_bytes=needed,
                available_bytes=free,
                remedy=FREE_SPACE,
            )

    def run(self, progress: Progress) -> PartitionManifest:
        """Move every file, then publish the parts."""
        self._progress = progress
        nodes = {name: self._move_nodes(node) for name, node in self._whole.node_types.items()}
        edges = {key: self._move_edges(edge) for key, edge in self._whole.edge_types.items()}
        books = {
            name: BookEntry(owners.count, self._write_book(name, owners))
            for name, owners in self._owners.items()
        }
        places = [f"part-{part:05d}" for part in range(self._num_parts)]
        self._directory.files(
            f"{place}/{MANIFEST_NAME}{end}" for place in places for end in ("", ".partial")
        )
        created = datetime.now(UTC).isoformat(timespec="seconds")
        entries = []
        for part, place in enumerate(places):
            manifest = Manifest(
                self._identifier(str(part)),
                {
                    name: self._node_record(held, nodes[name], part)
                    for name, held in self._whole.node_types.items()
                },
                {
                    key: self._edge_record(edge, edges[key], part)
                    for key, edge in self._whole.edge_types.items()
                },
                options=self._whole.options,
                sources=self._whole.sources,
                created=created,
                overspill_version=__version__,
                partition=self._part_record(nodes, part),
            )
            publish_manifest(self._directory.path / place, manifest)
            entries.append(PartEntry(place, manifest.identifier))
        return PartitionManifest(
            self._identifier("partition"),
            self._whole.identifier,
            self._method,
            entries,
            books,
            created,
            __version__,
        )

    # Who owns what.

    def _owners_of(self, node: NodeTypeRecord) -> Owners:
        if self._method == "hash":
            return HashOwners(node.count, self._num_parts)
        if self._method == "range":
            return equal_ranges(node.count, self._num_parts)
        return balanced_ranges(node.count, self._num_parts, list(self._weights(node.name)))

    def _weights(self, name: str) -> Iterator[RowEnds]:
        """In-edges of the type; out-edges of edge types that are stored by their sources only."""
        for edge in self._whole.edge_types.values():
            layout = "csc" if "csc" in edge.layouts else "csr"
            if layout in edge.layouts and name == _row_type(edge, layout):
                yield self._row_ends(edge, layout)

    def _row_ends(self, edge: EdgeTypeRecord, layout: str) -> RowEnds:
        record = edge.layouts[layout]["indptr"]
        return RowEnds(self._source / record.path, record, edge.count_in(layout))

    # What is moved.

    def _move_nodes(self, node: NodeTypeRecord) -> _Nodes:
        owners = self._owners[node.name]
        counts, place = owners.nodes, f"nodes/{node.name}"

        def moved(name: str, stream: Stream, rows: list[int] = counts) -> list[FileRecord]:
            return self._move(f"{place}/{name}.safetensors", stream, owners, rows)

        arrays = {
            name: moved(f"arrays/{name}", self._stream(record))
            for name, record in node.arrays.items()
        }
        ids = texts = global_ids = None
        if isinstance(owners, HashOwners):
            stream = stream_of_ids(node.count, self._id_dtype(node.name))
            global_ids = moved("global_ids", stream)
        if node.ids is not None and node.original is None:
            ids = moved("ids", self._stream(node.ids))
            if node.texts is not None:
                offsets, data = node.texts["offsets"], node.texts["data"]
                ends = RowEnds(self._source / offsets.path, offsets, data.shape[0])
                texts = {
                    "offsets": moved("text_offsets", stream_of_ends(ends)),
                    "data": moved("texts", self._stream(data, ends), owners.edges(ends)),
                }
        return _Nodes(counts, arrays, ids, texts, global_ids)

    def _move_edges(self, edge: EdgeTypeRecord) -> _Edges:
        moved = _Edges()
        for layout, parts in edge.layouts.items():
            owners, ends = self._owners[_row_type(edge, layout)], self._row_ends(edge, layout)
            counts, place = owners.edges(ends), f"edges/{'/'.join(edge.key)}/{layout}"
            moved.counts[layout] = counts
            moved.layouts[layout] = {
                "indptr": self._move(
                    f"{place}/indptr.safetensors", stream_of_ends(ends), owners, owners.nodes
                )
            }
            for part, record in parts.items():
                if part != "indptr":
                    path = f"{place}/{part}.safetensors"
                    stream = self._stream(record, ends)
                    moved.layouts[layout][part] = self._move(path, stream, owners, counts)
            moved.arrays[layout] = {
                name: self._move(
                    f"{place}/arrays/{name}.safetensors", self._stream(record, ends), owners, counts
                )
                for name, record in edge.arrays.get(layout, {}).items()
            }
        return moved

    def _stream(self, record: FileRecord, ends: RowEnds | None = None) -> Stream:
        return stream_of(self._source / record.path, record, ends)

    def _move(
        self, relative: str, stream: Stream, owners: Owners, rows: list[int]
    ) -> list[FileRecord]:
        require_inside(relative)  # the names of types come from a manifest
        wanted = [f"part-{part:05d}/{relative}" for part in range(self._num_parts)]
        paths = self._directory.files(
            f"{path}{end}" for path in wanted for end in ("", ".partial")
        )[::2]
        sinks = [
            Sink(
                path,
                dtype=stream.dtype,
                shape=(count + stream.summed, *stream.row_shape),
                record_path=relative,
                summed=stream.summed,
            )
            for path, count in zip(paths, rows, strict=True)
        ]
        return move(stream, owners, sinks, self._tell)

    def _tell(self, nbytes: int) -> None:
        if self._progress is not None:
            self._progress.advance(nbytes)

    def _write_book(self, name: str, owners: Owners) -> FileRecord:
        relative = book_path(name)
        path, _ = self._directory.files([relative, relative + ".partial"])
        return write_book(path, owners, num_parts=self._num_parts, record_path=relative)

    # What the manifests say.

    def _node_record(self, node: NodeTypeRecord, held: _Nodes, part: int) -> NodeTypeRecord:
        return NodeTypeRecord(
            node.name,
            held.counts[part],
            _of(held.arrays, part),
            None if held.ids is None else held.ids[part],
            None if held.texts is None else _of(held.texts, part),
            0 if held.texts is None else node.salt,
        )

    def _edge_record(self, edge: EdgeTypeRecord, held: _Edges, part: int) -> EdgeTypeRecord:
        counts = {layout: counts[part] for layout, counts in held.counts.items()}
        both = "csc" in counts and "csr" in counts
        return EdgeTypeRecord(
            *edge.key,
            counts.get("csc", counts.get("csr", 0)),
            {layout: _of(files, part) for layout, files in held.layouts.items()},
            {layout: _of(files, part) for layout, files in held.arrays.items() if files},
            out_count=counts["csr"] if both else None,
        )

    def _part_record(self, nodes: dict[str, _Nodes], part: int) -> PartRecord:
        held = {}
        for name, owners in self._owners.items():
            files = nodes[name].global_ids
            held[name] = PartNodes(
                owners.count,
                int(owners.bounds[part]) if isinstance(owners, RangeOwners) else None,
                None if files is None else files[part],
                self._whole.node_types[name].original is None,
            )
        return PartRecord(self._identifier("partition"), part, self._num_parts, self._method, held)

    def _identifier(self, what: str) -> str:
        told = f"{self._whole.identifier} {self._method} {self._num_parts} {what}"
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def _id_dtype(self, name: str) -> str:
        return "int32" if self._whole.node_types[name].count <= _NARROW_NODES else "int64"


def _row_type(edge: EdgeTypeRecord, layout: str) -> str:
    return edge.target if layout == "csc" else edge.source


def _of(files: dict[str, list[FileRecord]], part: int) -> Files:
    return {name: records[part] for name, records in files.items()}


def _require_no_memory(path: Path) -> None:
    if is_memory_backed(path):
        raise OutputDirError(
            f"{path} lies on {filesystem_type(path)}, which is memory: the parts would fill it",
            path=str(path),
            remedy="choose a directory on a disk",
        )
