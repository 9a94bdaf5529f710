"""What a dataset or a partition holds, as ``overspill info`` gives it: one JSON object."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overspill.cli.wording import told_at_the_prompt
from overspill.errors import FormatError, MappingError, OverspillError, StaleFileError
from overspill.storage.degrees import degree_distribution
from overspill.storage.manifest import VERSION, check_file, read_manifest
from overspill.storage.partition_manifest import PARTITION_NAME, read_partition
from overspill.storage.partition_manifest import VERSION as PARTITION_VERSION

if TYPE_CHECKING:
    from overspill.storage.manifest import Manifest
    from overspill.storage.records import FileRecord
    from overspill.storage.type_records import EdgeTypeRecord, Files, NodeTypeRecord

Told = Callable[[int, int], None]


def is_partition(path: Path) -> bool:
    """Whether a directory holds a partition; one that cannot be looked into does not."""
    # Not pathlib: it raises where a directory may not be searched.
    return os.path.lexists(path / PARTITION_NAME)


def dataset_holdings(
    path: Path, *, degrees: bool = True, tell: Told = lambda _done, _total: None
) -> dict[str, Any]:
    """What a dataset holds; files that are not as recorded are listed under "problems".

    Args:
        path: The dataset.
        degrees: Whether to read row pointers and count neighbours.
        tell: Called with the bytes of row pointers that are read, and their sum.
    """
    manifest = read_manifest(path, check_files=False)
    return _Holdings(path, manifest, degrees=degrees, tell=tell).described()


def partition_holdings(path: Path) -> dict[str, Any]:
    """What a partition holds: its parts, by their manifests, and its books."""
    partition = read_partition(path, check_files=False)
    files = _Files(path)
    parts = []
    for entry in partition.parts:
        try:
            manifest = read_manifest(path / entry.path)
        except (FormatError, StaleFileError) as error:
            files.problems.append(error)
            parts.append({"path": entry.path, "ok": False})
            continue
        parts.append(
            {
                "path": entry.path,
                "ok": True,
                "nodes": sum(node.count for node in manifest.node_types.values()),
                "edges": sum(edge.count for edge in manifest.edge_types.values()),
                "size_bytes": sum(record.nbytes for record in manifest.files()),
            }
        )
    books = {name: files.described(name, book.file) for name, book in partition.books.items()}
    return {
        "path": str(path),
        "kind": "partition",
        "format_version": PARTITION_VERSION,
        "identifier": partition.identifier,
        "method": partition.method,
        "created": partition.created,
        "overspill_version": partition.overspill_version,
        "parts": parts,
        "books": books,
        "problems": files.told(),
    }


class _Files:
    """Looks at array files, and keeps what is wrong with them."""

    def __init__(self, directory: Path) -> None:
        self.problems: list[OverspillError] = []
        self.directory = directory

    def described(self, name: str, record: FileRecord) -> dict[str, Any]:
        told = {
            "name": name,
            "dtype": record.dtype,
            "shape": list(record.shape),
            "size_bytes": record.nbytes,
            "path": record.path,
            "ok": True,
        }
        try:
            check_file(self.directory, record)
        except (FormatError, StaleFileError) as error:
            self.problems.append(error)
            told["ok"] = False
        return told

    def told(self) -> list[str]:
        return [told_at_the_prompt(problem) for problem in self.problems]


class _Holdings:
    def __init__(self, path: Path, manifest: Manifest, *, degrees: bool, tell: Told) -> None:
        self._path, self._manifest, self._degrees = path, manifest, degrees
        self._files = _Files(path)
        self._tell, self._done = tell, 0
        self._total = sum(
            parts["indptr"].nbytes
            for edge in manifest.edge_types.values()
            for parts in edge.layouts.values()
        )

    def described(self) -> dict[str, Any]:
        manifest = self._manifest
        nodes = {name: self._nodes(node) for name, node in manifest.node_types.items()}
        edges = {":".join(key): self._edges(edge) for key, edge in manifest.edge_types.items()}
        part = manifest.partition
        return {
            "path": str(self._path),
            "kind": "dataset",
            "format_version": VERSION,
            "identifier": manifest.identifier,
            "created": manifest.created,
            "overspill_version": manifest.overspill_version,
            "size_bytes": sum(record.nbytes for record in manifest.files()),
            "node_types": nodes,
            "edge_types": edges,
            "partition": part
            and {"index": part.index, "num_parts": part.num_parts, "method": part.method},
            "options": manifest.options,
            "sources": manifest.sources,
            "problems": self._files.told(),
        }

    def _nodes(self, node: NodeTypeRecord) -> dict[str, Any]:
        named: list[tuple[str, FileRecord | None]] = list(node.arrays.items())
        named.append(("hashes of ids" if node.texts else "original ids", node.ids))
        named += [(f"text of ids, {name}", record) for name, record in (node.texts or {}).items()]
        named += [("numbers, original", node.original), ("numbers, renumbered", node.renumbered)]
        part = self._manifest.partition
        if part is not None:
            named.append(("ids in the whole", part.nodes[node.name].ids))
        arrays = [self._files.described(name, one) for name, one in named if one is not None]
        return {"count": node.count, "arrays": arrays, "notes": _counted(node.notes)}

    def _edges(self, edge: EdgeTypeRecord) -> dict[str, Any]:
        layouts = {}
        for layout, parts in edge.layouts.items():
            named = [(f"{layout} {part}", record) for part, record in parts.items()]
            named += [
                (f"{layout} array {name}", record)
                for name, record in edge.arrays.get(layout, {}).items()
            ]
            arrays = [self._files.described(name, record) for name, record in named]
            degrees = self._degrees_of(parts) if self._degrees else None
            layouts[layout] = {"arrays": arrays, "degrees": degrees}
        return {
            "source": edge.key[0],
            "relation": edge.key[1],
            "target": edge.key[2],
            "count": edge.count,
            "layouts": layouts,
            "notes": _counted(edge.notes),
        }

    def _degrees_of(self, parts: Files) -> dict[str, Any] | None:
        before, record = self._done, parts["indptr"]
        self._done += record.nbytes
        path = self._path / record.path
        if any(problem.path == str(path) for problem in self._files.problems):
            return None  # told already
        try:
            found = degree_distribution(
                path,
                record,
                edges=parts["indices"].shape[0],
                on_progress=lambda done: self._tell(before + done, self._total),
            )
        except (FormatError, StaleFileError, MappingError) as error:
            self._files.problems.append(error)
            return None
        return asdict(found)


def _counted(notes: dict[str, int]) -> dict[str, int]:
    return {note: count for note, count in notes.items() if count}
