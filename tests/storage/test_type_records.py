"""What a manifest may say of node and edge types, and what must fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.errors import FormatError
from overspill.storage.manifest import (
    MANIFEST_NAME,
    EdgeTypeRecord,
    FileRecord,
    Manifest,
    NodeTypeRecord,
    publish_manifest,
    read_manifest,
)
from small_graphs import write_array

USER, ITEM = 3, 2
BUYS = ("user", "buys", "item")


def put(directory: Path, name: str, values: Any, dtype: str = "int64") -> FileRecord:
    return write_array(directory / name, np.array(values, dtype))


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Three users named by text and renumbered, two items, one edge in both layouts."""
    user = NodeTypeRecord(
        "user",
        USER,
        ids=put(tmp_path, "ids", [-5, 0, 9]),
        texts={
            "offsets": put(tmp_path, "offsets", [0, 1, 1, 4]),
            "data": put(tmp_path, "data", list(b"7007"), "uint8"),
        },
        salt=2,
        original=put(tmp_path, "original", [2, 0, 1], "int32"),
        renumbered=put(tmp_path, "renumbered", [1, 2, 0]),
        notes={"non_finite.x": 5},
    )
    csc = {
        "indptr": put(tmp_path, "csc_indptr", [0, 1, 1]),
        "indices": put(tmp_path, "csc_indices", [2], "int32"),
        "edge_ids": put(tmp_path, "edge_ids", [4], "int32"),
        "counts": put(tmp_path, "counts", [3]),
    }
    csr = {
        "indptr": put(tmp_path, "csr_indptr", [0, 0, 0, 1]),
        "indices": put(tmp_path, "csr_indices", [0]),
    }
    weight = {"weight": put(tmp_path, "weight", [[0.5, 1.0]], "float32")}
    edge = EdgeTypeRecord(*BUYS, 1, {"csc": csc, "csr": csr}, {"csc": weight}, {"duplicates": 2})
    nodes = {"user": user, "item": NodeTypeRecord("item", ITEM)}
    return Manifest("0" * 32, nodes, {BUYS: edge})


def test_everything_comes_back_as_it_was(tmp_path: Path, manifest: Manifest) -> None:
    publish_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    named = {Path(record.path).name for record in manifest.files()}
    assert named == {path.name for path in tmp_path.iterdir()} - {MANIFEST_NAME}


@pytest.mark.parametrize("name", ["texts", "salt", "original", "renumbered", "notes"])
def test_nothing_may_be_left_out(tmp_path: Path, manifest: Manifest, name: str) -> None:
    """Another version wrote what lacks a field: nobody knows what it means."""
    publish_manifest(tmp_path, manifest)
    held = json.loads((tmp_path / MANIFEST_NAME).read_text())
    del held["node_types"]["item"][name]
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(held))
    with pytest.raises(FormatError, match=name):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("part", "shape", "dtype"),
    [
        ("ids", (2,), "int64"),
        ("original", (2,), "int64"),
        ("original", (3,), "uint32"),
        ("renumbered", (3, 1), "int64"),
        ("renumbered", (3,), "float64"),
        ("offsets", (3,), "int64"),
        ("offsets", (4,), "int32"),
        ("data", (4,), "int8"),
        ("data", (4, 1), "uint8"),
    ],
)
def test_files_of_a_node_type_must_fit(
    tmp_path: Path, manifest: Manifest, part: str, shape: tuple[int, ...], dtype: str
) -> None:
    """Also where the file is just as the manifest says."""
    forged, user = put(tmp_path, "forged", np.zeros(shape), dtype), manifest.node_types["user"]
    if part in ("offsets", "data"):
        user = replace(user, texts=(user.texts or {}) | {part: forged})
    else:
        user = replace(user, **{part: forged})  # type: ignore[arg-type]
    refuse(tmp_path, replace(manifest, node_types=manifest.node_types | {"user": user}), "forged")


@pytest.mark.parametrize(
    "change",
    [
        {"original": None},
        {"renumbered": None},
        {"ids": None},
        {"texts": None},
        {"texts": {}},
        {"salt": -1},
        {"notes": {"duplicates": -1}},
        {"notes": {"duplicates": 1.5}},
    ],
)
def test_a_node_type_must_be_whole(
    tmp_path: Path, manifest: Manifest, change: dict[str, Any]
) -> None:
    user = replace(manifest.node_types["user"], **change)
    refuse(tmp_path, replace(manifest, node_types=manifest.node_types | {"user": user}))


@pytest.mark.parametrize(
    ("layout", "part", "shape", "dtype"),
    [
        ("csc", "indptr", (4,), "int64"),  # the items' number counts here
        ("csr", "indptr", (3,), "int64"),  # and the users' here
        ("csr", "indptr", (4,), "int32"),
        ("csr", "indices", (2,), "int32"),
        ("csc", "edge_ids", (2,), "int32"),
        ("csc", "edge_ids", (1,), "uint8"),
        ("csc", "counts", (1,), "int32"),
        ("csc", "counts", (), "int64"),
    ],
)
def test_parts_of_a_layout_must_fit(
    tmp_path: Path,
    manifest: Manifest,
    layout: str,
    part: str,
    shape: tuple[int, ...],
    dtype: str,
) -> None:
    forged, edge = put(tmp_path, "forged", np.zeros(shape), dtype), manifest.edge_types[BUYS]
    layouts = edge.layouts | {layout: edge.layouts[layout] | {part: forged}}
    refuse(tmp_path, with_edge(manifest, layouts=layouts), "forged")


def test_edge_arrays_must_fit(tmp_path: Path, manifest: Manifest) -> None:
    forged, edge = put(tmp_path, "forged", np.zeros((2, 2))), manifest.edge_types[BUYS]
    refuse(tmp_path, with_edge(manifest, arrays={"csc": {"weight": forged}}), "for 1 edges")
    only = with_edge(manifest, layouts={"csr": edge.layouts["csr"]})
    refuse(tmp_path, only, "'csc', which there is not")


@pytest.mark.parametrize("layout", [{"coo": {}}, {"csc": {"colour": None}}])
def test_unknown_layouts_and_parts_are_refused(
    tmp_path: Path, manifest: Manifest, layout: dict[str, Any]
) -> None:
    [(name, parts)] = layout.items()
    csc = manifest.edge_types[BUYS].layouts["csc"]
    held = csc | {part: csc["counts"] for part in parts}
    refuse(tmp_path, with_edge(manifest, layouts={name: held}, arrays={}), [*parts, name][0])


def with_edge(manifest: Manifest, **change: Any) -> Manifest:
    edge = replace(manifest.edge_types[BUYS], **change)
    return replace(manifest, edge_types={BUYS: edge})


def refuse(directory: Path, manifest: Manifest, match: str = "understood") -> None:
    publish_manifest(directory, manifest)
    with pytest.raises(FormatError, match=match):
        read_manifest(directory)
