"""What a build does about numbers that are not finite, about keys, fills, rows and names."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from naive import TINY, build_spec_here
from naive_graph import ReadDataset
from overspill.build.construct import BuildSummary
from overspill.build.describe import Columns, describe_build
from overspill.build.readers.npy import bits_dtype
from overspill.build.spec import BuildSpec
from overspill.errors import InputError

NODES, EDGES = 40, np.random.default_rng(32).integers(0, 40, (2, 200))
EDGES[:, :NODES] = np.arange(NODES)
KEY = ("node", "to", "node")
FLOATS = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
)


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    np.save(tmp_path / "e.npy", EDGES)
    return tmp_path / "e.npy"


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=16)
    return path


def refusal(tmp_path: Path, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        build_spec_here(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    return caught.value


def place(error: InputError) -> tuple[str | None, int | None, str | None, str | None]:
    return error.path and Path(error.path).name, error.row, error.column, error.value


# Not finite.


def save_floats(path: Path, dtype: str, rows: int, bad: dict[int, complex]) -> np.ndarray:
    """Rows of three numbers, the middle one of some not finite; returns the bits."""
    held = torch.zeros(rows, 3, dtype=torch.complex64 if dtype == "complex64" else torch.float64)
    held += torch.arange(rows)[:, None] % 4
    for row, value in bad.items():
        held[row, 1] = value
    exact = held.to(getattr(torch, dtype))
    numpy_lacks = dtype == "bfloat16" or dtype.startswith("float8")
    unsigned = torch.uint16 if dtype == "bfloat16" else torch.uint8
    array = exact.view(unsigned).numpy() if numpy_lacks else exact.numpy()
    np.save(path, array.view(bits_dtype(dtype)) if numpy_lacks else array)
    return array


def values_of(dtype: str) -> dict[int, complex]:
    """Rows that are not finite."""
    if dtype == "complex64":
        return {21: complex(0, math.nan), 33: complex(math.inf, 0)}
    if dtype == "float8_e4m3fn":
        return {21: math.nan, 33: math.nan}
    return {21: -math.inf, 33: math.nan}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", ["given", "degree"])
def test_nodes_that_are_not_finite(tmp_path: Path, edges: Path, dtype: str, order: Any) -> None:
    bad = values_of(dtype)
    wanted = save_floats(tmp_path / "x.npy", dtype, NODES, bad)
    options: dict[str, Any] = {"edges": edges, "node_features": {"x": tmp_path / "x.npy"}}
    options["order"] = order
    summary = build_spec_here(tmp_path / "kept", **options)
    assert summary.notes["node"] == {"non_finite.x": 2}
    dataset = ReadDataset(tmp_path / "kept")
    node = dataset.manifest.node_types["node"]
    found = dataset.content(node.arrays["x"])
    if node.renumbered is not None:
        found = found[dataset.content(node.renumbered)]
    assert found.tobytes() == wanted.tobytes()
    error = refusal(tmp_path, non_finite="error", **options)
    assert place(error)[:3] == ("x.npy", 21, "x")
    first = bad[21]
    assert error.value == (str(np.complex64(first)) if dtype == "complex64" else str(first))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["csc", ("csc", "csr")])
def test_edges_that_are_not_finite(tmp_path: Path, edges: Path, dtype: str, layout: Any) -> None:
    """Counted once, and all of them: those of edges that are dropped too."""
    wanted = save_floats(tmp_path / "w.npy", dtype, 200, values_of(dtype) | {199: math.nan})
    options: dict[str, Any] = {"edges": edges, "edge_features": {"w": tmp_path / "w.npy"}}
    options |= {"self_loops": "drop", "layout": layout, "num_nodes": NODES}
    summary = build_spec_here(tmp_path / "kept", **options)
    assert summary.notes[":".join(KEY)]["non_finite.w"] == 3
    dataset = ReadDataset(tmp_path / "kept")
    edge = dataset.manifest.edge_types[KEY]
    for one in edge.layouts:
        rows = dataset.content(edge.layouts[one]["edge_ids"])
        assert dataset.content(edge.arrays[one]["w"]).tobytes() == wanted[rows].tobytes()
    error = refusal(tmp_path, non_finite="error", **options)
    assert place(error)[:3] == ("w.npy", 21, "w")


@pytest.mark.parametrize("row", [0, 30, 39])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_keyed_rows_that_are_not_finite(
    tmp_path: Path, edges: Path, row: int, value: float
) -> None:
    cells = np.arange(float(NODES))
    cells[row] = value
    order = np.random.default_rng(6).permutation(NODES)
    names = [tmp_path / f"{n}.parquet" for n in range(2)]
    for name, part in zip(names, (slice(0, 30), slice(30, None)), strict=True):
        parquet(name, id=order[part], x=cells[part])
    features = {"x": Columns("x", of=names, key="id")}
    summary = build_spec_here(tmp_path / "kept", edges=edges, node_features=features)
    assert summary.notes["node"] == {"non_finite.x": 1}
    error = refusal(tmp_path, edges=edges, node_features=features, non_finite="error")
    second = row >= 30
    assert place(error) == (f"{int(second)}.parquet", row - 30 * second, "x", str(value))


# Keys.


def keyed(tmp_path: Path, keys: Any, **more: Any) -> dict[str, Any]:
    table = parquet(tmp_path / "k.parquet", id=keys, x=pa.array(range(len(keys)), pa.int16()))
    return {"x": Columns("x", of=table, key="id", **more)}


KINDS: dict[str, Any] = {
    "dense": lambda ids: ids,
    "remap": lambda ids: ids * 10**12 - 5,
    "text": lambda ids: [f"n{i}" for i in ids.tolist()],
}


@pytest.mark.parametrize(
    ("kind", "order"),
    [("dense", "given"), ("dense", "degree"), ("remap", "degree"), ("text", "degree")],
)
def test_keys(tmp_path: Path, kind: str, order: Any) -> None:
    """Complete; missing ones; extra ones; repeated ones; errors speak of raw ids."""
    raw, ids = KINDS[kind], np.random.default_rng(7).permutation(NODES)
    edges = parquet(tmp_path / "e.parquet", src=raw(EDGES[0]), dst=raw(EDGES[1]))
    options: dict[str, Any] = {"edges": edges, "order": order, "layout": "csr"}
    options["ids"] = "auto" if kind == "text" else kind

    def build(name: str, keys: np.ndarray, **more: Any) -> BuildSummary:
        features = keyed(tmp_path, raw(keys), **more)
        return build_spec_here(tmp_path / name, node_features=features, **options)

    assert "node" not in build("whole", ids).notes
    stored = ReadDataset(tmp_path / "whole")
    record = stored.manifest.node_types["node"].arrays["x"]
    assert sorted(stored.content(record).tolist()) == list(range(NODES))

    few, many = np.delete(ids, [5, 11]), np.r_[ids, NODES, NODES + 1]
    error = refusal(tmp_path, node_features=keyed(tmp_path, raw(few)), **options)
    assert place(error)[:3] == ("k.parquet", None, "id") and "2 nodes" in str(error)
    assert error.value in map(str, raw(ids[[5, 11]]))
    notes = build("filled", few, fill=-7).notes
    assert notes["node"] == {"filled.x": 2}
    filled = ReadDataset(tmp_path / "filled")
    found = filled.content(filled.manifest.node_types["node"].arrays["x"])
    assert sorted(found.tolist()) == [-7, -7, *range(NODES - 2)]

    error = refusal(tmp_path, node_features=keyed(tmp_path, raw(many)), **options)
    assert place(error) == ("k.parquet", NODES, "id", str(raw(many)[NODES]))
    assert build("dropped", many, fill=0).notes["node"] == {"dropped.x": 2}

    twice = np.r_[ids, ids[3]]
    for fill in (None, 0):
        features = keyed(tmp_path, raw(twice), fill=fill)
        error = refusal(tmp_path, node_features=features, **options)
        assert place(error) == ("k.parquet", NODES, "id", str(raw(twice)[3]))


def test_a_key_in_two_files(tmp_path: Path, edges: Path) -> None:
    """CSV rows count from 1; what fits no bucket is told as well."""
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("id,x\n" + "".join(f"{i},{i}.5\n" for i in range(NODES)))
    second.write_text("id,x\n77,0\n31,0\n")
    features = {"x": Columns("x", of=[first, second], key="id", fill=0)}
    error = refusal(tmp_path, edges=edges, node_features=features, num_nodes=NODES)
    assert place(error) == ("b.csv", 2, "id", "31")
    assert f"row 32 of {first}" in str(error)


@pytest.mark.parametrize("text", [True, False])
def test_keys_of_another_kind(tmp_path: Path, edges: Path, text: bool) -> None:
    words = KINDS["text"]
    if text:
        edges = parquet(tmp_path / "e.parquet", src=words(EDGES[0]), dst=words(EDGES[1]))
    ids = np.arange(NODES)
    features = keyed(tmp_path, ids if text else words(ids))
    error = refusal(tmp_path, edges=edges, node_features=features)
    assert place(error) == ("k.parquet", None, "id", None) and "one kind" in str(error.remedy)


# Fill values.


@pytest.mark.parametrize(
    ("fill", "told"), [(2**15, "does not fit int16"), (0.5, "does not fit int16"), ("x", "number")]
)
def test_a_fill_that_does_not_fit_is_told_before_anything_is_read(
    tmp_path: Path, edges: Path, fill: Any, told: str
) -> None:
    np.save(tmp_path / "e.npy", EDGES - 1)  # would be refused later
    with pytest.raises(InputError, match=told) as caught:
        build_spec_here(
            tmp_path / "out",
            edges=edges,
            node_features=keyed(tmp_path, np.arange(NODES), fill=fill),
        )
    assert caught.value.value == repr(fill)


@pytest.mark.parametrize("kind", [np.int8, np.float32, np.bool_, torch.tensor, np.array])
def test_fills_of_other_libraries(tmp_path: Path, kind: Any) -> None:
    features = {"x": Columns("x", of=tmp_path / "k.parquet", key="id", fill=kind(1))}
    spec = describe_build(tmp_path / "o", edges=tmp_path / "e.csv", node_features=features)
    assert BuildSpec.from_json(spec.to_json()) == spec
    assert spec.nodes["node"].arrays["x"].fill == 1


def test_a_fill_where_nothing_can_be_missing(tmp_path: Path, edges: Path) -> None:
    columns = Columns("x", of=tmp_path / "k.parquet", fill=0)
    for what in ("node_features", "edge_features"):
        with pytest.raises(InputError, match="fill=0 without a key"):
            describe_build(tmp_path / "out", edges=edges, **{what: {"x": columns}})  # type: ignore[arg-type]


# Numbers of rows.


@pytest.mark.parametrize("rows", [0, 199, 201, 217, 264])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_edge_arrays_of_another_length(tmp_path: Path, edges: Path, rows: int, kind: str) -> None:
    path = tmp_path / f"w.{kind}"
    values = np.arange(rows) + 0.5
    if kind == "csv":
        path.write_text("w\n" + "".join(f"{value}\n" for value in values))
    elif kind == "parquet":
        parquet(path, w=values)
    else:
        np.save(path, values)
    source = path if kind == "npy" else Columns("w", of=path)
    error = refusal(tmp_path, edges=edges, edge_features={"w": source}, num_nodes=NODES)
    assert place(error)[:3] == (f"w.{kind}", None, "w") and "200 edges" in str(error)
    assert int(error.value or 0) == rows if kind != "csv" else error.value != "200"


def test_edge_arrays_of_another_length_are_told_before_edges_are_read(
    tmp_path: Path, edges: Path
) -> None:
    np.save(edges, EDGES - 1)  # would be refused later
    np.save(tmp_path / "w.npy", np.zeros(201))
    error = refusal(tmp_path, edges=edges, edge_features={"w": tmp_path / "w.npy"})
    assert place(error) == ("w.npy", None, "w", "201")


@pytest.mark.parametrize("rows", [39, 41])
def test_tables_of_another_length(tmp_path: Path, edges: Path, rows: int) -> None:
    path = tmp_path / "x.csv"
    path.write_text("x\n" + "2.5\n" * rows)
    features = {"x": Columns("x", of=path)}
    error = refusal(tmp_path, edges=edges, node_features=features, num_nodes=NODES)
    assert place(error) == ("x.csv", None, "x", str(rows))


# Types and names.


@pytest.mark.parametrize("dtype", ["complex128", "U3", "M8[s]", "longdouble"])
@pytest.mark.parametrize("what", ["node_features", "edge_features"])
def test_arrays_that_cannot_be_stored(tmp_path: Path, edges: Path, dtype: str, what: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros(200).astype(dtype))
    error = refusal(tmp_path, edges=edges, **{what: {"array": tmp_path / "a.npy"}})
    assert place(error) == ("a.npy", None, "array", str(np.dtype(dtype)))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x"] * 200),
        pa.array([None] * 200, pa.decimal128(5, 2)),
        pa.array([{"a": 1}] * 200),
        pa.array([b"x"] * 200),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_that_are_no_edge_array(tmp_path: Path, column: pa.Array) -> None:
    path = parquet(tmp_path / "e.parquet", src=EDGES[0], dst=EDGES[1], weight=column)
    error = refusal(tmp_path, edges=path, edge_features={"w": Columns("weight")})
    assert place(error) == ("e.parquet", None, "weight", str(column.type))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ids": {"usr": "remap"}}, "ids names the type 'usr'"),
        ({"columns": {("a", "b", "c"): ("x", "y")}}, "columns names the type"),
        ({"edge_features": {("a", "b", "c"): {"w": "w.npy"}}}, "edge_features names the type"),
        ({"edges": []}, "edges names no files"),
        ({"node_features": {"x": Columns("x", of=[], key="id")}}, "names no files"),
        ({"edges": {("u", "b", "i"): "e.npy"}, "to_undirected": True}, "join two node types"),
        ({"num_nodes": 5, "edges": {("u", "b", "i"): "e.npy"}}, "num_nodes=5 for 2 node types"),
    ],
)
def test_what_names_nothing(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        describe_build("o", **{"edges": "e.npy"} | options)


def test_names_that_look_like_files_of_the_build(tmp_path: Path, edges: Path) -> None:
    """Types and arrays are called what directories and files are called."""
    names = ["ids", "original", "csc.indices", "x.safetensors", "x.partial"]
    np.save(tmp_path / "x.npy", np.arange(NODES))
    np.save(tmp_path / "w.npy", np.arange(200))
    types = [("scratch", "csc", "scratch"), ("scratch", "csc", "csc"), ("edges", "nodes", "ids")]
    types += [("ids", "nodes-csc", "csc"), ("ids-nodes", "csc", "csc")]
    ends = {name for kind in types for name in (kind[0], kind[2])}
    build_spec_here(
        tmp_path / "out",
        plan=replace(TINY, chunk_edges=64, bucket_bytes=1 << 13, run_ids=64, copy_bytes=1 << 10),
        edges=dict.fromkeys(types, edges),
        edge_features={kind: dict.fromkeys(names, tmp_path / "w.npy") for kind in types},
        node_features={end: dict.fromkeys(names, tmp_path / "x.npy") for end in ends},
        ids=dict.fromkeys(ends, "remap"),
        order="degree",
    )
    dataset = ReadDataset(tmp_path / "out")
    for kind in types:
        edge = dataset.manifest.edge_types[kind]
        rows = dataset.content(edge.layouts["csc"]["edge_ids"])
        for name in names:
            assert np.array_equal(dataset.content(edge.arrays["csc"][name]), rows)
    for node in dataset.manifest.node_types.values():
        # What no edge enters keeps its order.
        wanted = np.arange(NODES) if node.original is None else dataset.content(node.original)
        assert all(np.array_equal(dataset.content(node.arrays[name]), wanted) for name in names)


# Self loops that are dropped.


@pytest.mark.parametrize("layout", ["csc", "csr"])
@pytest.mark.parametrize("order", ["given", "degree"])
@pytest.mark.parametrize("edges", [[(0, 1), (9, 9), (2, 1)], [(9, 9), (4, 4)]])
def test_self_loops_that_go_name_nodes_all_the_same(
    tmp_path: Path, edges: list[tuple[int, int]], order: str, layout: str
) -> None:
    np.save(tmp_path / "e.npy", np.array(edges))
    options: dict[str, Any] = {"edge_axis": 0, "self_loops": "drop", "order": order}
    summary = build_spec_here(tmp_path / "out", edges=tmp_path / "e.npy", layout=layout, **options)
    assert summary.nodes == 10 and summary.edges == sum(a != b for a, b in edges)
    edge = ReadDataset(tmp_path / "out").manifest.edge_types[KEY]
    assert edge.layouts[layout]["indptr"].shape == (11,)


@pytest.mark.parametrize("order", ["given", "degree"])
@pytest.mark.parametrize("wrong", [-1, 5, 2**62])
def test_self_loops_that_go_are_checked_all_the_same(
    tmp_path: Path, wrong: int, order: str
) -> None:
    np.save(tmp_path / "e.npy", np.array([(0, 1), (wrong, wrong), (2, 1)]))
    options: dict[str, Any] = {"edge_axis": 0, "self_loops": "drop", "num_nodes": 5}
    error = refusal(tmp_path, edges=tmp_path / "e.npy", order=order, **options)
    assert place(error) == ("e.npy", 1, "0", str(wrong))


def test_arrays_whose_names_are_as_long_as_they_may_be(tmp_path: Path, edges: Path) -> None:
    """Their rows are moved by way of scratch files, whose names no file system may refuse."""
    name = "n" * 100
    np.save(tmp_path / "w.npy", np.arange(2000.0).reshape(200, 10))
    summary = build_spec_here(
        tmp_path / "out",
        edges={(name, name, name): edges},
        edge_features={name: tmp_path / "w.npy"},
        plan=replace(TINY, ranges=4, block_bytes=48),
    )
    assert summary.edges == 200
    dataset = ReadDataset(tmp_path / "out")
    edge = dataset.manifest.edge_types[name, name, name]
    rows = dataset.content(edge.layouts["csc"]["edge_ids"])
    wanted = np.arange(2000.0).reshape(200, 10)[rows]
    assert np.array_equal(dataset.content(edge.arrays["csc"][name]), wanted)
