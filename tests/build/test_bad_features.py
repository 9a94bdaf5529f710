"""Features that do not fit the nodes, and places that take no dataset: nothing is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naive import TINY, build_here
from overspill.build.describe import describe_build
from overspill.build.forecast import forecast_build
from overspill.build.inputs import Inputs
from overspill.errors import DiskRefusedError, OutputDirError
from refused import place, refused

GOOD = np.random.default_rng(8).integers(0, 30, (2, 200))


@pytest.mark.parametrize("given", ["num_nodes", "rows"])
def test_features_with_the_wrong_number_of_rows(tmp_path: Path, given: str) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    np.save(tmp_path / "x.npy", np.zeros((30, 2)))
    np.save(tmp_path / "y.npy", np.zeros(29))
    options: dict[str, Any] = {"num_nodes": 30} if given == "num_nodes" else {}
    error = refused(
        tmp_path,
        tmp_path / "e.npy",
        node_features={"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"},
        **options,
    )
    assert place(error) == ("y.npy", None, "y", "29") and "30 nodes" in str(error)


def test_fewer_features_than_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    np.save(tmp_path / "x.npy", np.zeros((20, 2)))
    error = refused(tmp_path, tmp_path / "e.npy", node_features={"x": tmp_path / "x.npy"})
    assert place(error)[0] == "e.npy" and "20 nodes" in str(error)


@pytest.mark.parametrize("count", [29, 31])
def test_remapped_ids_and_another_number_of_rows(tmp_path: Path, count: int) -> None:
    edges = np.concatenate([GOOD, np.tile(np.arange(30), (2, 1))], 1) * 1000
    np.save(tmp_path / "e.npy", edges)
    np.save(tmp_path / "x.npy", np.zeros((count, 2)))
    error = refused(
        tmp_path,
        tmp_path / "e.npy",
        ids="remap",
        node_features={"x": tmp_path / "x.npy"},
    )
    assert place(error) == ("x.npy", None, "x", str(count))
    assert "num_nodes" in str(refused(tmp_path, tmp_path / "e.npy", ids="remap", num_nodes=count))


@pytest.mark.parametrize("dtype", ["complex128", "U3", "M8[s]", "longdouble"])
def test_features_that_cannot_be_stored(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    np.save(tmp_path / "x.npy", np.zeros(30).astype(dtype))
    error = refused(tmp_path, tmp_path / "e.npy", node_features={"x": tmp_path / "x.npy"})
    assert error.value == str(np.dtype(dtype)) and "float32" in (error.remedy or "")


def test_features_without_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    np.save(tmp_path / "x.npy", np.float32(3))
    refused(tmp_path, tmp_path / "e.npy", node_features={"x": tmp_path / "x.npy"})


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe"])
def test_features_that_are_no_file(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    path = tmp_path / "x.npy"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    error = refused(tmp_path, tmp_path / "e.npy", node_features={"x": path})
    assert error.path == str(path) and error.remedy


@pytest.mark.requires("private_mount")
@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
@pytest.mark.parametrize("deep", [True, False])
def test_an_output_directory_in_memory(
    tmp_path: Path, memory_disk: Callable[..., Path], kind: str, deep: bool
) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    disk = memory_disk(kind)
    out = disk / "a" / "out" if deep else disk
    with pytest.raises(OutputDirError, match=kind) as caught:
        build_here(out, edges=tmp_path / "e.npy")
    assert caught.value.path == str(out) and "disk" in (caught.value.remedy or "")
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        # spool and rows, then rows and features; 30 nodes, 200 edges
        ({}, 3 * 4 * 200 + 8),
        ({"num_nodes": 30}, 3 * 4 * 200 + 8 * 31),
        ({"node_features": True}, 4 * 200 + 8 * 31 + 30 * 1000),
        ({"num_nodes": 30, "plan": replace(TINY, narrow_nodes=29)}, 3 * 8 * 200 + 8 * 31),
        ({"num_nodes": 30, "ids": "remap"}, 3 * 4 * 200 + 8 * 31 + 8 * 30),
        ({"num_nodes": 3000, "ids": "remap"}, 3 * 8 * 3000),
        # the second layout beside the first; the spool has ids of edges too
        ({"num_nodes": 30, "layout": ("csc", "csr")}, 4 * 4 * 200 + 2 * 8 * 31),
        ({"num_nodes": 30, "edge_ids": True}, 5 * 4 * 200 + 8 * 31),
    ],
)
def test_a_disk_that_is_too_small_is_known_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], needed: int
) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    np.save(tmp_path / "x.npy", np.zeros((30, 1000), np.uint8))
    if "node_features" in options:
        options = {"node_features": {"x": tmp_path / "x.npy"}}
    monkeypatch.setattr("overspill.build.forecast.free_disk_bytes", lambda _: needed - 1)
    with pytest.raises(DiskRefusedError) as caught:
        build_here(tmp_path / "out", edges=tmp_path / "e.npy", **options)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (needed, needed - 1)
    assert not (tmp_path / "out").exists()
    plan = options.pop("plan", TINY)
    spec = describe_build(tmp_path / "out", edges=tmp_path / "e.npy", **options)
    assert forecast_build(spec, Inputs.open(spec), plan).least_disk_bytes == needed


@pytest.mark.parametrize("held", ["foreign", "dataset"])
def test_an_output_directory_in_use(tmp_path: Path, held: str) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    if held == "foreign":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").touch()
    else:
        build_here(tmp_path / "out", edges=tmp_path / "e.npy")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(OutputDirError):
        build_here(tmp_path / "out", edges=tmp_path / "e.npy")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
