"""What people ran into with other builders, each through a whole build."""

from __future__ import annotations

import gzip
import itertools
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from naive import build_here, build_spec_here, require_naive
from naive_graph import ReadDataset
from overspill.build.describe import Columns
from overspill.build.plan import BuildPlan
from overspill.errors import DiskRefusedError, InputError

AS_GRAPH = Path(__file__).resolve().parents[1] / "data" / "as20graph.txt"
CORA = Path(str(files("overspill.cli") / "demo" / "cora"))
EDGES = np.random.default_rng(31).integers(0, 30, (2, 200))
# Several chunks, ranges and buckets of a graph of some ten thousand edges.
PLAN = BuildPlan(
    chunk_edges=1 << 12,
    ranges=16,
    block_bytes=4096,
    spare_blocks=8,
    bucket_bytes=1 << 17,
    run_ids=1 << 12,
    copy_bytes=1 << 14,
)
USER, ITEM = "user", "item"
BUYS, FOLLOWS = (USER, "buys", ITEM), (USER, "follows", USER)


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=64)
    return path


def refused(tmp_path: Path, **options: Any) -> tuple[str | None, int | None, str | None, Any]:
    with pytest.raises(InputError) as caught:
        build_spec_here(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    error = caught.value
    return error.path and Path(error.path).name, error.row, error.column, error.value


# Published graphs, by every way in.


def as_snap(path: Path, edges: np.ndarray) -> Path:
    np.savetxt(path / "e.txt", edges.T, fmt="%d", header="FromNodeId\tToNodeId", newline="\r\n")
    return path / "e.txt"


def as_csv(path: Path, edges: np.ndarray) -> Path:
    table = pa.table({"src": edges[0], "dst": edges[1]})
    pacsv.write_csv(table, path / "e.csv")
    with (path / "e.csv").open("rb") as plain, gzip.open(path / "e.csv.gz", "wb", 1) as packed:
        shutil.copyfileobj(plain, packed)
    return path / "e.csv.gz"


def as_parquet(path: Path, edges: np.ndarray) -> Path:
    (path / "parts").mkdir()
    for number, part in enumerate(np.array_split(edges, 3, 1)):
        parquet(path / "parts" / f"{number}.parquet", src=part[0].astype(np.int32), dst=part[1])
    return path / "parts"


WAYS = {"snap": as_snap, "csv.gz": as_csv, "parquet": as_parquet}


@pytest.mark.parametrize("way", WAYS)
def test_cora_as_published(tmp_path: Path, way: str) -> None:
    edges = np.loadtxt(CORA / "edges.csv", np.int64, delimiter=",", skiprows=1).T
    assert edges.shape == (2, 5429)
    x, y = np.load(CORA / "features.npy"), np.load(CORA / "labels.npy")
    assert x.shape == (2708, 1433)
    order = np.random.default_rng(5).permutation(2708)
    labels = parquet(tmp_path / "y.parquet", paper=order, label=y[order])
    built = build_here(
        tmp_path / "out",
        plan=PLAN,
        edges=WAYS[way](tmp_path, edges),
        node_features={"y": Columns("label", of=labels, key="paper"), "x": CORA / "features.npy"},
    )
    require_naive(built, *edges, 2708)
    assert np.array_equal(built.arrays["x"], x) and np.array_equal(built.arrays["y"], y)


@pytest.mark.parametrize("way", WAYS)
def test_the_as_graph_as_published(tmp_path: Path, way: str) -> None:
    """6,474 nodes with ids up to 65,105; 13,895 connections, 1,323 of which are loops."""
    raw = np.loadtxt(AS_GRAPH, dtype=np.int64).T
    ids, dense = np.unique(raw, return_inverse=True)
    built = build_here(tmp_path / "out", plan=PLAN, edges=WAYS[way](tmp_path, raw), ids="remap")
    require_naive(built, *dense.reshape(raw.shape), 6474)
    assert built.ids is not None and np.array_equal(built.ids, ids) and ids[-1] == 65105
    assert built.manifest.edge_types["node", "to", "node"].notes["self_loops"] == 1323


def test_the_as_graph_without_loops_and_repeats(tmp_path: Path) -> None:
    options: dict[str, Any] = {"to_undirected": True, "self_loops": "drop", "duplicates": "drop"}
    summary = build_spec_here(tmp_path / "out", plan=PLAN, edges=AS_GRAPH, **options)
    assert (summary.nodes, summary.edges) == (6474, 2 * 12572)
    assert summary.notes["node:to:node"] == {"self_loops": 1323, "duplicates": 2 * 12572}


# Ids.


@pytest.mark.parametrize("kind", ["csv", "parquet", "two dictionaries"])
def test_007_and_7_are_two_nodes(tmp_path: Path, kind: str) -> None:
    sources, targets = ["007", "7", "é", "007"], ["7", "07", "007", "7"]
    paths = [tmp_path / "e.csv"]
    if kind == "csv":
        lines = [f"{s},{t}" for s, t in zip(sources, targets, strict=True)]
        paths[0].write_text("\n".join(["src,dst", *lines]), encoding="utf-8")
    elif kind == "parquet":
        paths = [parquet(tmp_path / "e.parquet", src=sources, dst=pa.array(targets, pa.string()))]
    else:
        paths = [
            parquet(
                tmp_path / f"{number}.parquet",
                src=pa.array(sources[part]).dictionary_encode(),
                dst=pa.array(targets[part]).dictionary_encode(),
            )
            for number, part in enumerate((slice(0, 2), slice(2, 4)))
        ]
    build_spec_here(tmp_path / "out", edges=paths, ids="text" if kind == "csv" else "auto")
    dataset = ReadDataset(tmp_path / "out")
    texts = dataset.manifest.node_types["node"].texts
    assert texts is not None
    ends, data = dataset.content(texts["offsets"]), dataset.content(texts["data"]).tobytes()
    names = [data[a:b].decode() for a, b in itertools.pairwise(ends)]
    assert sorted(names) == ["007", "07", "7", "é"]
    layout = dataset.manifest.edge_types["node", "to", "node"].layouts["csc"]
    indptr, indices = (dataset.content(layout[part]) for part in ("indptr", "indices"))
    found = [(names[s], names[t]) for t in range(4) for s in indices[indptr[t] : indptr[t + 1]]]
    assert sorted(found) == sorted(zip(sources, targets, strict=True))


def test_integers_of_every_width_in_one_directory(tmp_path: Path) -> None:
    place = tmp_path / "parts"
    place.mkdir()
    large = 4873214862074861312
    kinds = [pa.int32(), pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(20, 0)]
    for number, kind in enumerate(kinds):
        parquet(place / f"{number}.parquet", src=pa.array([7, 5]).cast(kind), dst=[5, large])
    built = build_here(tmp_path / "out", edges=place, ids="remap")
    assert built.ids is not None and built.ids.tolist() == [5, 7, large]
    require_naive(built, [1, 0] * 5, [0, 2] * 5, 3)


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        (pa.array([1, None, 3], pa.int64()), None),
        (pa.array([1, 2**63 + 5, 3], pa.uint64()), str(2**63 + 5)),
        (pa.array([1, 2.5, 3]), "2.5"),
        (pa.array([1, float("nan"), 3]), "nan"),
        (pa.array([1, 2.0**53, 3]), "9007199254740992.0"),
        (pa.array([1, 30, 3]), "30"),
        (pa.array([1, -1, 3]), "-1"),
        (pa.array(["a", None, "b"]), None),
    ],
)
def test_wrong_ids_of_parquet(tmp_path: Path, cells: pa.Array, value: str | None) -> None:
    first = parquet(tmp_path / "0.parquet", src=[1], dst=[2])
    second = parquet(tmp_path / "1.parquet", src=cells, dst=[1, 2, 3])
    text = pa.types.is_string(cells.type)
    found = refused(
        tmp_path,
        edges={BUYS: second if text else [first, second]},
        num_nodes={} if text else {USER: 30, ITEM: 30},
    )
    assert found == ("1.parquet", 1, "src", value)


