"""Batches of links: ends, labels, negatives and times, as PyTorch Geometric gives them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.sampler import NegativeSampling

from loaded_batches import (
    BUYS,
    KNOWS,
    all_listed,
    assert_batch,
    club,
    market,
    naive,
    stop_workers,
)
from overspill.errors import InputError
from overspill.graph.construct import build_dataset
from overspill.graph.dataset import open_dataset
from overspill.pyg import LinkNeighborLoader
from typed_graphs import TypedGraph

FRIENDS = ("person", "knows", "person")


def links_of(graph: TypedGraph, key: Any) -> np.ndarray:
    """All edges of a type, in the dataset's order."""
    rows = graph.edges[key]
    targets = np.repeat(np.arange(len(rows.indptr) - 1), np.diff(rows.indptr))
    return np.stack([rows.indices.astype(np.int64), targets])


def ends_of(batch: Any, key: Any) -> np.ndarray:
    """Global ids of a typed batch's label index."""
    source, target = batch[key].edge_label_index
    return np.stack([batch[key[0]].n_id[source], batch[key[2]].n_id[target]])


def test_links_of_one_type_without_negatives(tmp_path: Path) -> None:
    graph = club(tmp_path)
    links = torch.tensor([[3, 5, 3, 7], [5, 3, 9, 7]])
    labels = torch.tensor([1.5, 2.5, 3.5, 4.5])
    (batch,) = LinkNeighborLoader(
        open_dataset(tmp_path), [-1, -1], links, edge_label=labels, batch_size=4
    )
    assert_batch(graph, batch, naive(graph, 2).sample({"person": [3, 5, 7, 9]}))
    assert batch.n_id[batch.edge_label_index].tolist() == links.tolist()
    assert batch.edge_label.tolist() == labels.tolist() and batch.input_id.tolist() == [0, 1, 2, 3]
    assert "edge_label_time" not in batch and "batch_size" not in batch


def test_all_edges_of_a_type_are_its_links(tmp_path: Path) -> None:
    graph = market(tmp_path)
    ds = open_dataset(tmp_path)
    for named in (BUYS, ("buys",), (BUYS, None)):
        loader = LinkNeighborLoader(ds, [-1], named, batch_size=64)
        found = np.concatenate([ends_of(batch, BUYS) for batch in loader], axis=1)
        np.testing.assert_array_equal(found, links_of(graph, BUYS))
    batch = next(iter(loader))
    sources, targets = np.unique(found[0, :64]), np.unique(found[1, :64])
    assert_batch(
        graph,
        batch,
        naive(graph, 1).sample({"user": sources.tolist(), "item": targets.tolist()}),
    )
    assert batch[BUYS].input_id.tolist() == list(range(64))
    club(tmp_path / "club")
    whole = LinkNeighborLoader(open_dataset(tmp_path / "club"), [1], batch_size=700)
    assert [batch.edge_label_index.shape for batch in whole] == [(2, 700)]


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [1, 2.5])
def test_binary_negatives_follow_their_links(tmp_path: Path, disjoint: bool, amount: float) -> None:
    graph = market(tmp_path)
    links = torch.from_numpy(links_of(graph, BUYS)[:, 40:60])
    loader = LinkNeighborLoader(
        open_dataset(tmp_path),
        [-1],
        (BUYS, links),
        neg_sampling=NegativeSampling("binary", amount),
        batch_size=10,
        disjoint=disjoint,
    )
    count = 10 + int(10 * amount)
    for start, batch in zip((0, 10), loader, strict=True):
        ends = ends_of(batch, BUYS)
        np.testing.assert_array_equal(ends[:, :10], links[:, start : start + 10])
        assert ends.shape == (2, count) and batch[BUYS].edge_label_index.dtype == torch.int64
        assert batch[BUYS].edge_label.tolist() == [1.0] * 10 + [0.0] * (count - 10)
        assert batch[BUYS].edge_label.dtype == torch.float32
        assert batch["user"].num_sampled_nodes[0] == (
            count if disjoint else len(np.unique(ends[0]))
        )
        if disjoint and amount == 1:
            of_links = batch["user"].batch[:10], batch["item"].batch[:10]
            assert of_links[0].tolist() == of_links[1].tolist() == list(range(10))


