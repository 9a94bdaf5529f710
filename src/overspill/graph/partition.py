"""A dataset in parts: made from a dataset or from edges, and opened again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from overspill.build.directory import BuildDirectory, is_unfinished_build
from overspill.build.parting.split import split_dataset
from overspill.build.parting.split_moves import BUFFER_BYTES, CACHE_BYTES, warm_routing
from overspill.build.spec import plain_integer
from overspill.errors import FormatError, InputError, NoRoomError, StaleFileError
from overspill.graph.construct import build_dataset
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.partition_books import PartitionBook, RangePartitionBook, checked_book
from overspill.graph.progress_bar import event_listener
from overspill.linux.identity import host_identity
from overspill.linux.paths import require_path
from overspill.settings import current_settings, size_bytes
from overspill.storage.arrays import map_array
from overspill.storage.manifest import MANIFEST_NAME
from overspill.storage.part_records import METHODS
from overspill.storage.partition_manifest import BookEntry, PartitionManifest, read_partition
from overspill.storage.sent_paths import require_sent, sent_from
from overspill.tensors.dtypes import torch_dtype
from overspill.tensors.headroom import memory_headroom
from overspill.tensors.mapping import wrap_mapping

_MOST_PARTS = 1 << 32


@dataclass(frozen=True)
class Partitioned:
    """A dataset in parts, as `partition_dataset` and `open_partition` give it.

    It pickles by path and identifier, as datasets do.

    Attributes:
        path: The directory, absolute.
        parts: The parts, in order: datasets of their own.
        books: By node type: which part has each node, by its id in the whole dataset.
        manifest: What the partition says about itself.
    """

    path: Path
    parts: list[Dataset]
    books: dict[str, PartitionBook]
    manifest: PartitionManifest

    def __repr__(self) -> str:
        return (
            f"Partitioned({str(self.path)!r}, parts={len(self.parts)}, "
            f"method={self.manifest.method!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path), self.manifest.identifier, host_identity())


def partition_dataset(
    source: Any,
    num_parts: int,
    *,
    out: str | Path,
    method: str = "range",
    memory_limit: str | int | None = None,
    progress: bool | Callable[[dict[str, Any]], None] = False,
    **build_options: Any,
) -> Partitioned:
    """Split a dataset into parts, each a dataset in a directory of its own, in fixed memory.

    Every node belongs to one part, by the book of its type. A part has its nodes' arrays, their
    in-edges (the rows of "csc") and, in a dataset with that layout, their out-edges (the rows of
    "csr"), with edge ids, counts and edge arrays beside them; so each edge is once in each layout
    of the parts together. It numbers its own nodes from 0, in the order of their ids in the whole
    dataset; its ``indices`` are ids in the whole, for neighbours may be in any part. ``part.part``
    translates both ways. `features` and `gather` of a part take its own ids; `sampler` and loaders
    refuse a part. `node_ids` and `lookup` know the raw ids of the part's nodes; where the build
    renumbered nodes (``order="degree"``) these are kept with the whole dataset alone, and a part
    raises. What the build counted (`notes`) stays with the whole too.

    Cost: every file is read once and written once; by hash, once for each 64 parts, and row ends
    again for each file beside them. Disk space: the dataset once more, by hash with 5 to 12 bytes a
    node. 32 MiB of memory, beside 64 MiB of page cache under way, whatever the size. The first
    partition by hash compiles its kernels: 2 s. The same dataset gives the same files,
    byte for byte, and the same identifiers. Several may run at once, into different directories.

    Args:
        source: A dataset or its path; or edges as `build_dataset` takes them, which are built
            first, into `out`, and removed once they are partitioned.
        num_parts: How many parts; more than nodes leaves some empty.
        out: Their directory: absent, empty, or an unfinished partition, which starts over.
        method: "range": equal numbers of nodes, consecutive. "degree-balanced": consecutive, cut
            so that nodes and the in-edges that they have of all types add up to equal shares, as
            near as whole nodes allow (of an edge type without "csc", the out-edges). "hash":
            scattered by splitmix64 of the id, modulo the parts.
        memory_limit: The most memory for buffers, such as "1GiB", and for a build the limit of its
            process; None goes by what there is.
        progress: True shows a bar on stderr; or a callable that gets events
            ``{"event": "progress", "phase", "done", "total", "unit"}``, some a second.
        **build_options: Of `build_dataset`, where edges are given.

    Returns:
        The parts, opened.

    Raises:
        InputError: Bad arguments; a source that is itself a part; what `build_dataset` refuses.
        OutputDirError: `out` holds something else, or lies in memory.
        NoRoomError: The buffers do not fit the memory there is.
        DiskRefusedError: No room on the disk, or it refused; nothing is left behind.
        FormatError: A file of the dataset is damaged.
        StaleFileError: A file of it is gone, was cut or replaced.
        SettingsError: `memory_limit` or a setting cannot be understood.
    """
    place = Path(require_path(out)).absolute()
    parts = _checked(num_parts, method)
    limit_bytes = _limit(memory_limit)
    whole = _whole(source, build_options)
    if method == "hash":
        warm_routing()
    _require_memory(limit_bytes)
    with event_listener(progress) as send, BuildDirectory(place) as directory:
        if whole is None:
            whole = build_dataset(
                directory.nested(),
                edges=source,
                memory_limit=memory_limit,
                progress=cast("Any", progress),
                **build_options,
            )
        manifest = split_dataset(
            whole.path,
            whole.manifest,
            num_parts=parts,
            method=method,
            directory=directory,
            send=send,
        )
        directory.publish(manifest)
    return open_partition(place)


def open_partition(path: str | Path) -> Partitioned:
    """Open a partition: the manifests and headers of all parts are read, and no payload.

    Args:
        path: The directory that `partition_dataset` filled.

    Returns:
        The partition.

    Raises:
        FormatError: Not a partition (or an unfinished one), damaged, or of an unknown version.
        StaleFileError: A part, or a file of it, is gone, was replaced or has another size.
        InputError: The path is none, or holds a NUL byte.
    """
    place = Path(require_path(path)).absolute()
    manifest = read_partition(place)
    parts = [_opened_part(place, manifest, index) for index in range(len(manifest.parts))]
    books = {name: _book(place, manifest, book) for name, book in manifest.books.items()}
    return Partitioned(place, parts, books, manifest)


def _opened_part(place: Path, manifest: PartitionManifest, index: int) -> Dataset:
    entry = manifest.parts[index]
    dataset = open_dataset(place / entry.path)
    held, record = dataset.manifest, dataset.manifest.partition
    if (
        held.identifier != entry.identifier
        or record is None
        or (record.partition, record.index) != (manifest.identifier, index)
        or record.num_parts != len(manifest.parts)
        or {name: nodes.global_count for name, nodes in record.nodes.items()}
        != {name: book.count for name, book in manifest.books.items()}
    ):
        raise StaleFileError(
            f"{dataset.path} is not part {index} of {place}",
            path=str(dataset.path),
            remedy="put the part back that was there, or partition the dataset again",
        )
    return dataset


def _book(place: Path, manifest: PartitionManifest, entry: BookEntry) -> PartitionBook:
    mapping, payload = map_array(place / entry.file.path, entry.file)
    if manifest.method == "hash":
        table = wrap_mapping(
            mapping,
            dtype=torch_dtype(entry.file.dtype),
            shape=entry.file.shape,
            payload_offset=mapping.nbytes - payload.nbytes,
        )
        return checked_book(table, len(manifest.parts))
    if int(payload[-1]) != entry.count or np.any(np.diff(payload, prepend=0) < 0):
        raise FormatError(
            f"{place / entry.file.path} is no book of {entry.count} nodes",
            path=str(place / entry.file.path),
            remedy="partition the dataset again, or copy its parts anew",
        )
    return RangePartitionBook(torch.from_numpy(payload.copy()))


def _reopen(path: str, identifier: str, host: str) -> Partitioned:
    with sent_from(host, path, "partition"):
        opened = open_partition(path)
        require_sent("partition", path, found=opened.manifest.identifier, sent=identifier)
    return opened


def _checked(num_parts: int, method: str) -> int:
    if method not in METHODS:
        raise InputError(
            f"method={method!r} is no way to partition", remedy=f"one of {', '.join(METHODS)}"
        )
    whole = not isinstance(num_parts, bool) and hasattr(num_parts, "__index__")
    if not whole or not 1 <= int(num_parts) <= _MOST_PARTS:
        raise InputError(
            f"num_parts={num_parts!r} is not a number of parts", remedy="give 1 or more"
        )
    return int(num_parts)


def _whole(source: Any, build_options: dict[str, Any]) -> Dataset | None:
    """The dataset to be partitioned; None where it is to be built of edges."""
    dataset = source if isinstance(source, Dataset) else None
    if isinstance(source, str | Path):
        path = Path(require_path(source))
        if (path / MANIFEST_NAME).exists() or is_unfinished_build(path):
            dataset = open_dataset(path)
    if dataset is None:
        if build_options.get("order") == "degree":
            raise InputError(
                "raw ids of nodes that are renumbered stay with the whole dataset, which would be "
                "removed",
                value="order='degree'",
                remedy="build the dataset with build_dataset first, and partition that",
            )
        return None
    if dataset.part is not None:
        raise InputError(
            f"{dataset.path} is itself a part",
            path=str(dataset.path),
            remedy="partition the whole dataset into as many parts as are wanted",
        )
    if build_options:
        raise InputError(
            f"{sorted(build_options)[0]!r} is for edges, and the source is a dataset already",
            path=str(dataset.path),
            remedy="leave it out, or give edges",
        )
    return dataset


def _require_memory(limit_bytes: int | None) -> None:
    if limit_bytes is not None and limit_bytes < BUFFER_BYTES:
        raise NoRoomError(
            "partitioning takes more memory than it may",
            needed_bytes=BUFFER_BYTES,
            available_bytes=limit_bytes,
            remedy=f'set memory_limit to "{BUFFER_BYTES >> 20}MiB" or more',
        )
    room = memory_headroom(current_settings())
    if room is not None and room < BUFFER_BYTES + CACHE_BYTES:
        raise NoRoomError(
            "partitioning takes more memory than there is",
            needed_bytes=BUFFER_BYTES + CACHE_BYTES,
            available_bytes=room,
            remedy="free memory, or raise the limit of the control group or of the settings",
        )


def _limit(memory_limit: str | int | None) -> int | None:
    if memory_limit is None:
        return None
    return size_bytes("memory_limit", plain_integer(memory_limit))