def test_an_ambiguous_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", edge_index=np.array([[0, 1], [2, 3]]))
    assert refused(tmp_path, edges=tmp_path / "e.npz")[0] == "e.npz"
    built = build_here(tmp_path / "told", edges=tmp_path / "e.npz", edge_axis=0)
    require_naive(built, [0, 2], [1, 3], 4)


@pytest.mark.parametrize("mode", ["dense", "auto"])
def test_text_and_integers_in_one_type(tmp_path: Path, mode: Any) -> None:
    texts = parquet(tmp_path / "t.parquet", src=["a", "b"], dst=["b", "c"])
    mixed = parquet(tmp_path / "m.parquet", src=[1, 2], dst=["b", "c"])
    np.save(tmp_path / "e.npy", EDGES)
    assert refused(tmp_path, edges=[tmp_path / "e.npy", texts], ids=mode)[0] == "t.parquet"
    assert refused(tmp_path, edges=mixed, ids=mode)[0] == "m.parquet"
    assert refused(tmp_path, edges=tmp_path / "e.npy", ids="text")[0] == "e.npy"
    if mode == "dense":
        assert refused(tmp_path, edges=texts, ids=mode)[0] == "t.parquet"
    else:  # each end is of one kind
        assert build_spec_here(tmp_path / "out", edges={BUYS: mixed}).nodes == 3 + 2