def test_negatives_count_labels_up(tmp_path: Path) -> None:
    club(tmp_path)
    ds = open_dataset(tmp_path)
    links, labels = torch.arange(12).view(2, 6), torch.tensor([0, 2, 1, 0, 0, 1])
    for given in (labels, labels + 1):
        (batch,) = LinkNeighborLoader(
            ds, [2], links, edge_label=given, neg_sampling_ratio=0.5, batch_size=6
        )
        assert batch.edge_label.tolist() == [1, 3, 2, 1, 1, 2, 0, 0, 0]
        assert batch.edge_label.dtype == torch.int64
    assert labels.tolist() == [0, 2, 1, 0, 0, 1]


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [1, 3])
def test_triplets_of_types(tmp_path: Path, disjoint: bool, amount: int) -> None:
    graph = market(tmp_path)
    links = torch.from_numpy(links_of(graph, BUYS)[:, :25])
    loader = LinkNeighborLoader(
        open_dataset(tmp_path),
        [-1],
        (BUYS, links),
        neg_sampling={"mode": "triplet", "amount": amount},
        batch_size=25,
        disjoint=disjoint,
    )
    (batch,) = loader
    users, items = batch["user"], batch["item"]
    np.testing.assert_array_equal(users.n_id[users.src_index], links[0])
    np.testing.assert_array_equal(items.n_id[items.dst_pos_index], links[1])
    assert items.dst_neg_index.shape == ((25,) if amount == 1 else (25, amount))
    assert int(items.dst_neg_index.max()) < items.num_sampled_nodes[0]
    assert "edge_label" not in batch[BUYS] and "edge_label_index" not in batch[BUYS]
    assert "seed_time" not in users
    if disjoint:
        own = items.batch[items.dst_neg_index].view(25, amount)
        assert own.tolist() == [[place] * amount for place in range(25)]


def test_triplets_of_one_type(tmp_path: Path) -> None:
    graph = club(tmp_path)
    links = torch.from_numpy(links_of(graph, FRIENDS)[:, :30])
    (batch,) = LinkNeighborLoader(
        open_dataset(tmp_path), [-1], links, neg_sampling=("triplet", 2), batch_size=30
    )
    np.testing.assert_array_equal(batch.n_id[batch.src_index], links[0])
    np.testing.assert_array_equal(batch.n_id[batch.dst_pos_index], links[1])
    ends = [batch.src_index, batch.dst_pos_index, batch.dst_neg_index]
    seeds = np.unique(np.concatenate([batch.n_id[held].reshape(-1) for held in ends]))
    assert_batch(graph, batch, naive(graph, 1).sample({"person": seeds.tolist()}))


def test_links_within_a_type_of_several(tmp_path: Path) -> None:
    graph = market(tmp_path)
    links = torch.from_numpy(links_of(graph, KNOWS)[:, :20])
    (batch,) = LinkNeighborLoader(
        open_dataset(tmp_path), [-1], (KNOWS, links), neg_sampling="binary", batch_size=20
    )
    ends = ends_of(batch, KNOWS)
    np.testing.assert_array_equal(ends[:, :20], links)
    assert_batch(graph, batch, naive(graph, 1).sample({"user": np.unique(ends).tolist()}))


@pytest.mark.parametrize("node_times", [False, True])
def test_links_in_time_follow_nothing_later(tmp_path: Path, node_times: bool) -> None:
    graph = market(tmp_path, node_times=node_times)
    links, times = torch.from_numpy(links_of(graph, BUYS)[:, :15]), torch.arange(10, 25)
    (batch,) = LinkNeighborLoader(
        open_dataset(tmp_path),
        [-1],
        (BUYS, links),
        edge_label_time=times,
        time_attr="t",
        batch_size=15,
    )
    assert batch[BUYS].edge_label_time.tolist() == times.tolist()
    expected = naive(graph, 1, time="t").sample(
        {"user": links[0].tolist(), "item": links[1].tolist()}, [*times.tolist()] * 2
    )
    for trees in expected.trees.values():
        trees[:] = [tree % 15 for tree in trees]
    assert_batch(graph, batch, expected, trees=True)


