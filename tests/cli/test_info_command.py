"""``overspill info``: types, counts, arrays and degrees of datasets, parts and partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overspill.build.directory import BuildDirectory
from overspill.build.parting.split import split_dataset
from overspill.storage.manifest import read_manifest
from overspill.storage.partition_manifest import read_partition
from prompt import as_json, require_narrow, typed
from small_graphs import compress, write_graph


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Node 0 has 1,000 in-neighbours, nodes 1 to 4 one, the others none."""
    targets = np.concatenate([np.zeros(1000, np.int64), np.arange(1, 5)])
    indptr, indices = compress(np.arange(1004) % 1500, targets, 1500)
    arrays = {"x": np.zeros((1500, 7), np.float32)}
    return write_graph(tmp_path / "graph", indptr, indices, arrays).path


def test_a_dataset_in_words(graph: Path) -> None:
    done = typed("info", graph)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "node: 1,500 nodes"
    assert lines[1].split() == ["x", "float32", "1,500", "x", "7", "45.0", "KiB"]
    assert "node -> to -> node: 1,004 edges" in lines
    at = lines.index("in-degree of node:to:node")
    assert lines[at + 1] == "  mean 0.7, median 0, largest 1,000"
    bins = {line.split()[0]: line.split()[1:] for line in lines[at + 2 :] if line}
    assert bins["0"] == ["1,495", "#" * 32]
    assert bins["1"] == ["4", "#"] and bins["2-3"] == ["0"]
    assert bins["512-1,023"] == ["1", "#"]


@pytest.mark.parametrize("columns", [20, 30, 40])
def test_a_narrow_terminal(graph: Path, columns: int) -> None:
    told = typed("info", graph, columns=columns).stdout
    require_narrow(told, columns)
    for whole in ("1,500 x 7", "45.0 KiB", "512-1,023"):
        assert any(whole in line for line in told.splitlines())


def test_headers_only(graph: Path) -> None:
    assert "degree" not in typed("info", graph, "--no-degrees").stdout
    found = as_json("info", graph, "--no-degrees")
    assert found["edge_types"]["node:to:node"]["layouts"]["csc"]["degrees"] is None


def test_json(graph: Path) -> None:
    found = as_json("info", graph)
    assert (found["kind"], found["format_version"], found["problems"]) == ("dataset", 2, [])
    assert found["size_bytes"] == sum(one.nbytes for one in read_manifest(graph).files())
    node = found["node_types"]["node"]
    assert node["count"] == 1500 and node["arrays"][0]["shape"] == [1500, 7]
    degrees = found["edge_types"]["node:to:node"]["layouts"]["csc"]["degrees"]
    assert (degrees["rows"], degrees["edges"], degrees["largest"]) == (1500, 1004, 1000)
    assert sum(one["rows"] for one in degrees["bins"]) == 1500


def test_row_pointers_that_decrease_are_a_problem(graph: Path) -> None:
    path = graph / "indptr"
    held = bytearray(path.read_bytes())
    held[-16:-8] = np.int64(-5).tobytes()
    path.write_bytes(held)
    done = typed("info", graph, code=1)
    assert "decrease at place 1499" in done.stderr and "what to do: " in done.stderr
    assert "node: 1,500 nodes" in done.stdout and "degree" not in done.stdout


@pytest.mark.parametrize("last", [1 << 62, -(1 << 63), 1005])
def test_row_pointers_that_end_elsewhere_are_a_problem(graph: Path, last: int) -> None:
    path = graph / "indptr"
    path.write_bytes(path.read_bytes()[:-8] + np.int64(last).tobytes())
    done = typed("info", graph, code=1)
    assert "row pointers" in done.stderr and "what to do: " in done.stderr
    assert "node: 1,500 nodes" in done.stdout and "degree" not in done.stdout


def test_names_cannot_command_a_terminal(tmp_path: Path) -> None:
    indptr, indices = compress([0], [1], 2)
    graph = write_graph(tmp_path / "g", indptr, indices, {"x": np.zeros(2)})
    manifest = graph.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"x":', '"x\\u001b[2J":'))
    told = typed("info", graph.path).stdout
    assert "\x1b" not in told and r"x\x1b[2J" in told


def test_a_partition_and_a_part(tmp_path: Path, graph: Path) -> None:
    out = tmp_path / "parts"
    with BuildDirectory(out) as directory:
        whole = read_manifest(graph)
        made = split_dataset(
            graph, whole, num_parts=3, method="range", directory=directory, send=lambda _: None
        )
        directory.publish(made)
    lines = typed("info", out).stdout.splitlines()
    assert lines[1].split()[:3] == ["part-00000", "500", "1,004"]
    assert "3 parts, by range" in lines
    found = as_json("info", out)
    assert found["kind"] == "partition" and len(found["parts"]) == 3
    assert sum(part["nodes"] for part in found["parts"]) == 1500
    part = typed("info", out / "part-00001").stdout
    assert "part 1 of 3, by range" in part and "node: 500 nodes" in part
    assert (
        "partition" in typed("partition", out, "--parts", 2, "--out", tmp_path / "p", code=1).stderr
    )
    (out / "part-00002" / "manifest.json").unlink()
    (out / read_partition(out).books["node"].file.path).write_bytes(b"")
    done = typed("info", out, code=1)
    assert done.stdout.count("damaged") == 2 and done.stderr.count("overspill: ") == 2
