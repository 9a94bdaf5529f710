from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.errors import DiskRefusedError, FormatError, StaleFileError
from overspill.storage import checksums
from overspill.storage.arrays import ArrayWriter
from overspill.storage.checksums import verify_checksums
from overspill.storage.manifest import (
    MANIFEST_NAME,
    EdgeTypeRecord,
    FileRecord,
    Manifest,
    NodeTypeRecord,
    publish_manifest,
    read_manifest,
)
from overspill.storage.partition_manifest import PARTITION_NAME, read_partition


def put(directory: Path, name: str, array: np.ndarray) -> FileRecord:
    (directory / "a").mkdir(exist_ok=True)
    with ArrayWriter(
        directory / "a" / name, dtype=array.dtype.name, shape=array.shape, record_path=f"a/{name}"
    ) as writer:
        writer.append(array)
    assert writer.result is not None
    return writer.result


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    x = put(tmp_path, "x", np.ones((2, 600), np.float32))
    ids = put(tmp_path, "ids", np.array([7, 9]))
    indptr = put(tmp_path, "indptr", np.array([0, 1, 1]))
    indices = put(tmp_path, "indices", np.array([1], np.int32))
    edge = EdgeTypeRecord("node", "to", "node", 1, {"csc": {"indptr": indptr, "indices": indices}})
    return Manifest(
        "0" * 32,
        {"node": NodeTypeRecord("node", 2, {"x": x}, ids)},
        {edge.key: edge},
        options={"ids": "remap"},
        sources=[{"path": "e.csv", "nbytes": 3}],
        created="2026-01-01T00:00:00+00:00",
        overspill_version="0.1.0",
    )


def test_a_manifest_comes_back_as_it_was(tmp_path: Path, manifest: Manifest) -> None:
    publish_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert len(manifest.files()) == 4
    assert not list(tmp_path.glob("*.partial"))


def test_numbers_that_json_has_none_for_are_text(tmp_path: Path, manifest: Manifest) -> None:
    options = {"fill": math.nan, "more": [math.inf, {"least": -math.inf}], "half": 0.5}
    publish_manifest(tmp_path, replace(manifest, options=options))
    path = tmp_path / MANIFEST_NAME
    strict = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert strict["options"] == {"fill": "nan", "more": ["inf", {"least": "-inf"}], "half": 0.5}
    # As datasets have it that were built before.
    path.write_text(path.read_text().replace('"nan"', "NaN"))
    assert read_manifest(tmp_path).options["fill"] == "NaN"


@pytest.mark.parametrize(
    ("owner", "name", "nth"),
    [(os, "fsync", 1), (os, "fsync", 2), (Path, "rename", 1)],
    ids=["fsync of the file", "fsync of the directory", "rename"],
)
def test_a_failing_step_leaves_no_manifest(
    tmp_path: Path,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    nth: int,
) -> None:
    real, calls = getattr(owner, name), itertools.count(1)

    def refuse(*arguments: Any) -> Any:
        if next(calls) == nth:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch, pytest.raises(DiskRefusedError) as caught:
        patch.setattr(owner, name, refuse)
        publish_manifest(tmp_path, manifest)
    assert caught.value.errno == 28
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_no_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not an Overspill dataset"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("name", "told"),
    [(".overspill-build", "an unfinished build.*resume=True"), ("partition.json", "a partition")],
)
def test_what_is_there_instead_of_a_dataset(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(FormatError, match=told):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "parquet"},
        {"version": 1},
        {"version": 3},
        {"version": "2"},
        {"node_types": []},
        {"node_types": {"node": {"count": -1, "arrays": {}, "ids": None}}},
        {"node_types": {"node": {"count": True, "arrays": {}, "ids": None}}},
        {"edge_types": [{"type": ["a", "b"], "count": 0, "layouts": {}}]},
    ],
)
def test_a_foreign_or_damaged_manifest_is_refused(
    tmp_path: Path, manifest: Manifest, change: dict[str, object]
) -> None:
    publish_manifest(tmp_path, manifest)
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("version", "told", "remedy"),
    [(3, "newer than version 2", "install a newer"), (1, "older than version 2", "build it again")],
)
def test_another_version_says_which_and_what_to_do(
    tmp_path: Path, manifest: Manifest, version: int, told: str, remedy: str
) -> None:
    publish_manifest(tmp_path, manifest)
    path = tmp_path / MANIFEST_NAME
    # Whatever else a newer version may have changed.
    path.write_text(json.dumps({"format": "overspill-dataset", "version": version}))
    with pytest.raises(FormatError, match=told) as caught:
        read_manifest(tmp_path)
    assert remedy in (caught.value.remedy or "") and caught.value.path == str(path)