@pytest.mark.parametrize("wrong", [-1, 2**62])
def test_wrong_ids_where_several_types_tell_how_many_nodes(tmp_path: Path, wrong: int) -> None:
    np.save(tmp_path / "b.npy", np.array([[0, 1, 2], [5, wrong, 6]]))
    np.save(tmp_path / "f.npy", EDGES)
    edges = {BUYS: tmp_path / "b.npy", FOLLOWS: tmp_path / "f.npy"}
    assert refused(tmp_path, edges=edges, edge_axis=1) == ("b.npy", 1, "1", str(wrong))


def test_sparse_ids_of_several_types_that_no_disk_could_hold(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array([[0, 1, 2], [5, 2**60, 6]]))
    np.save(tmp_path / "f.npy", EDGES)
    edges = {BUYS: tmp_path / "b.npy", FOLLOWS: tmp_path / "f.npy"}
    with pytest.raises(DiskRefusedError, match=str(2**60)) as caught:
        build_spec_here(tmp_path / "out", edges=edges, edge_axis=1)
    assert "remap" in str(caught.value.remedy) and not (tmp_path / "out").exists()


# Text files.


@pytest.mark.parametrize("name", ["e.csv.gz", "e.txt.gz"])
def test_gzip_members_one_after_another_and_one_cut_short(tmp_path: Path, name: str) -> None:
    apart = "," if "csv" in name else "\t"
    lines = [f"{s}{apart}{t}\n" for s, t in EDGES.T.tolist()]
    head = "src,dst\n" if "csv" in name else "# FromNodeId ToNodeId\r\n\r\n"
    members = [gzip.compress("".join(part).encode()) for part in (lines[:90], lines[90:])]
    whole = gzip.compress(head.encode()) + members[0] + members[1]
    (tmp_path / name).write_bytes(whole)
    built = build_here(tmp_path / "out", edges=tmp_path / name, ids="dense")
    require_naive(built, *EDGES, 30)
    shutil.rmtree(tmp_path / "out")
    for cut in (1, 9, len(members[1]) - 3):
        (tmp_path / name).write_bytes(whole[:-cut])
        assert refused(tmp_path, edges=tmp_path / name, ids="dense")[0] == name


# Types without nodes, without edges.


def nothing(where: Path, kind: str) -> Path:
    name = where / f"none.{kind}"
    match kind:
        case "npy":
            np.save(name, np.empty((2, 0), np.int64))
        case "csv":
            name.write_text("src,dst\n")
        case "txt":
            name.write_text("# nothing\n")
        case "parquet":
            parquet(name, src=pa.array([], pa.int64()), dst=pa.array([], pa.int64()))
    return name


