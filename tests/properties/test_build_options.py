"""Every combination of options, on any small graph and by any buffers, equals the plainest way."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import build_spec_here
from naive_graph import ReadDataset, degree_order, naive_rows
from overspill.build.describe import Columns
from overspill.build.plan import BuildPlan

USER, ITEM = "user", "item"
FOLLOWS, BUYS = (USER, "follows", USER), (USER, "buys", ITEM)

plans = st.builds(
    BuildPlan,
    chunk_edges=st.integers(1, 40),
    ranges=st.sampled_from([1, 2, 4, 16]),
    block_bytes=st.sampled_from([24, 48, 240]),
    spare_blocks=st.integers(1, 5),
    bucket_bytes=st.sampled_from([512, 1024, 4096]),
    run_ids=st.integers(1, 20),
    copy_bytes=st.integers(1, 100),
)


@dataclass(frozen=True)
class Graph:
    """Raw edges of one type with an array of each kind."""

    sources: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    times: np.ndarray

    @classmethod
    def draw(cls, data: st.DataObject, sources: int, targets: int, *, label: str) -> Graph:
        count = data.draw(st.integers(1, 120), label=f"edges of {label}")
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label=f"seed of {label}"))
        ends = rng.integers(0, sources, count), rng.integers(0, targets, count)
        hub = data.draw(st.floats(0, 1), label=f"hub of {label}")
        ends[1][rng.random(count) < hub] = 0
        return cls(*ends, rng.random((count, 3)).astype(np.float32), rng.integers(0, 99, count))


@given(
    data=st.data(),
    plan=plans,
    layout=st.sampled_from([("csc",), ("csr",), ("csc", "csr")]),
    duplicates=st.sampled_from(["keep", "drop", "count"]),
    self_loops=st.sampled_from(["keep", "drop"]),
    sort_within_row=st.booleans(),
    to_undirected=st.booleans(),
    edge_ids=st.booleans(),
    with_arrays=st.booleans(),
    degree=st.booleans(),
    ids=st.sampled_from(["dense", "remap"]),
)
@settings(max_examples=150, deadline=None)
def test_one_type(data: st.DataObject, plan: BuildPlan, layout: tuple[str, ...], **o: Any) -> None:
    nodes = data.draw(st.sampled_from([1, 2, 9, 100]), label="nodes")
    graph = Graph.draw(data, nodes, nodes, label="the graph")
    scale = 10**12 if o["ids"] == "remap" else 1
    held = np.unique(np.concatenate([graph.sources, graph.targets]))
    count = len(held) if o["ids"] == "remap" else int(held.max()) + 1
    dense = {int(raw): place for place, raw in enumerate(held)}
    edges = [
        (dense[s], dense[t]) if o["ids"] == "remap" else (s, t)
        for s, t in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    ]
    features = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    options = {name: o[name] for name in ("duplicates", "self_loops", "sort_within_row")}
    options |= {"to_undirected": o["to_undirected"], "layout": layout}
    with tempfile.TemporaryDirectory() as place:
        where = Path(place)
        np.save(where / "e.npy", np.stack([graph.sources, graph.targets]) * scale)
        np.save(where / "x.npy", features)
        np.save(where / "w.npy", graph.weights)
        built = build_spec_here(
            where / "out",
            plan=plan,
            edges=where / "e.npy",
            edge_axis=1,
            node_features={"x": where / "x.npy"},
            edge_features={"w": where / "w.npy"} if o["with_arrays"] else None,
            edge_ids=o["edge_ids"],
            order="degree" if o["degree"] else "given",
            ids=o["ids"],
            **options,
        )
        dataset = ReadDataset(where / "out")
        node = dataset.manifest.node_types["node"]
        renumbered = np.arange(count)
        if o["degree"]:
            given = naive_rows(edges, count, **options | {"layout": "csc"})
            renumbered = degree_order(given.indptr)
            assert node.renumbered is not None and node.original is not None
            assert np.array_equal(dataset.content(node.renumbered), renumbered)
            assert np.array_equal(renumbered[dataset.content(node.original)], np.arange(count))
        moved = [(int(renumbered[s]), int(renumbered[t])) for s, t in edges]
        key = ("node", "to", "node")
        edge = dataset.manifest.edge_types[key]
        for one in layout:
            naive = naive_rows(moved, count, **options | {"layout": one})
            dataset.require_layout(key, one, naive)
            assert ("edge_ids" in edge.layouts[one]) == (o["edge_ids"] or o["with_arrays"])
            assert ("counts" in edge.layouts[one]) == (o["duplicates"] == "count")
            assert edge.notes["self_loops"] == naive.self_loops
            if o["duplicates"] != "keep":
                assert edge.notes["duplicates"] == naive.duplicates
            if o["with_arrays"]:
                stored = dataset.content(edge.arrays[one]["w"])
                assert np.array_equal(stored, graph.weights[naive.origin])
        assert np.array_equal(dataset.content(node.arrays["x"])[renumbered], features)
        assert built.nodes == count


@given(
    data=st.data(),
    plan=plans,
    layout=st.sampled_from([("csc",), ("csr",), ("csc", "csr")]),
    degree=st.booleans(),
    known=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_two_edge_types(
    data: st.DataObject, plan: BuildPlan, layout: tuple[str, ...], degree: bool, known: bool
) -> None:
    users, items = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    follows = Graph.draw(data, users, users, label="follows")
    buys = Graph.draw(data, users, items, label="buys")
    if not known:
        users = int(max(follows.sources.max(), follows.targets.max(), buys.sources.max())) + 1
        items = int(buys.targets.max()) + 1
    with tempfile.TemporaryDirectory() as place:
        where = Path(place)
        np.save(where / "f.npy", np.stack([follows.sources, follows.targets]))
        np.save(where / "b.npy", np.stack([buys.sources, buys.targets], axis=1))
        table = np.stack([buys.sources, buys.targets, buys.times], axis=1)
        np.savetxt(where / "b.csv", table, fmt="%d", delimiter=",", header="u,i,t", comments="")
        build_spec_here(
            where / "out",
            plan=plan,
            edges={FOLLOWS: where / "f.npy", BUYS: where / "b.csv"},
            columns={BUYS: ("u", "i")},
            edge_features={BUYS: {"t": Columns("t")}},
            edge_axis=1,
            num_nodes={USER: users, ITEM: items} if known else None,
            layout=layout,
            order="degree" if degree else "given",
        )
        dataset = ReadDataset(where / "out")
        counts = {USER: users, ITEM: items}
        found = {name: node.count for name, node in dataset.manifest.node_types.items()}
        assert found == counts
        plain = {
            key: list(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
            for key, graph in ((FOLLOWS, follows), (BUYS, buys))
        }
        numbers = {name: np.arange(count) for name, count in counts.items()}
        if degree:
            numbers = {
                key[2]: degree_order(naive_rows(edges, counts[key[2]]).indptr)
                for key, edges in plain.items()
            }
        for key, edges in plain.items():
            moved = [(int(numbers[key[0]][s]), int(numbers[key[2]][t])) for s, t in edges]
            for one in layout:
                rows = counts[key[2] if one == "csc" else key[0]]
                naive = naive_rows(moved, rows, layout=one, same_type=False)
                dataset.require_layout(key, one, naive)
                if key == BUYS:
                    stored = dataset.content(dataset.manifest.edge_types[key].arrays[one]["t"])
                    assert np.array_equal(stored, buys.times[naive.origin])