def test_a_path_that_is_no_directory_of_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FormatError, match="file is a file"):
        read_manifest(tmp_path / "file")
    with pytest.raises(FormatError, match="nowhere does not exist"):
        read_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"format": "overspill-dataset"}'])
def test_a_cut_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(text)
    with pytest.raises(FormatError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "a\0b"])
def test_paths_stay_inside(tmp_path: Path, manifest: Manifest, path: str) -> None:
    node = manifest.node_types["node"]
    stray = replace(node, arrays={"x": replace(node.arrays["x"], path=path)})
    publish_manifest(tmp_path, replace(manifest, node_types={"node": stray}))
    with pytest.raises(FormatError, match="leaves"):
        read_manifest(tmp_path)


def test_counts_and_shapes_must_agree(tmp_path: Path, manifest: Manifest) -> None:
    node = replace(manifest.node_types["node"], count=5)
    publish_manifest(tmp_path, replace(manifest, node_types={"node": node}))
    with pytest.raises(FormatError, match="for 5 nodes"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("part", "dtype", "shape"),
    [
        ("indptr", "int64", (2,)),
        ("indptr", "int64", (4,)),
        ("indptr", "int64", (3, 1)),
        ("indptr", "int32", (3,)),
        ("indices", "int64", (2,)),
        ("indices", "uint32", (1,)),
        ("indices", "float32", (1,)),
        ("indices", "int32", ()),
        ("ids", "int32", (2,)),
        ("ids", "int64", (2, 1)),
    ],
)
def test_a_topology_must_fit_its_counts(
    tmp_path: Path, manifest: Manifest, part: str, dtype: str, shape: tuple[int, ...]
) -> None:
    """Also where the file is just as the manifest says."""
    forged = put(tmp_path, "forged", np.zeros(shape, dtype))
    nodes, [edge] = dict(manifest.node_types), manifest.edge_types.values()
    if part == "ids":
        nodes["node"] = replace(nodes["node"], ids=forged)
    else:
        edge = replace(edge, layouts={"csc": edge.layouts["csc"] | {part: forged}})
    publish_manifest(tmp_path, replace(manifest, node_types=nodes, edge_types={edge.key: edge}))
    with pytest.raises(FormatError, match="forged is"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("change", [{"source": "user"}, {"target": "user"}])
def test_an_edge_type_needs_its_node_types(
    tmp_path: Path, manifest: Manifest, change: dict[str, str]
) -> None:
    edge = replace(next(iter(manifest.edge_types.values())), **change)  # type: ignore[arg-type]
    publish_manifest(tmp_path, replace(manifest, edge_types={edge.key: edge}))
    with pytest.raises(FormatError, match="'user'"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("part", ["indptr", "indices"])
def test_a_topology_needs_both_parts(tmp_path: Path, manifest: Manifest, part: str) -> None:
    edge = next(iter(manifest.edge_types.values()))
    edge = replace(edge, layouts={"csc": {part: edge.layouts["csc"][part]}})
    publish_manifest(tmp_path, replace(manifest, edge_types={edge.key: edge}))
    with pytest.raises(FormatError):
        read_manifest(tmp_path)


def test_a_gone_or_replaced_file_is_stale(tmp_path: Path, manifest: Manifest) -> None:
    publish_manifest(tmp_path, manifest)
    (tmp_path / "a" / "x").unlink()
    with pytest.raises(StaleFileError):
        read_manifest(tmp_path)
    put(tmp_path, "x", np.ones((2, 3), np.float64))
    with pytest.raises(StaleFileError, match="float64"):
        read_manifest(tmp_path)


def test_checksums_find_what_the_header_cannot(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_manifest(tmp_path, manifest)
    seen: list[tuple[int, int]] = []
    assert verify_checksums(tmp_path, manifest, progress=lambda *at: seen.append(at)) == []
    assert len(seen) == 4 and seen[-1][0] == seen[-1][1]
    monkeypatch.setattr(checksums, "_PIECE_BYTES", 1024)
    monkeypatch.setattr(checksums, "_PROGRESS_BYTES", 2048)
    steps: list[int] = []
    verify_checksums(tmp_path, manifest, progress=lambda done, _: steps.append(done))
    assert steps == sorted(set(steps)) and {at[0] for at in seen} < set(steps)
    assert max(np.diff([0, *steps])) <= 4096 + 2048  # a header, then within a file too
    content = bytearray((tmp_path / "a" / "ids").read_bytes())
    content[-1] ^= 1
    (tmp_path / "a" / "ids").write_bytes(content)
    (tmp_path / "a" / "indptr").write_bytes(b"")
    (tmp_path / "a" / "x").unlink()
    read = {Path(p.path).name: p.reason for p in verify_checksums(tmp_path, manifest)}
    assert "sha256" in read["ids"] and "0 bytes" in read["indptr"] and "read" in read["x"]
    assert set(read) == {"ids", "indptr", "x"}


@pytest.mark.parametrize("place", [0, 9, 4095])
def test_checksums_find_any_change_of_a_header(
    tmp_path: Path, manifest: Manifest, place: int
) -> None:
    publish_manifest(tmp_path, manifest)
    content = bytearray((tmp_path / "a" / "ids").read_bytes())
    content[place] ^= 4
    (tmp_path / "a" / "ids").write_bytes(content)
    (problem,) = verify_checksums(tmp_path, manifest)
    assert Path(problem.path).name == "ids" and "header" in problem.reason


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["pipe", "endless", "directory"])
def test_what_is_no_regular_file_is_refused_unread(
    tmp_path: Path, manifest: Manifest, kind: str
) -> None:
    publish_manifest(tmp_path, manifest)
    stand_in(tmp_path / "a" / "x", kind)
    with pytest.raises(StaleFileError, match="not a regular file") as caught:
        read_manifest(tmp_path)
    assert caught.value.path == str(tmp_path / "a" / "x")
    (problem,) = verify_checksums(tmp_path, manifest)
    assert problem.path == caught.value.path and "not a regular file" in problem.reason
    stand_in(tmp_path / MANIFEST_NAME, kind)
    with pytest.raises(FormatError, match=r"manifest\.json: it is not a regular file"):
        read_manifest(tmp_path)
    stand_in(tmp_path / PARTITION_NAME, kind)
    with pytest.raises(FormatError, match=r"partition\.json: it is not a regular file"):
        read_partition(tmp_path)


def stand_in(path: Path, kind: str) -> None:
    """Put something other than a regular file in a file's place."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("change", [-1, 1, 1 << 30])
def test_of_a_file_of_another_size_nothing_is_read(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    path = tmp_path / "a" / "x"
    size = path.stat().st_size
    os.truncate(path, size + change)

    def unread(*_: object) -> None:
        pytest.fail("it was read")

    (record,) = (one for one in manifest.files() if one.path == "a/x")
    monkeypatch.setattr(checksums, "_digest", unread)
    told = checksums._difference(path, record, unread)
    assert told == f"has {size + change} bytes where {size} were recorded"


def test_a_file_that_grows_is_read_no_further_than_recorded(
    tmp_path: Path, manifest: Manifest
) -> None:
    path = tmp_path / "a" / "x"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"more")
    (record,) = (one for one in manifest.files() if one.path == "a/x")
    with path.open("rb", buffering=0) as file:
        assert checksums._digest(file, 4096, size, lambda _: None) == (size, record.sha256)
        assert file.tell() == size
