"""Measured peak <= projected <= allowed where a build does everything at once, by every source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from confined import PythonResult, make_cold
from naive_graph import ReadDataset

pytestmark = [pytest.mark.memory, pytest.mark.requires("memory_cgroup", "mincore")]
MIB = 1 << 20
KEY = ("node", "to", "node")
# Of the caller, its torch included; what it takes in page cache is the build's reserve.
CALLER_BYTES = 200 * MIB
RESERVE_BYTES = 56 * MIB

SCRIPT = """
import json, sys
import numpy as np
import torch
import overspill
overspill.build_dataset
from overspill.build import describe_build, run_build
from overspill.build.describe import Columns
from overspill.build.sending.outgoing import Outgoing

def source(told):
    if not isinstance(told, dict):
        return told
    told = dict(told)
    kind = told.pop("kind")
    if kind == "columns":
        return Columns(**{name: source(value) for name, value in told.items()})
    import pyarrow.parquet as pq
    if kind == "batches":  # a reader that is used up
        return pq.ParquetFile(told["path"]).iter_batches(20_000, columns=told["columns"])
    held = np.load(told["path"], mmap_mode="r")
    return (held[:, at : at + 50_000].copy() for at in range(0, held.shape[1], 50_000))

options = json.loads(sys.argv[1])
for name in ("node_features", "edge_features"):
    options[name] = {key: source(value) for key, value in options.get(name, {}).items()}
