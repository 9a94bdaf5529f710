"""A dataset in parts gives what the whole gives, bit for bit, whoever serves which part."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
import parted
from loaded_batches import BUYS, LIKED, all_listed, club, market
from overspill.cluster import parted_arrays, parted_edges
from overspill.cluster.dataset import ClusterDataset
from overspill.errors import FormatError, InputError, NoRoomError, StaleFileError
from overspill.graph.reading.row_reader import RowReader
from overspill.graph.sampling.spec import SampleLimit, SamplingSpec
from overspill.pyg import HotRows, LinkNeighborLoader, NeighborLoader, negatives
from overspill.pyg.projection import reading_cost
from overspill.storage.partition_survey import find_parts
from parts_here import DirectConnection, dealt, opened_parts
from small_graphs import compress, random_graph, write_graph
from typed_graphs import everything_of

LOADER = {"batch_size": 16, "seed": 3, "shuffle": True}


class Served:
    """A whole dataset, and its parts on some machines."""

    def __init__(self, whole: Path, directory: Path, machines: int) -> None:
        self.whole, self.directory = ov.open_dataset(whole), directory
        self.homes = dealt(sum(one.is_dir() for one in directory.glob("part-*")), machines)
        self.parts, self.connection = self.open()

    def open(self, *, here: int | None = 0) -> tuple[ClusterDataset, DirectConnection]:
        return opened_parts(self.directory, self.homes, here=here)


def served(whole: Path, parts: int, machines: int, method: str = "range") -> Served:
    directory = whole.with_name(f"{whole.name}-{method}-{parts}")
    if not directory.exists():
        ov.partition_dataset(whole, parts, out=directory, method=method)
    return Served(whole, directory, machines)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("parts")
    market(place / "market")
    club(place / "club")
    club(place / "few", num_nodes=14, num_edges=90)
    random_graph(place / "random", num_nodes=300)
    return place


@pytest.fixture
def markets(place: Path) -> Served:
    return served(place / "market", 5, 2)


@pytest.fixture
def clubs(place: Path) -> Served:
    return served(place / "club", 9, 3, "degree-balanced")


@pytest.fixture
def crowded(place: Path) -> Served:
    """More parts than nodes, several empty."""
    return served(place / "few", 20, 2)


@pytest.fixture
def scattered(place: Path) -> Served:
    return served(place / "club", 4, 2, "hash")


def same_batches(held: Served, make: Callable[[Any], Any]) -> None:
    assert all_listed(make(held.parts)) == all_listed(make(held.whole))


def loader_of(fan_outs: list[int], dataset: Any) -> Any:
    return NeighborLoader(dataset, fan_outs, **LOADER)


NODE_OPTIONS: dict[str, dict[str, Any]] = {
    "all": {"num_neighbors": [-1, -1]},
    "some": {"num_neighbors": [4, 3]},
    "many": {"num_neighbors": [40, 2]},
    "replaced": {"num_neighbors": [5, 2], "replace": True},
    "disjoint": {"num_neighbors": [3, 2], "disjoint": True},
    "induced": {"num_neighbors": [3, 2], "subgraph_type": "induced"},
    "both ways": {"num_neighbors": [3, 2], "subgraph_type": "bidirectional"},
    "weighted": {"num_neighbors": [3, 2], "weight_attr": "w"},
    "timed": {"num_neighbors": [3, 2], "time_attr": "t", "temporal_strategy": "last"},
    "none": {"num_neighbors": [0, 3]},
    "together": {"num_neighbors": [4, 3], "lookahead": 3},
    "ahead": {"num_neighbors": [4, 3], "prefetch_batches": 2},
}


@pytest.mark.parametrize("graph", ["markets", "clubs"])
@pytest.mark.parametrize("kind", NODE_OPTIONS)
def test_node_batches_are_those_of_the_whole(
    kind: str, graph: str, request: pytest.FixtureRequest
) -> None:
    options = {**LOADER, **NODE_OPTIONS[kind]}
    if graph == "markets":
        options["input_nodes"] = "item"
    if kind == "timed":
        count = 50 if graph == "markets" else 120
        options["input_time"] = torch.arange(count) % 40
    same_batches(request.getfixturevalue(graph), lambda dataset: NeighborLoader(dataset, **options))


def test_more_parts_than_nodes(crowded: Served) -> None:
    same_batches(crowded, lambda dataset: NeighborLoader(dataset, [4, -1], **LOADER))


LINK_OPTIONS: dict[str, dict[str, Any]] = {
    "all edges": {},
    "binary": {"neg_sampling": "binary"},
    "triplets": {"neg_sampling": ("triplet", 2)},
}


@pytest.mark.parametrize("kind", LINK_OPTIONS)
@pytest.mark.parametrize("edge_type", [BUYS, LIKED])
def test_link_batches_are_those_of_the_whole(
    markets: Served, kind: str, edge_type: tuple[str, str, str]
) -> None:
    options = {**LOADER, **LINK_OPTIONS[kind], "edge_label_index": edge_type, "batch_size": 60}
    same_batches(markets, lambda dataset: LinkNeighborLoader(dataset, [3, 2], **options))


@pytest.mark.parametrize("kind", ["all", "some", "replaced", "weighted", "induced"])
def test_scattered_nodes_give_the_same_but_for_the_numbers_of_edges(
    scattered: Served, kind: str
) -> None:
    def batches(dataset: Any) -> list[Any]:
        told = all_listed(NeighborLoader(dataset, **LOADER, **NODE_OPTIONS[kind]))
        return [{name: value for name, value in batch.items() if name != "e_id"} for batch in told]

    # Edge arrays go by these numbers: w and t of each edge are the whole's all the same.
    assert batches(scattered.parts) == batches(scattered.whole)


def test_ends_of_scattered_edges(scattered: Served) -> None:
    (key,) = scattered.whole.edge_types
    count = scattered.whole.num_edges
    ends = scattered.parts.open_edge_ends(key).at(np.arange(count))
    whole = scattered.whole.open_edge_ends(key).at(np.arange(count))
    assert sorted(zip(*ends.tolist(), strict=True)) == sorted(zip(*whole.tolist(), strict=True))
    times = scattered.parts.gather("t", torch.arange(count), edge_type=key)
    pairs = sorted(zip(*ends.tolist(), times.tolist(), strict=True))
    held = scattered.whole.gather("t", torch.arange(count), edge_type=key)
    assert pairs == sorted(zip(*whole.tolist(), held.tolist(), strict=True))


@pytest.mark.parametrize("here", [0, 1, None])
def test_rows_come_in_the_order_asked_for_wherever_they_lie(markets: Served, here: int) -> None:
    parts, _ = markets.open(here=here)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 70, 500))
    assert torch.equal(parts.gather("x", ids, "user"), markets.whole.gather("x", ids, "user"))
    places = torch.from_numpy(np.random.default_rng(1).permutation(300))
    for name in ("w", "a", "t"):
        found = parts.gather(name, places, edge_type=BUYS)
        assert torch.equal(found, markets.whole.gather(name, places, edge_type=BUYS))
    assert parts.gather("x", [], "user").shape == (0, 3)


def test_out_of_range_is_refused_before_anybody_is_asked(markets: Served) -> None:
    before = len(markets.connection.asked)
    for ids in ([70], [-1], [0, 3, 1 << 40]):
        with pytest.raises(InputError, match="out of range"):
            markets.parts.gather("x", ids, "user")
        with pytest.raises(InputError, match="out of range"):
            markets.parts.sampler([2]).sample({"user": np.array(ids)}, key=np.uint64(0))
    assert len(markets.connection.asked) == before


def asked_by(connection: DirectConnection, act: Callable[[], object]) -> list[tuple[int, str, int]]:
    connection.asked.clear()
    act()
    return list(connection.asked)


def test_a_hop_and_a_gather_ask_each_other_machine_once(place: Path) -> None:
    even = served(place / "random", 6, 3)
    sampler = even.parts.sampler([4, -1])
    seeds = np.arange(0, 300, 2)
    told = asked_by(even.connection, lambda: sampler.sample(seeds, key=np.uint64(1)))
    assert [one[:2] for one in told] == [(1, "sample"), (2, "sample")] * 2
    assert sum(size for _, _, size in told[:2]) == 100  # of 150 seeds those of the other machines
    ids = np.arange(300)
    told = asked_by(even.connection, lambda: even.parts.gather("x", ids))
    assert told == [(1, "gather", 100), (2, "gather", 100)]
    # What lies here is asked of nobody.
    mine = ids[even.parts.machines_of_nodes(ids) == 0]
    assert asked_by(even.connection, lambda: even.parts.gather("x", mine)) == []
    sampler = even.parts.sampler([4])
    assert asked_by(even.connection, lambda: sampler.sample(mine, key=np.uint64(1))) == []


def test_large_replies_come_in_pieces(clubs: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted_arrays, "PIECE_BYTES", 200)
    monkeypatch.setattr(parted_arrays, "WINDOW_BYTES", 700)
    monkeypatch.setattr("overspill.cluster.local_parts.REPLY_EDGES", 13)
    monkeypatch.setattr(parted_edges, "REPLY_EDGES", 13)
    for fan_outs in ([4, 3], [-1, -1], [20, 4]):
        same_batches(
            clubs, lambda dataset, wanted=fan_outs: NeighborLoader(dataset, wanted, **LOADER)
        )
    told = asked_by(clubs.connection, lambda: clubs.parts.gather("x", np.arange(120)))
    assert max(size for _, _, size in told) == 200 // 20


def test_a_hub_that_was_not_planned_for_is_refused_without_being_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overspill.cluster.local_parts.REPLY_EDGES", 50)
    hub = compress(np.arange(1000) % 300, np.full(1000, 299), 300)
    hubs = served(write_graph(tmp_path / "hub", *hub).path, 2, 2)
    spec = SamplingSpec(num_neighbors={hubs.whole.edge_types[0]: (-1,)}, edge_places=True)
    picked: list[Any] = []
    server = hubs.connection.servers[1]
    sample = server.sample
    monkeypatch.setattr(server, "sample", lambda *a: picked.append(sample(*a)) or picked[-1])
    for most, refused in ((1000, 0), (999, 1000)):
        picked.clear()
        sampler = hubs.parts.sampler(spec, limit=SampleLimit(1000, most))
        if refused:
            with pytest.raises(NoRoomError, match="1000 edges where memory was planned for 999"):
                sampler.sample(np.array([0, 299]), key=np.uint64(0))
        else:
            assert sampler.sample(np.array([0, 299]), key=np.uint64(0)).num_edges() == 1000
        assert picked[-1].refused == refused
        assert picked[-1].sources.size == 1000 - refused


def test_without_places_none_are_sent(clubs: Served) -> None:
    spec = SamplingSpec(num_neighbors={clubs.whole.edge_types[0]: (4, 3)})
    seeds, key = np.arange(50), np.uint64(5)
    ours = clubs.parts.sampler(spec).sample(seeds, key=key)
    whole = clubs.whole.sampler(spec).sample(seeds, key=key)
    for sampled in (ours, whole):
        with pytest.raises(InputError, match="not remembered"):
            everything_of(sampled)
    assert ours.edges_per_hop == whole.edges_per_hop
    found = [np.empty((2, one.num_edges()), np.int64) for one in (ours, whole)]
    for one, out in zip((ours, whole), found, strict=True):
        one.write_edges(out)
    np.testing.assert_array_equal(*found)


def test_hot_rows_are_chosen_by_counts_and_not_by_degree(markets: Served, tmp_path: Path) -> None:
    options = {**LOADER, "input_nodes": "item"}
    same = all_listed(NeighborLoader(markets.whole, [3, 2], **options))
    loader = NeighborLoader(markets.parts, [3, 2], **options)
    counts = loader.count_uses()
    keys = [("user", "x"), (BUYS, "w")]
    hot = HotRows.chosen_by_counts(markets.parts, keys, counts, 1 << 12, shared=False)
    assert hot.count(("user", "x")) > 0
    assert all_listed(NeighborLoader(markets.parts, [3, 2], **options, hot_rows=hot)) == same
    for refused in ({"hot_rows": "1MiB"}, {"pack": tmp_path / "pack"}):
        with pytest.raises(InputError, match=r"several machines.*count_uses"):
            NeighborLoader(markets.parts, [3, 2], **options, **refused)


def test_what_cannot_be_mapped_says_what_to_do_instead(clubs: Served) -> None:
    for act in (
        clubs.parts.topology,
        lambda: clubs.parts.features("x"),
        lambda: clubs.parts.edge_features("w"),
    ):
        with pytest.raises(InputError, match=r"lie on several machines.*gather the rows"):
            act()
    assert clubs.parts.lookup([7, 3]).tolist() == [7, 3]
    assert clubs.parts.node_ids().tolist() == list(range(120))


def test_it_looks_like_the_whole(markets: Served) -> None:
    parts, whole = markets.parts, markets.whole
    assert (parts.node_types, parts.edge_types) == (whole.node_types, whole.edge_types)
    assert (parts.num_nodes, parts.num_edges) == (whole.num_nodes, whole.num_edges)
    for key in whole.edge_types:
        assert parts.edge_feature_names(key) == whole.edge_feature_names(key)
        assert parts.edge_record(key).count == whole.edge_record(key).count
    assert parts.part is None
    assert parts.machines == ("node-0", "node-1")
    assert parts.local_parts == (0, 2, 4)
    assert "parts=5, machines=2" in repr(parts)
    homes = parts.machines_of_nodes([0, 13, 14, 69], "user")
    assert homes.tolist() == [0, 0, 1, 0]
    with pytest.raises(InputError, match="out of range"):
        parts.machines_of_nodes([70], "user")


@pytest.mark.parametrize("where", [0, 1])
def test_a_part_that_was_replaced_is_an_error_as_it_is(tmp_path: Path, where: int) -> None:
    random_graph(tmp_path / "whole", num_nodes=100)
    two = served(tmp_path / "whole", 2, 2)
    ids = np.arange(50) + 50 * where  # of the part here, or of the other machine's
    two.parts.gather("x", ids)
    part = ov.open_partition(two.directory).parts[where]
    path = part.path / part.manifest.node_types["node"].arrays["x"].path
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    with pytest.raises(StaleFileError):
        two.parts.gather("x", ids)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("induced", [False, True])
def test_damaged_pointers_lead_out_of_no_part(tmp_path: Path, where: int, induced: bool) -> None:
    random_graph(tmp_path / "whole", num_nodes=100)
    two = served(tmp_path / "whole", 2, 2)
    (key,) = two.whole.edge_types
    part = ov.open_partition(two.directory).parts[where]
    record = part.manifest.edge_types[key].layouts["csc"]["indptr"]
    with (part.path / record.path).open("r+b") as file:
        file.seek(-8 * 20, 2)
        file.write(np.int64(1 << 40).tobytes())
    sampler = two.parts.sampler(SamplingSpec(num_neighbors={key: (2,)}, induced=induced))
    with pytest.raises(FormatError, match=f"topology of part {where} is damaged"):
        sampler.sample(np.arange(50) + 50 * where, key=np.uint64(0))


def test_a_part_of_another_partition_is_not_found(place: Path, tmp_path: Path) -> None:
    random_graph(tmp_path / "whole", num_nodes=100)
    one, other = (served(tmp_path / "whole", 2, 2, method) for method in ("range", "hash"))
    manifests = [path.directory / "part-00000" / "manifest.json" for path in (one, other)]
    manifests[0].write_bytes(manifests[1].read_bytes())
    found = find_parts(str(one.directory))
    assert list(found.parts) == [1]
    assert found.problems[0]
    with pytest.raises((StaleFileError, FormatError)):
        one.parts.gather("x", [1])
    assert find_parts(str(tmp_path / "nowhere")).partition is None


def test_the_earliest_node_is_found_piece_by_piece(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = served(market(place / "timed", node_times=True).path, 5, 2)
    monkeypatch.setattr(negatives, "_NODES_A_PIECE", 7)
    for type in ("user", "item"):
        found = negatives.NodeTimes(timed.parts, "t", type).argmin()
        assert found == negatives.NodeTimes(timed.whole, "t", type).argmin()
    links = torch.arange(80).reshape(2, 40) % 45
    options = {
        **LOADER,
        "edge_label_index": (BUYS, links),
        "edge_label_time": torch.arange(40),
        "time_attr": "t",
        "neg_sampling": "binary",
    }
    same_batches(timed, lambda dataset: LinkNeighborLoader(dataset, [3, 2], **options))


@pytest.mark.parametrize("there", [0.0, 0.5, 1.0])
def test_what_requests_take_is_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: float
) -> None:
    count = 300_000
    ends = np.random.default_rng(0).integers(0, count, (2, count))
    write_graph(tmp_path / "whole", *compress(*ends, count), {"x": np.arange(count)})
    two = served(tmp_path / "whole", 2, 2)
    loader = NeighborLoader(two.parts, [1], seed=1)
    cost = reading_cost(loader.dataset.recipe, scans=False)  # type: ignore[attr-defined]
    middle = count // 2
    ids = np.random.default_rng(1).integers(0, middle, count) + middle * (
        np.random.default_rng(2).random(count) < there
    )
    reader, out = RowReader(two.parts), torch.empty(count, dtype=torch.int64)
    reader.gather(("node", "x"), ids[:10], out=out[:10])
    sampler = two.parts.sampler([4])
    sampler.sample(ids, key=np.uint64(0))
    # Replies lie in the object store, and are counted here as the process's own.
    for act in (
        lambda: reader.gather(("node", "x"), ids, out=out),
        lambda: sampler.sample(ids, key=np.uint64(0)),
    ):
        tracemalloc.start()
        try:
            act()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= cost.most_bytes(count)


def test_numbers_of_edges_in_the_input_and_arrays_of_every_width(tmp_path: Path) -> None:
    keys = {("a", "to", "b"): 200, ("b", "to", "a"): 120}
    parted.write_typed(tmp_path / "typed", {"a": 40, "b": 30}, keys)
    typed = served(tmp_path / "typed", 3, 2)
    assert "csr" not in typed.parts.edge_record(("a", "to", "b")).layouts
    same_batches(typed, lambda dataset: NeighborLoader(dataset, [3, 2], ("b", None), **LOADER))
    options = {**LOADER, "edge_label_index": ("a", "to", "b"), "edge_label": torch.arange(200)}
    same_batches(typed, lambda dataset: LinkNeighborLoader(dataset, [3], **options))


def test_nodes_that_were_renumbered_have_no_raw_ids_here(tmp_path: Path) -> None:
    raw = {"a": "renumbered", "b": "remap"}
    parted.write_typed(tmp_path / "typed", {"a": 40, "b": 30}, {("a", "to", "b"): 99}, raw=raw)
    typed = served(tmp_path / "typed", 2, 2)
    for type in ("a", "b"):
        with pytest.raises(InputError, match="have raw ids, which are kept with its parts"):
            typed.parts.lookup([3], type)
    same_batches(typed, lambda dataset: NeighborLoader(dataset, [3], ("b", None), **LOADER))


def test_parts_without_in_edges_are_refused(tmp_path: Path) -> None:
    counts, edges = {"a": 9, "b": 8}, {("a", "to", "b"): 30}
    parted.write_typed(tmp_path / "typed", counts, edges, layouts=("csr",))
    with pytest.raises(InputError, match="have no layout 'csc'"):
        served(tmp_path / "typed", 2, 2)
