"""The sampler and the stores within PyTorch Geometric's own loaders."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.feature_store import TensorAttr
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import (
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
)

from loaded_batches import (
    BUYS,
    KNOWS,
    LIKED,
    all_listed,
    assert_batch,
    club,
    market,
    naive,
    stop_workers,
)
from overspill.errors import InputError, NoRoomError
from overspill.graph.construct import build_dataset
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.sampling.spec import SampleLimit
from overspill.pyg import (
    DatasetFeatureStore,
    DatasetGraphStore,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
)


def stores(ds: Dataset) -> tuple[DatasetFeatureStore, DatasetGraphStore]:
    return DatasetFeatureStore(ds), DatasetGraphStore(ds)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pygs_node_loader_gives_the_same_batches_over_types(
    tmp_path: Path, num_workers: int
) -> None:
    graph = market(tmp_path)
    ds = open_dataset(tmp_path)
    loader = NodeLoader(
        stores(ds),
        NeighborSampler(ds, [-1, -1]),
        ("item", torch.arange(40)),
        batch_size=10,
        num_workers=num_workers,
    )
    for start, batch in zip(range(0, 40, 10), loader, strict=True):
        expected = naive(graph, 2).sample({"item": list(range(start, start + 10))})
        for type, nodes in expected.nodes.items():
            assert batch[type].n_id.tolist() == nodes
            assert batch[type].num_sampled_nodes == expected.nodes_per_hop[type]
            np.testing.assert_array_equal(batch[type].x, graph.node_arrays[type]["x"][nodes])
        for key, edges in expected.edges.items():
            assert list(zip(*batch[key].edge_index.tolist(), strict=True)) == edges
            assert batch[key].e_id.tolist() == expected.places[key]
            assert batch[key].num_sampled_edges == expected.edges_per_hop[key]
        assert batch["item"].batch_size == 10
    stop_workers(loader)


def test_pygs_node_loader_over_one_type(tmp_path: Path) -> None:
    graph = club(tmp_path)
    ds = open_dataset(tmp_path)
    loader = NodeLoader(
        stores(ds), NeighborSampler(ds, [-1], disjoint=True), torch.arange(30), batch_size=30
    )
    (batch,) = loader
    assert isinstance(batch, Data)
    expected = naive(graph, 1, trees=True).sample({"person": list(range(30))})
    assert batch.n_id.tolist() == expected.nodes["person"]
    assert batch.batch.tolist() == expected.trees["person"]
    np.testing.assert_array_equal(batch.x, graph.node_arrays["person"]["x"][batch.n_id])


@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
@pytest.mark.parametrize("typed", [False, True])
def test_pygs_link_loader_describes_links_as_ours_does(
    tmp_path: Path, mode: str | None, typed: bool
) -> None:
    (market if typed else club)(tmp_path)
    ds = open_dataset(tmp_path)
    links = torch.tensor([[3, 1, 4], [2, 7, 1]])
    given = (BUYS if typed else None, links)
    options: dict[str, Any] = {"edge_label_index": given, "neg_sampling": mode, "batch_size": 3}
    (theirs,) = LinkLoader(stores(ds), NeighborSampler(ds, [-1]), **options)
    (ours,) = LinkNeighborLoader(ds, [-1], edge_features=[], **options)
    if not typed:
        assert set(theirs.to_dict()) == set(ours.to_dict())
    else:
        for type in (*ds.node_types, *ds.edge_types):
            assert set(theirs[type].to_dict()) | {"num_nodes"} == set(ours[type].to_dict()) | {
                "num_nodes"
            }
    if mode is None:
        assert all_listed([theirs]) == all_listed([ours])


def test_all_links_of_a_type_come_from_the_graph_store(tmp_path: Path) -> None:
    graph = market(tmp_path)
    ds = open_dataset(tmp_path)
    loader = LinkLoader(
        stores(ds), NeighborSampler(ds, [1]), edge_label_index=(BUYS, None), batch_size=300
    )
    (batch,) = loader
    source, target = batch[BUYS].edge_label_index
    rows = graph.edges[BUYS]
    np.testing.assert_array_equal(batch["user"].n_id[source], rows.indices)
    found = np.repeat(np.arange(50), np.diff(rows.indptr))
    np.testing.assert_array_equal(batch["item"].n_id[target], found)


def test_a_fork_while_a_thread_samples_leaves_the_child_no_lock(tmp_path: Path) -> None:
    club(tmp_path)
    sampler = NeighborSampler(open_dataset(tmp_path), [3])
    inputs = NodeSamplerInput(input_id=None, node=torch.arange(5))
    expected = sampler.sample_from_nodes(inputs).node.tolist()
    sampling = sampler._sampling
    with sampling._turn:  # as a thread does that is sampling
        child = os.fork()
        if child == 0:
            if not sampling._turn.acquire(timeout=60):
                os._exit(1)
            sampling._turn.release()
            os._exit(0 if sampler.sample_from_nodes(inputs).node.numel() else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(sampler.sample_from_nodes(inputs).node.tolist()) == len(expected)


def test_edge_attributes_of_a_data_object_fit_where_edge_ids_are_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = torch.from_numpy(rng.integers(0, 40, (2, 300)))
    data = Data(x=torch.rand(40, 3), edge_index=edges, edge_attr=torch.arange(300) * 10)
    ds = build_dataset(tmp_path / "d", edges=edges, num_nodes=40, edge_ids=True)
    for batch in NodeLoader(data, NeighborSampler(ds, [4, 4]), batch_size=10):
        assert batch.edge_attr.tolist() == (batch.e_id * 10).tolist()
        assert batch.n_id[batch.edge_index].tolist() == edges[:, batch.e_id].tolist()
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_types_of_a_data_object_do_too(tmp_path: Path) -> None:
    graph = market(tmp_path)
    data = HeteroData()
    for type, arrays in graph.node_arrays.items():
        data[type].x = torch.from_numpy(arrays["x"])
    for key, rows in graph.edges.items():
        targets = np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
        ends = np.stack([rows.indices.astype(np.int64), targets])
        data[key].edge_index = torch.from_numpy(ends)
        for name, values in rows.arrays.items():
            data[key][name] = torch.from_numpy(values)
    ds = open_dataset(tmp_path)
    loader = NodeLoader(
        data, NeighborSampler(ds, [-1]), ("item", torch.tensor([1, 8])), batch_size=2
    )
    (batch,) = loader
    for type in ds.node_types:
        batch[type].num_nodes = len(batch[type].n_id)
    assert_batch(graph, batch, naive(graph, 1).sample({"item": [1, 8]}))


def test_bidirectional_and_induced_outputs(tmp_path: Path) -> None:
    club(tmp_path)
    ds = open_dataset(tmp_path)
    inputs = NodeSamplerInput(None, torch.arange(20))
    both = NeighborSampler(ds, [-1], subgraph_type="bidirectional").sample_from_nodes(inputs)
    pairs = set(zip(both.row.tolist(), both.col.tolist(), strict=True))
    assert pairs == {(column, row) for row, column in pairs} and both.num_sampled_nodes is None
    induced = NeighborSampler(ds, [-1], subgraph_type="induced").sample_from_nodes(inputs)
    (ours,) = NeighborLoader(ds, [-1], torch.arange(20), batch_size=20, subgraph_type="induced")
    assert torch.stack([induced.row, induced.col]).tolist() == ours.edge_index.tolist()
    assert induced.edge.tolist() == ours.e_id.tolist() and induced.num_sampled_edges is None


def test_batches_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    sampler = NeighborSampler(ds, [2, 2])

    def epochs(workers: int) -> list[Any]:
        torch.manual_seed(4)
        loader = NodeLoader(
            stores(ds), sampler, ("user", torch.arange(70)), batch_size=9, num_workers=workers
        )
        found = [all_listed(loader) for _ in range(2)]
        stop_workers(loader)
        return found

    first = epochs(1)
    assert epochs(2) == first and first[0] != first[1]


def test_without_workers_torchs_generator_decides(tmp_path: Path) -> None:
    club(tmp_path)
    sampler = NeighborSampler(open_dataset(tmp_path), [2])
    inputs = EdgeSamplerInput(None, torch.arange(40), torch.arange(40, 80))
    wanted = NegativeSampling("binary", 2)

    def drawn() -> tuple[list[int], list[int]]:
        out = sampler.sample_from_edges(inputs, wanted)
        return out.node.tolist(), out.metadata[1].tolist()

    torch.manual_seed(1)
    first, second = drawn(), drawn()
    torch.manual_seed(1)
    assert drawn() == first != second


def test_it_pickles_by_path_and_refuses_what_outgrows_its_limit(tmp_path: Path) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    sampler = NeighborSampler(ds, [-1, -1], limit=SampleLimit(30, 1000))
    inputs = NodeSamplerInput(None, torch.arange(3), input_type="tag")
    with pytest.raises(InputError, match="no node type 'tag'"):
        sampler.sample_from_nodes(inputs)
    inputs = NodeSamplerInput(None, torch.arange(20), input_type="user")
    pickled = pickle.dumps(sampler)
    assert len(pickled) < 2048
    for held in (sampler, pickle.loads(pickled)):
        with pytest.raises(NoRoomError, match="planned for 30"):
            held.sample_from_nodes(inputs)
    with pytest.raises(InputError, match="no type, and the dataset has several"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(3)))
    assert sampler.edge_permutation is None


def test_stores_tell_what_there_is_and_read_it(tmp_path: Path) -> None:
    graph = market(tmp_path)
    ds = open_dataset(tmp_path)
    features, edges = pickle.loads(pickle.dumps(stores(ds)))
    told = [(attr.group_name, attr.attr_name) for attr in features.get_all_tensor_attrs()]
    assert told == [("user", "x"), ("item", "x")]
    x = graph.node_arrays["user"]["x"]
    for index, rows in (
        (None, x),
        (torch.tensor([5, 2, 5]), x[[5, 2, 5]]),
        (slice(3, 9, 2), x[3:9:2]),
        (4, x[4:5]),
        ([1, 0], x[[1, 0]]),
        (torch.arange(70) < 3, x[:3]),
    ):
        np.testing.assert_array_equal(features.get_tensor("user", "x", index), rows)
    assert features.get_tensor_size("item", "x", None) == (50, 4)
    assert features.get_tensor("user", "y", None) is None
    assert [attr.edge_type for attr in edges.get_all_edge_attrs()] == [BUYS, LIKED, KNOWS]
    row, colptr = edges.get_edge_index(BUYS, "csc")
    assert row.tolist() == graph.edges[BUYS].indices.tolist()
    assert colptr.tolist() == graph.edges[BUYS].indptr.tolist()
    assert DatasetFeatureStore(ds, {"item": ["x"]}).get_all_tensor_attrs() == [
        TensorAttr("item", "x")
    ]
    with pytest.raises(InputError, match="cannot be written"):
        features.put_tensor(torch.zeros(3), group_name="user", attr_name="z", index=None)
    with pytest.raises(InputError, match="cannot be removed"):
        features.remove_tensor(group_name="user", attr_name="x", index=None)
    with pytest.raises(InputError, match="cannot be written"):
        edges.put_edge_index((row, row), BUYS, "coo")
    with pytest.raises(InputError, match="cannot be removed"):
        edges.remove_edge_index(BUYS, "csc")
