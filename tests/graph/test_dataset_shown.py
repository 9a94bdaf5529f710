"""A dataset in one line and as a table: complete, harmless, and no page of it is read."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import overspill as ov
from confined import make_cold
from overspill.graph.dataset_shown import dataset_html, dataset_line
from overspill.linux.cache import cached_bytes
from overspill.pyg import (
    DatasetFeatureStore,
    DatasetGraphStore,
    HotRows,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
)
from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord
from overspill.storage.records import FileRecord
from overspill.storage.workspace import leave_runs
from small_graphs import random_graph


def manifest(types: int = 1, name: str = "node") -> Manifest:
    array = FileRecord("x.safetensors", "float16", (1200, 7), 16800, "")
    nodes = {f"{name}{i}": NodeTypeRecord(f"{name}{i}", 1200, {"x": array}) for i in range(types)}
    edges = [EdgeTypeRecord(key, "to", key, 34, {"csc": {"indptr": array}}) for key in nodes]
    return Manifest("id", nodes, {edge.key: edge for edge in edges})


def cells(html: str) -> list[str]:
    """The text of each cell; fails on tags that are not closed."""
    return ["".join(cell.itertext()) for cell in ElementTree.fromstring(html).iter("td")]


def titles(html: str) -> list[str]:
    return ["".join(cell.itertext()) for cell in ElementTree.fromstring(html).iter("th")]


def test_the_table_has_every_type_and_array() -> None:
    html = dataset_html(Path("/data"), manifest())
    array = ["float16", "1,200 x 7", "16.4 KiB"]
    assert cells(html) == ["x", *array, "csc indptr", *array]
    assert titles(html)[4:] == ["node0: 1,200 nodes", "node0 → to → node0: 34 edges"]
    assert "/data" in html and "32.8 KiB on disk" in html


def test_names_are_text_and_no_markup() -> None:
    html = dataset_html(Path("/<script>"), manifest(name="<b>&"))
    assert "<script>" not in html and "<b>&" not in html
    assert "<b>&0: 1,200 nodes" in titles(html)


def test_of_many_types_the_line_and_the_table_stay_short() -> None:
    line = dataset_line(Path("/data"), manifest(types=3000))
    assert len(line) < 700 and "'node7', and 2992 more]" in line
    assert line.startswith("Dataset('/data', num_nodes=3600000, num_edges=102000, node_types=[")
    html = dataset_html(Path("/data"), manifest(types=3000))
    assert cells(html)[-1] == "and 11800 more" and len(html) < 40_000


def require_one_line(shown: object) -> None:
    told = repr(shown)
    assert "\n" not in told and len(told) < 1000 and " object at 0x" not in told, told
    str(shown)


def test_nothing_public_reads_a_page_to_show_itself(tmp_path: Path) -> None:
    random_graph(tmp_path, num_nodes=400, num_edges=3000)
    ds = ov.open_dataset(tmp_path)
    name = ds.feature_names()[0]
    shown = [
        ds,
        ds.topology(),
        ds.sampler([2]),
        ov.SamplingSpec(num_neighbors={ds.edge_types[0]: (2,)}),
        NeighborSampler(ds, [2]),
        DatasetFeatureStore(ds),
        DatasetGraphStore(ds),
        ov.handle(ds.features(name)),
        ov.residency(ds.features(name)),
    ]
    files = [path for path in tmp_path.iterdir() if path.name != "manifest.json"]
    make_cold(*files)
    for one in shown:
        require_one_line(one)
    ds._repr_html_()
    assert {path.name: cached_bytes(path) for path in files} == {path.name: 0 for path in files}


def test_loaders_and_what_they_hold_are_one_line(tmp_path: Path) -> None:
    random_graph(tmp_path)
    ds = ov.open_dataset(tmp_path)
    loader = NeighborLoader(ds, [2])
    links = LinkNeighborLoader(ds, [2], (None, torch.zeros((2, 1), dtype=torch.int64)))
    hot = HotRows.chosen_by_degree(ds, [("node", ds.feature_names()[0])], 1 << 12, shared=False)
    for one in (loader, loader.plan, loader.stats(), links, hot, ov.memory_report()):
        require_one_line(one)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (ov.Columns("age"), "Columns('age')"),
        (
            ov.Columns(("a", "b"), of="t.csv", key="id", fill=0),
            "Columns(('a', 'b'), of='t.csv', key='id', fill=0)",
        ),
        (ov.Columns("a", of=[Path("t"), "u"]), "Columns('a', of=[PosixPath('t'), 'u'])"),
        (ov.Columns("a", of=np.zeros((1000, 1000))), "Columns('a', of=<numpy ndarray>)"),
        (ov.Columns("a", of=[np.zeros(9)] * 2), "Columns('a', of=<builtins list>)"),
    ],
)
def test_columns_show_what_they_are_of_and_not_its_data(columns: ov.Columns, told: str) -> None:
    assert repr(columns) == told


def test_a_span_of_batches_says_whether_it_is_in_force(tmp_path: Path) -> None:
    with ov.settings(spill_dir=tmp_path):
        span = ov.spill_batches()
        with span:
            assert repr(span) == "BatchSpan(in force)"
        assert repr(span) == "BatchSpan(ended)"
    leave_runs()
