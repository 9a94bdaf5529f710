"""The plainest way to apply every option of a build to one edge type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overspill.storage.arrays import map_array
from overspill.storage.checksums import verify_checksums
from overspill.storage.index_bounds import bounds_of
from overspill.storage.manifest import Manifest, read_manifest


@dataclass(frozen=True)
class NaiveRows:
    """One layout, as loops and sorts give it; `origin` is the input row of each edge."""

    indptr: np.ndarray
    indices: np.ndarray
    origin: np.ndarray
    counts: np.ndarray
    self_loops: int
    duplicates: int


def naive_rows(
    edges: list[tuple[int, int]], num_rows: int, *, layout: str = "csc", **options: Any
) -> NaiveRows:
    """Apply policies edge by edge, then group them by row.

    Args:
        edges: (source, target) as node ids, in input order.
        num_rows: Targets for "csc", sources for "csr".
        layout: Which end names the row.
        **options: As `describe_build` takes them; `same_type` for whether self loops exist.
    """
    rows: list[list[tuple[int, int]]] = [[] for _ in range(num_rows)]
    loops = 0
    for place, (source, target) in enumerate(edges):
        loop = options.get("same_type", True) and source == target
        loops += loop
        if loop and options.get("self_loops") == "drop":
            continue
        ways = [(source, target)]
        if options.get("to_undirected") and not loop:
            ways.append((target, source))
        for one, other in ways:
            row, column = (other, one) if layout == "csc" else (one, other)
            rows[row].append((column, place))
    indptr, indices, origin, counts, duplicates = [0], [], [], [], 0
    for row in rows:
        kept, held = [], {}
        for column, place in row:
            if column in held:
                duplicates += 1
            if options.get("duplicates", "keep") == "keep" or column not in held:
                held[column] = len(kept)
                kept.append([column, place, 1])
            else:
                kept[held[column]][2] += 1
        if options.get("sort_within_row", True):
            kept.sort(key=lambda edge: (edge[0], edge[1]))
        indices += [edge[0] for edge in kept]
        origin += [edge[1] for edge in kept]
        counts += [edge[2] for edge in kept]
        indptr.append(len(indices))
    return NaiveRows(
        *(np.array(part, np.int64) for part in (indptr, indices, origin, counts)), loops, duplicates
    )


def degree_order(indptr: np.ndarray) -> np.ndarray:
    """The new number of each node: the largest in-degree first, in their order within one."""
    order = sorted(range(len(indptr) - 1), key=lambda v: (indptr[v] - indptr[v + 1], v))
    renumbered = np.empty(len(order), np.int64)
    renumbered[order] = np.arange(len(order))
    return renumbered


class ReadDataset:
    """A whole dataset, verified and copied into memory."""

    def __init__(self, out: Path) -> None:
        self.out, self.manifest = out, read_manifest(out)
        assert verify_checksums(out, self.manifest, bounds=bounds_of(self.manifest)) == []
        listed = {record.path for record in self.manifest.files()} | {"manifest.json"}
        found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert found == listed, "a build left files that its manifest does not name"

    def content(self, record: Any) -> np.ndarray:
        """The payload of an array file."""
        return map_array(self.out / record.path, record)[1].copy()

    def require_layout(self, key: tuple[str, str, str], layout: str, naive: NaiveRows) -> None:
        """Assert that a layout is the naive one, its parts and counts included."""
        edge = self.manifest.edge_types[key]
        parts = {name: self.content(record) for name, record in edge.layouts[layout].items()}
        assert np.array_equal(parts["indptr"], naive.indptr)
        assert np.array_equal(parts["indices"], naive.indices)
        if "edge_ids" in parts:
            assert np.array_equal(parts["edge_ids"], naive.origin)
        if "counts" in parts:
            assert np.array_equal(parts["counts"], naive.counts)
        assert edge.count == len(naive.indices)


def bytes_of(out: Path) -> dict[str, bytes]:
    """Every file of a dataset but the manifest, which tells when it was made."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


__all__ = ["Manifest", "NaiveRows", "ReadDataset", "bytes_of", "degree_order", "naive_rows"]