def test_negatives_are_not_later_than_their_links(tmp_path: Path) -> None:
    graph = market(tmp_path, node_times=True)
    links, times = torch.from_numpy(links_of(graph, BUYS)[:, :40]), torch.full((40,), 6)
    loader = LinkNeighborLoader(
        open_dataset(tmp_path),
        [2],
        (BUYS, links),
        edge_label_time=times,
        time_attr="t",
        neg_sampling="triplet",
        batch_size=40,
    )
    batch = next(iter(loader))
    items = batch["item"]
    negatives = items.n_id[items.dst_neg_index]
    assert (graph.node_arrays["item"]["t"][negatives] <= 6).all()
    assert items.seed_time.tolist() == batch["user"].seed_time.tolist() == times.tolist()


def test_negatives_are_uniform_or_by_weight(tmp_path: Path) -> None:
    club(tmp_path)
    ds = open_dataset(tmp_path)
    links = torch.zeros((2, 6000), dtype=torch.int64)

    def drawn(**weights: torch.Tensor) -> np.ndarray:
        wanted = NegativeSampling("triplet", 1, **weights)
        loader = LinkNeighborLoader(
            ds, [0], links, neg_sampling=wanted, batch_size=6000, seed=3, features=[]
        )
        batch = next(iter(loader))
        return np.bincount(batch.n_id[batch.dst_neg_index], minlength=120)

    assert stats.chisquare(drawn()).pvalue > 1e-3
    weights = torch.zeros(120)
    weights[10:50], weights[0], weights[119] = 2.0, 0.0, 0.0
    counts = drawn(dst_weight=weights)
    assert counts[:10].sum() == counts[50:].sum() == 0
    assert stats.chisquare(counts[10:50]).pvalue > 1e-3


@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_the_callers_random_numbers_are_left_alone(tmp_path: Path, prefetch_batches: int) -> None:
    club(tmp_path)
    loader = LinkNeighborLoader(
        open_dataset(tmp_path),
        [2],
        neg_sampling="binary",
        batch_size=100,
        shuffle=True,
        seed=1,
        prefetch_batches=prefetch_batches,
    )
    batches = iter(loader)
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = torch.rand(3).tolist(), np.random.rand(), random.random()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    assert len(list(batches)) == 7
    assert (torch.rand(3).tolist(), np.random.rand(), random.random()) == expected


