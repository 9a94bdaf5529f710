from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import overspill as ov
from confined import make_cold
from overspill.errors import FormatError, InputError, StaleFileError
from overspill.graph.dataset import open_dataset
from overspill.linux.cache import cached_bytes
from overspill.linux.identity import host_identity
from overspill.storage.manifest import (
    EdgeTypeRecord,
    Manifest,
    NodeTypeRecord,
    publish_manifest,
)
from overspill.storage.records import numpy_view_dtype
from reading_graphs import BUYS, LIKES, write_market
from small_graphs import random_graph, write_array, write_graph

EMPTY = (np.zeros(5, np.int64), np.zeros(0, np.int32))


def test_an_opened_dataset_shows_what_it_holds(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    assert (ds.num_nodes, ds.num_edges) == (400, 3000)
    assert ds.node_types == ["node"] and ds.edge_types == [("node", "to", "node")]
    assert ds.feature_names() == ["x", "y"]
    assert repr(ds) == f"Dataset({str(tmp_path)!r}, num_nodes=400, num_edges=3000)"
    topology = ds.topology(("node", "to", "node"))
    np.testing.assert_array_equal(topology.indptr, graph.indptr)
    np.testing.assert_array_equal(topology.indices, graph.indices)
    assert topology.indices.dtype == torch.int32
    np.testing.assert_array_equal(ds.features("x"), graph.arrays["x"])
    assert ds.features("x", "node") is ds.features("x")
    assert all(map(ov.is_disk_backed, (topology.indptr, topology.indices, ds.features("x"))))


def write_edges(path: Path) -> dict[str, np.ndarray]:
    """Three users, two items, four purchases in both layouts, with all that edges can have."""
    arrays = {
        "csc_indptr": np.array([0, 3, 4]),
        "csc_indices": np.array([0, 1, 2, 0], np.int32),
        "csc_edge_ids": np.array([3, 0, 2, 1], np.int32),
        "csc_counts": np.array([1, 5, 1, 2]),
        "csr_indptr": np.array([0, 2, 3, 4]),
        "csr_indices": np.array([0, 1, 0, 0], np.int32),
        "csc_w": np.arange(8, dtype=np.float32).reshape(4, 2),
        "csr_w": np.arange(8, 16, dtype=np.float32).reshape(4, 2),
    }
    path.mkdir()
    records = {name: write_array(path / name, values) for name, values in arrays.items()}
    parts = ("indptr", "indices", "edge_ids", "counts")
    layouts = {
        layout: {
            part: records[f"{layout}_{part}"] for part in parts if f"{layout}_{part}" in arrays
        }
        for layout in ("csc", "csr")
    }
    held = {layout: {"w": records[f"{layout}_w"]} for layout in layouts}
    edge = EdgeTypeRecord("user", "buys", "item", 4, layouts, held)
    nodes = {"user": NodeTypeRecord("user", 3), "item": NodeTypeRecord("item", 2)}
    publish_manifest(path, Manifest("0" * 32, nodes, {edge.key: edge}))
    return arrays


def test_both_layouts_and_what_edges_have(tmp_path: Path) -> None:
    arrays = write_edges(tmp_path / "d")
    ds = open_dataset(tmp_path / "d")
    for layout in ("csc", "csr"):
        topology = ds.topology(layout=layout)
        np.testing.assert_array_equal(topology.indptr, arrays[f"{layout}_indptr"])
        np.testing.assert_array_equal(topology.indices, arrays[f"{layout}_indices"])
        assert ds.edge_feature_names(layout=layout) == ["w"]
        held = ds.edge_features("w", ("user", "buys", "item"), layout=layout)
        np.testing.assert_array_equal(held, arrays[f"{layout}_w"])
        rows = ds.gather("w", [3, 0], edge_type=("user", "buys", "item"), layout=layout)
        np.testing.assert_array_equal(rows, arrays[f"{layout}_w"][[3, 0]])
    np.testing.assert_array_equal(ds.topology().edge_ids, arrays["csc_edge_ids"])
    np.testing.assert_array_equal(ds.topology().counts, arrays["csc_counts"])
    assert ds.topology(layout="csr").edge_ids is None and ds.topology(layout="csr").counts is None


def test_places_of_edges_out_of_range(tmp_path: Path) -> None:
    write_edges(tmp_path / "d")
    with pytest.raises(InputError, match=r"first is 4 .*there are 4 edges"):
        open_dataset(tmp_path / "d").gather("w", [0, 4], edge_type=("user", "buys", "item"))


def test_writing_to_a_feature_never_reaches_the_file(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    open_dataset(tmp_path).features("x").zero_()
    np.testing.assert_array_equal(open_dataset(tmp_path).features("x"), graph.arrays["x"])


def test_opening_touches_no_feature_page(tmp_path: Path) -> None:
    random_graph(tmp_path, num_nodes=20_000, width=128)
    make_cold(tmp_path / "node.x")
    ds = open_dataset(tmp_path)
    ds.features("x")
    # Reading the header may read ahead; it does not come near the whole of 10 MiB.
    assert cached_bytes(tmp_path / "node.x") <= 256 << 10


def test_a_dataset_pickles_by_path(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    ds.topology(), ds.features("x"), ds.sampler([2])
    sent = pickle.dumps(ds)
    assert len(sent) < 600
    received = pickle.loads(sent)
    np.testing.assert_array_equal(received.gather("x", [3, 1]), graph.arrays["x"][[3, 1]])


def test_another_dataset_at_the_path_is_refused(tmp_path: Path) -> None:
    random_graph(tmp_path / "a")
    sent = pickle.dumps(open_dataset(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    random_graph(tmp_path / "a")
    with pytest.raises(StaleFileError, match="another dataset"):
        pickle.loads(sent)


def test_a_dataset_from_another_machine_must_be_the_same_one(tmp_path: Path) -> None:
    graph = random_graph(tmp_path / "a")
    reopen, (path, identifier, _host) = open_dataset(tmp_path / "a").__reduce__()
    there = "elsewhere/00000000-0000-0000-0000-000000000000"
    # A shared file system, or a copy: the same identifier stands at the same path.
    received = reopen(path, identifier, there)
    np.testing.assert_array_equal(received.gather("x", [3, 1]), graph.arrays["x"][[3, 1]])
    told = (
        f"{identifier}, where {'0' * 32} was meant; .*from {there}, and this is {host_identity()}"
    )
    with pytest.raises(StaleFileError, match=told):
        reopen(path, "0" * 32, there)
    with pytest.raises(StaleFileError, match=f"from {there}, and this is {host_identity()}"):
        reopen(str(tmp_path / "nothing"), identifier, there)


@pytest.mark.parametrize("what", ["nothing", "a file", "no manifest"])
def test_what_is_no_dataset_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "data"
    if what == "a file":
        path.write_text("{}")
    if what == "no manifest":
        path.mkdir()
    with pytest.raises(FormatError, match="data"):
        open_dataset(path)


@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_damaged_dataset_is_not_opened(tmp_path: Path, damage: str) -> None:
    random_graph(tmp_path)
    if damage == "cut":
        os.truncate(tmp_path / "node.x", 4096 + 40)
    else:
        (tmp_path / "node.x").unlink()
    with pytest.raises(StaleFileError, match=r"node\.x"):
        open_dataset(tmp_path)


DTYPES = ["bool", "uint8", "float16", "bfloat16", "float8_e5m2", "complex64", "float64", "uint16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 2, 5), (50, 0)])
def test_rows_of_every_kind_are_gathered(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).integers(0, 2, shape).astype(numpy_view_dtype(dtype))
    write_graph(
        tmp_path,
        np.zeros(51, np.int64),
        np.zeros(0, np.int32),
        {"x": values},
        dtypes={"x": dtype},
    )
    ds = open_dataset(tmp_path)
    ids = torch.tensor([49, 0, 7, 7, 31], dtype=torch.int32)
    rows = ds.gather("x", ids)
    assert rows.dtype == getattr(torch, dtype) and rows.shape == (5, *shape[1:])
    # As bytes: torch cannot index every dtype.
    width = values.nbytes // 50
    whole = ds.features("x").reshape(-1).view(torch.uint8).reshape(50, width)
    assert rows.reshape(-1).view(torch.uint8).equal(whole[ids.long()].reshape(-1))


def test_no_ids_give_no_rows(tmp_path: Path) -> None:
    random_graph(tmp_path)
    assert open_dataset(tmp_path).gather("x", []).shape == (0, 12)


def test_rows_go_into_a_given_tensor(tmp_path: Path) -> None:
    graph = random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    out = torch.zeros(7, 12)
    assert ds.gather("x", range(5), out=out[2:]).data_ptr() == out[2:].data_ptr()
    np.testing.assert_array_equal(out[2:], graph.arrays["x"][:5])
    assert not out[:2].any()


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros(5, 11),
        torch.zeros(5, 12, dtype=torch.float64),
        torch.zeros(12, 5).t(),
        torch.zeros(5, 12, requires_grad=True),
        torch.zeros(5, 12, device="meta"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tmp_path: Path, out: torch.Tensor) -> None:
    random_graph(tmp_path)
    with pytest.raises(InputError, match=r"float32 \(5, 12\)"):
        open_dataset(tmp_path).gather("x", range(5), out=out)


@pytest.mark.parametrize("ids", [[0, 400], [-1], [2**40]])
def test_ids_out_of_range_name_the_first(tmp_path: Path, ids: list[int]) -> None:
    random_graph(tmp_path)
    with pytest.raises(InputError, match=rf"1 of {len(ids)} .*'node'.*first is {ids[-1]} .*400"):
        open_dataset(tmp_path).gather("x", ids)


@pytest.mark.parametrize(
    ("call", "wanted", "available"),
    [
        (lambda ds: ds.features("z"), "'z'", "x, y"),
        (lambda ds: ds.gather("z", [0]), "'z'", "x, y"),
        (lambda ds: ds.features("x", "user"), "'user'", "node"),
        (lambda ds: ds.topology(("a", "b", "c")), "'b'", "'to'"),
        (lambda ds: ds.topology(layout="csr"), "'csr'", "csc"),
        (lambda ds: ds.edge_features("w"), "'w'", "it has none"),
        (lambda ds: ds.edge_features("w", layout="csr"), "'csr'", "csc"),
        (lambda ds: ds.gather("w", [0], edge_type=("a", "b", "c")), "'b'", "'to'"),
        (lambda ds: ds.edge_feature_names(layout="coo"), "'coo'", "csc"),
    ],
)
def test_unknown_names_are_answered_with_those_there_are(
    tmp_path: Path, call: object, wanted: str, available: str
) -> None:
    random_graph(tmp_path)
    with pytest.raises(InputError) as caught:
        call(open_dataset(tmp_path))  # type: ignore[operator]
    assert wanted in str(caught.value) and available in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_file_that_changes_under_an_open_dataset_is_an_error(tmp_path: Path, damage: str) -> None:
    random_graph(tmp_path)
    ds = open_dataset(tmp_path)
    ds.gather("x", [1])
    if damage == "cut":
        os.truncate(tmp_path / "node.x", 4096)
    else:
        (tmp_path / "node.x").unlink()
    with pytest.raises(StaleFileError, match=r"node\.x"):
        ds.gather("x", [399])


def test_dense_ids_are_their_own_raw_ids(tmp_path: Path) -> None:
    write_graph(tmp_path, *EMPTY)
    ds = open_dataset(tmp_path)
    assert ds.node_ids().tolist() == [0, 1, 2, 3]
    assert ds.lookup(torch.tensor([3, 0])).tolist() == [3, 0]
    with pytest.raises(InputError, match="4 nodes"):
        ds.lookup([4])


def test_threads_may_share_a_dataset(tmp_path: Path) -> None:
    graph = random_graph(tmp_path, num_nodes=20_000, width=64)
    make_cold(tmp_path / "node.x")
    ds, wrong = open_dataset(tmp_path), []

    def gather(seed: int) -> None:
        ids = np.random.default_rng(seed).integers(0, 20_000, 5_000)
        if not np.array_equal(ds.gather("x", ids), graph.arrays["x"][ids]):
            wrong.append(seed)

    threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_of_several_types_the_repr_names_each(tmp_path: Path) -> None:
    market = write_market(tmp_path / "ds")
    named = f"node_types=['user', 'item'], edge_types={[BUYS, LIKES]}"
    assert repr(market).endswith(f"num_nodes=500, num_edges=4000, {named})")
