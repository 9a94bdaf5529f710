"""Builds in stages for tests: the same parts as of the whole, array for array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import overspill as ov
from overspill.storage.manifest import Manifest


def told(manifest: Manifest) -> dict[str, Any]:
    """Everything that a part holds, by what it is; content by its checksum."""
    found: dict[str, Any] = {}
    for name, node in manifest.node_types.items():
        found[name] = {"count": node.count, "arrays": _files(node.arrays)}
    for key, edge in manifest.edge_types.items():
        found[":".join(key)] = {
            "count": edge.count,
            "out": edge.out_count,
            "layouts": {layout: _files(parts) for layout, parts in edge.layouts.items()},
            "arrays": {layout: _files(held) for layout, held in edge.arrays.items() if held},
        }
    assert manifest.partition is not None
    part = manifest.partition
    found["part"] = [part.index, part.num_parts, part.method]
    for name, nodes in part.nodes.items():
        ids = nodes.ids and [nodes.ids.dtype, list(nodes.ids.shape), nodes.ids.sha256]
        found[f"part of {name}"] = [nodes.global_count, nodes.first, ids]
    return found


def differences(found: Path, expected: Path) -> list[str]:
    """What differs between two partitions; nothing where they are equal."""
    left, right = ov.open_partition(found), ov.open_partition(expected)
    told_of = []
    for one, other in zip(left.parts, right.parts, strict=True):
        a, b = told(one.manifest), told(other.manifest)
        told_of += [
            f"{one.path.name} {key}: {a.get(key)} not {b[key]}" for key in b if a.get(key) != b[key]
        ]
        told_of += [f"{one.path.name} {key}" for key in set(a) - set(b)]
    for name, book in left.manifest.books.items():
        if book.file.sha256 != right.manifest.books[name].file.sha256:
            told_of.append(f"book of {name}")
    return told_of


def _files(files: dict[str, Any]) -> dict[str, Any]:
    return {name: [one.dtype, list(one.shape), one.sha256] for name, one in files.items()}