def test_the_same_seed_draws_the_same_negatives_whatever_torch_is_seeded_with(
    tmp_path: Path,
) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    options: dict[str, Any] = {"neg_sampling": "binary", "batch_size": 50, "shuffle": True}
    torch.manual_seed(1)
    loader = LinkNeighborLoader(ds, [2], BUYS, seed=8, **options)
    first, second = all_listed(loader), all_listed(loader)
    torch.manual_seed(2)
    assert all_listed(LinkNeighborLoader(ds, [2], BUYS, seed=8, **options)) == first != second


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (torch.tensor([False, True, False]), [1, 2, 1]),
        (torch.tensor([0, 255, 3], dtype=torch.uint8), [1, 256, 4]),
        (torch.tensor([0, 4, 3], dtype=torch.uint8), [1, 5, 4]),
        (torch.tensor([0.0, 2.5, 1.0]), [1.0, 3.5, 2.0]),
        (torch.tensor([True, True, True]), [True, True, True]),
    ],
)
def test_no_class_is_lost_where_zero_becomes_the_negatives(
    tmp_path: Path, labels: torch.Tensor, expected: list[float]
) -> None:
    club(tmp_path)
    links = torch.tensor([[0, 1, 2], [3, 4, 5]])
    (batch,) = LinkNeighborLoader(
        open_dataset(tmp_path), [1], links, edge_label=labels, neg_sampling="binary", batch_size=3
    )
    assert batch.edge_label.tolist() == [*expected, 0, 0, 0]


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_labels_of_the_datasets_edges_are_in_the_inputs_order(
    tmp_path: Path, duplicates: str, num_workers: int
) -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 20, (2, 300))
    ds = build_dataset(
        tmp_path / "d", edges=edges, num_nodes=20, edge_ids=True, duplicates=duplicates
    )
    labels = torch.from_numpy(edges[0] * 100 + edges[1])
    loader = LinkNeighborLoader(
        ds, [1], ds.edge_types[0], edge_label=labels, input_id=torch.arange(300) * 2,
        shuffle=True, batch_size=40, num_workers=num_workers,
    )  # fmt: skip
    seen = []
    for batch in loader:
        source, target = batch.n_id[batch.edge_label_index]
        assert batch.edge_label.tolist() == (source * 100 + target).tolist()
        rows = edges[:, batch.input_id.numpy() // 2]
        assert rows.tolist() == [source.tolist(), target.tolist()]
        seen += batch.input_id.tolist()
    assert len(set(seen)) == len(seen) == len(loader.dataset)  # type: ignore[arg-type]
    assert (len(seen) == 300) == (duplicates == "keep")
    with pytest.raises(InputError, match=r"edge_label has 200 entries for \d+ edges of the input"):
        LinkNeighborLoader(ds, [1], ds.edge_types[0], edge_label=labels[:200])
    stop_workers(loader)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"edge_label_index": None}, "names no edge type"),
        ({"edge_label_index": ("user", "sells", "item")}, "and 0 are called so"),
        ({"edge_label_index": (BUYS, torch.zeros(3, dtype=torch.int64))}, r"shape \(3,\)"),
        ({"edge_label_index": (BUYS, [[70], [0]])}, "sources.*70 at position 0"),
        ({"edge_label_index": (BUYS, [[0], [50]])}, "targets.*50 at position 0"),
        (
            {"edge_label": torch.ones(3), "edge_label_index": (BUYS, [[0], [0]])},
            r"edge_label has shape \(3,\) for 1 links",
        ),
        ({"edge_label": torch.ones(300)}, "edge_label is given.*order in the input.*edge_ids=True"),
        ({"input_id": torch.arange(300)}, "input_id is given.*order in the input"),
        ({"edge_label_time": torch.ones(300)}, "whole numbers|no time_attr"),
        ({"neg_sampling": "binary", "neg_sampling_ratio": 2.0}, "exclude each other"),
        ({"neg_sampling_ratio": float("inf")}, "amount inf is not finite"),
        ({"neg_sampling": ("binary", float("nan"))}, "cannot be understood"),
        ({"time_attr": "t"}, "there is no edge_label_time"),
        ({"neg_sampling": "ternary"}, "neg_sampling='ternary'"),
        ({"neg_sampling": 3}, "neg_sampling=3"),
        ({"neg_sampling": ("triplet", 1.5)}, "integer"),
        ({"neg_sampling": ("binary", -1)}, "positive"),
        (
            {
                "neg_sampling": "triplet",
                "edge_label": torch.ones(1),
                "edge_label_index": (BUYS, [[0], [0]]),
            },
            "triplets have no labels",
        ),
        (
            {"neg_sampling": NegativeSampling("binary", dst_weight=torch.ones(7))},
            r"dst_weight has shape \(7,\) for 50 nodes",
        ),
        (
            {"neg_sampling": NegativeSampling("binary", src_weight=-torch.ones(70))},
            "src_weight holds a weight that is negative",
        ),
        (
            {"neg_sampling": NegativeSampling("binary", src_weight=torch.zeros(70))},
            "src_weight has no weight above 0",
        ),
    ],
)
def test_links_that_cannot_be_understood_are_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    market(tmp_path)
    chosen = {"num_neighbors": [2], "edge_label_index": BUYS, **options}
    with pytest.raises(InputError, match=told):
        LinkNeighborLoader(open_dataset(tmp_path), **chosen)


def test_the_default_device_is_no_matter(tmp_path: Path) -> None:
    market(tmp_path)
    ds = open_dataset(tmp_path)
    wanted = NegativeSampling("triplet", 2, dst_weight=torch.ones(50))
    options: dict[str, Any] = {"neg_sampling": wanted, "batch_size": 60, "seed": 1}
    expected = all_listed(LinkNeighborLoader(ds, [2], BUYS, **options))
    with torch.device("meta"):
        loader = LinkNeighborLoader(ds, [2], BUYS, **options)
        uses = loader.count_uses(batches=1)
    begun = iter(loader)  # where torch draws its own seed on the default device
    with torch.device("meta"):
        batches = list(begun)
    assert all_listed(batches) == expected and uses["user"].device.type == "cpu"


def test_negatives_of_another_kind_are_refused(tmp_path: Path) -> None:
    class Nearby(NegativeSampling):
        pass

    club(tmp_path)
    with pytest.raises(InputError, match="a Nearby, whose draws would follow no seed"):
        LinkNeighborLoader(open_dataset(tmp_path), [2], neg_sampling=Nearby("binary"))