options["edges"] = source(options["edges"])
streams, events = Outgoing(), []
spec = describe_build(**options, streams=streams)
summary = run_build(spec, streams=streams if spec.streams else None, on_event=events.append)
print(json.dumps(summary))
"""
EVERYTHING: dict[str, Any] = {
    "layout": ["csc", "csr"],
    "order": "degree",
    "duplicates": "count",
    "to_undirected": True,
    "edge_ids": True,
}


def write_graph(place: Path, count: int, *, csv: bool = False) -> dict[str, Path]:
    """Edges with a hub, wide columns and text ids; a table of all nodes, in no order."""
    rng, nodes = np.random.default_rng(count), count // 4
    edges = rng.integers(0, nodes, (2, count))
    edges[1, rng.random(count) < 0.1] = 77
    edges[0, :nodes] = np.arange(nodes)
    words = [pa.array([f"user-{node:09d}" for node in end]) for end in edges.tolist()]
    values = {f"c{n}": rng.random(count) for n in range(6)}
    table = pa.table({"src": words[0], "dst": words[1], **values, "t": np.arange(count)})
    order = rng.permutation(nodes)
    rows = pa.FixedSizeListArray.from_arrays(np.repeat(order.astype(np.float32), 16), 16)
    names = [f"user-{node:09d}" for node in order.tolist()]
    keyed = pa.table({"id": order * 10**9, "name": names, "x": rows})
    paths = {
        name: place / f"{count}-{name}" for name in ("e.npy", "e.csv", "e.parquet", "n.parquet")
    }
    np.save(paths["e.npy"], edges * 10**9)
    if csv:
        pacsv.write_csv(table, paths["e.csv"])
    else:
        del paths["e.csv"]
    pq.write_table(table, paths["e.parquet"])
    pq.write_table(keyed, paths["n.parquet"])
    return paths


def keyed_by(paths: dict[str, Path], key: str) -> dict[str, Any]:
    return {"kind": "columns", "names": "x", "of": str(paths["n.parquet"]), "key": key}


def from_files(paths: dict[str, Path]) -> dict[str, Any]:
    wide = {"kind": "columns", "names": [f"c{n}" for n in range(6)], "of": str(paths["e.parquet"])}
    time = {"kind": "columns", "names": "t", "of": str(paths["e.parquet"])}
    return {
        "edges": str(paths["e.npy"]),
        "ids": "remap",
        "edge_features": {"c": wide, "t": time},
        "node_features": {"x": keyed_by(paths, "id")},
    }


def from_text(paths: dict[str, Path], kind: str) -> dict[str, Any]:
    return {
        "edges": str(paths[f"e.{kind}"]),
        "ids": "text",
        "edge_features": {
            "c": {"kind": "columns", "names": [f"c{n}" for n in range(6)]},
            "t": {"kind": "columns", "names": "t"},
        },
        "node_features": {"x": keyed_by(paths, "name")},
    }


def from_memory(paths: dict[str, Path]) -> dict[str, Any]:
    columns = {"path": str(paths["n.parquet"]), "columns": ["id", "x"]}
    wide = {"path": str(paths["e.parquet"]), "columns": ["t"]}
    return {
        "edges": {"kind": "chunks", "path": str(paths["e.npy"])},
        "ids": "remap",
        "edge_features": {
            "t": {"kind": "columns", "names": "t", "of": {"kind": "batches", **wide}}
        },
        "node_features": {
            "x": keyed_by(paths, "id") | {"of": {"kind": "batches", **columns}},
        },
    }


def peak_of(
    run_python: Callable[..., PythonResult],
    paths: dict[str, Path],
    out: Path,
    options: dict[str, Any],
    *,
    limit_mib: int = 145,
    threads: int = 2,
) -> int:
    """Build in a group that holds the caller and the projection, and check what came of it."""
    make_cold(*paths.values())
    told = {**EVERYTHING, **options, "out": str(out), "memory_limit": f"{limit_mib}MiB"}
    told["threads"] = threads
    limit = limit_mib * MIB + CALLER_BYTES + RESERVE_BYTES
    result = run_python(SCRIPT, arguments=[json.dumps(told)], limit_bytes=limit).check()
    assert result.kills == 0
    found = json.loads(result.stdout)
    assert found["peak_anon_bytes"] <= found["projected_bytes"] <= found["allowed_bytes"]
    assert not {"torch", "pandas"} & set(found["modules"])
    require_moved_along(out, len(np.load(paths["e.npy"], mmap_mode="r")[0]))
    for path in sorted(out.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    return int(found["peak_anon_bytes"])


def require_moved_along(out: Path, count: int) -> None:
    """Every edge is there both ways, in both layouts, with its own time and its own nodes' rows."""
    dataset = ReadDataset(out)
    edge, node = dataset.manifest.edge_types[KEY], dataset.manifest.node_types["node"]
    x = dataset.content(node.arrays["x"])
    assert node.original is not None and np.array_equal(x[:, 0], x[:, 15])
    assert np.array_equal(np.sort(x[:, 0]), np.arange(count // 4))
    for layout in ("csc", "csr"):
        parts = {name: dataset.content(held) for name, held in edge.layouts[layout].items()}
        assert int(parts["counts"].sum()) == 2 * count - edge.notes["self_loops"]
        assert np.array_equal(dataset.content(edge.arrays[layout]["t"]), parts["edge_ids"])
        assert np.array_equal(np.diff(parts["indptr"])[:1], [np.diff(parts["indptr"]).max()])


def test_from_files_at_two_sizes_and_numbers_of_threads(
    run_python: Callable[..., PythonResult], tmp_path: Path
) -> None:
    peaks = []
    written = {count: write_graph(tmp_path, count) for count in (200_000, 600_000)}
    for count, threads in ((200_000, 1), (600_000, 1), (600_000, 8)):
        paths = written[count]
        options = from_files(paths)
        peaks.append(peak_of(run_python, paths, tmp_path / "out", options, threads=threads))
    assert peaks[1] <= 1.1 * peaks[0] and peaks[0] <= 1.1 * peaks[1]
    assert peaks[2] <= 1.2 * peaks[1] and peaks[1] <= 1.2 * peaks[2]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_from_wide_text(run_python: Callable[..., PythonResult], tmp_path: Path, kind: str) -> None:
    paths = write_graph(tmp_path, 150_000, csv=kind == "csv")
    peak_of(run_python, paths, tmp_path / "out", from_text(paths, kind))


def test_from_memory(run_python: Callable[..., PythonResult], tmp_path: Path) -> None:
    paths = write_graph(tmp_path, 150_000)
    peak_of(run_python, paths, tmp_path / "out", from_memory(paths))