@pytest.mark.parametrize("kind", ["npy", "csv", "txt", "parquet"])
@pytest.mark.parametrize("ids", ["dense", "remap"])
@pytest.mark.parametrize("more", [False, True])
def test_a_type_without_nodes_and_edges(tmp_path: Path, kind: str, ids: Any, more: bool) -> None:
    np.save(tmp_path / "f.npy", EDGES)
    np.save(tmp_path / "x.npy", np.empty((0, 128), np.float32))
    np.save(tmp_path / "w.npy", np.empty((0, 3), np.float16))
    keyed = parquet(tmp_path / "k.parquet", id=pa.array([], pa.int64()), k=pa.array([], pa.int8()))
    options: dict[str, Any] = {"num_nodes": {ITEM: 0}}
    features = {"x": tmp_path / "x.npy", "k": Columns("k", of=keyed, key="id")}
    if more:
        options = {
            "node_features": {ITEM: features},
            "edge_features": {BUYS: {"w": tmp_path / "w.npy"}},
            "layout": ("csc", "csr"),
            "order": "degree",
            "duplicates": "count",
        }
    summary = build_spec_here(
        tmp_path / "out",
        edges={BUYS: nothing(tmp_path, kind), FOLLOWS: tmp_path / "f.npy"},
        ids={USER: ids, ITEM: ids},
        **options,
    )
    dataset = ReadDataset(tmp_path / "out")
    item, buys = dataset.manifest.node_types[ITEM], dataset.manifest.edge_types[BUYS]
    assert (summary.nodes, item.count, buys.count) == (30, 0, 0)
    assert dataset.content(buys.layouts["csc"]["indptr"]).tolist() == [0]
    if more:
        assert dataset.content(item.arrays["x"]).shape == (0, 128)
        assert dataset.content(buys.arrays["csr"]["w"]).shape == (0, 3)
        assert dataset.content(buys.layouts["csr"]["indptr"]).tolist() == [0] * 31


def test_a_type_that_nothing_counts(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", EDGES)
    (tmp_path / "z.csv").write_text("x\n1\n")
    features = {ITEM: {"x": Columns("x", of=tmp_path / "z.csv")}}
    with pytest.raises(InputError, match=r"nodes of type 'item'.*num_nodes"):
        build_spec_here(
            tmp_path / "out", edges={FOLLOWS: tmp_path / "e.npy"}, node_features=features
        )


SHAPES: dict[str, Callable[[], np.ndarray]] = {
    "star": lambda: np.stack([np.arange(200), np.full(200, 3)]),
    "loops": lambda: np.stack([np.arange(150)] * 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("self_loops", ["keep", "drop"])
def test_extreme_shapes_with_everything(tmp_path: Path, shape: str, self_loops: Any) -> None:
    edges = SHAPES[shape]()
    np.save(tmp_path / "e.npy", edges)
    np.save(tmp_path / "w.npy", np.arange(edges.shape[1]))
    summary = build_spec_here(
        tmp_path / "out",
        edges=tmp_path / "e.npy",
        edge_features={"w": tmp_path / "w.npy"},
        layout=("csc", "csr"),
        order="degree",
        to_undirected=True,
        self_loops=self_loops,
        num_nodes=400,
    )
    dataset = ReadDataset(tmp_path / "out")
    node = dataset.manifest.node_types["node"]
    edge = dataset.manifest.edge_types["node", "to", "node"]
    loops = 1 if shape == "star" else 150
    kept = edges.shape[1] - (loops if self_loops == "drop" else 0)
    assert edge.notes["self_loops"] == loops
    assert summary.edges == (kept if shape == "loops" else 2 * kept - (self_loops == "keep"))
    assert node.original is not None
    if shape == "star":
        assert dataset.content(node.original)[0] == 3, "the hub comes first"
    for layout in ("csc", "csr"):
        rows = dataset.content(edge.arrays[layout]["w"])
        assert np.array_equal(rows, dataset.content(edge.layouts[layout]["edge_ids"]))


def test_rows_without_keys_have_no_order_among_text_ids(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\nann,bob\nbob,eve\n")
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(InputError, match=r"text, which are numbered in no order.*key=") as caught:
        build_spec_here(
            tmp_path / "out",
            edges=tmp_path / "e.csv",
            ids="text",
            node_features={"x": tmp_path / "x.npy"},
        )
    assert caught.value.column == "x" and not (tmp_path / "out").exists()
