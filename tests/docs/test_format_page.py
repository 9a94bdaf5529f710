"""What the page of the file format says is what datasets are: its reader reads them all."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from page_blocks import ROOT, blocks_of

import overspill as ov
from overspill.storage.records import STORED_DTYPES
from overspill.storage.texts import joined, text_hashes

PAGE = ROOT / "docs" / "format.md"
BUYS = ("user", "buys", "item")
TO = ("node", "to", "node")
TEXTS = ["", "a", "ann", "bob-1234", "nine byte", "Grüße, 世界", "x" * 16, "y" * 17]


def code_of(title: str, place: Path) -> ModuleType:
    (found,) = [block.code for block in blocks_of(PAGE) if block.title == title]
    path = place / title
    path.write_text(found)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def reader(tmp_path: Path) -> ModuleType:
    return code_of("read_dataset.py", tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two datasets."""
    place = tmp_path_factory.mktemp("built")
    _build_typed(place / "typed")
    edges = np.random.default_rng(1).integers(0, 40, (2, 200)) ** 2 // 40
    x = np.arange(40 * 3, dtype=np.float32).reshape(40, 3)
    ov.build_dataset(
        place / "ordered", edges=edges, node_features={"x": x}, order="degree", edge_ids=True
    )
    return place


def _build_typed(place: Path) -> None:
    rng = np.random.default_rng(0)
    names = np.array(TEXTS)[rng.integers(0, len(TEXTS), 60)]
    names[: len(TEXTS)] = TEXTS
    items = 10 * rng.integers(0, 9, 60)
    table = pa.table({"user": names.tolist(), "item": items, "stars": rng.random(60)})
    ov.build_dataset(
        place,
        edges={BUYS: table},
        columns=("user", "item"),
        edge_features={"stars": ov.Columns("stars")},
        node_features={
            "user": {"x": ov.Columns("x", of=pa.table({"id": TEXTS, "x": range(8)}), key="id")}
        },
        ids={"item": "remap"},
        layout=("csc", "csr"),
        duplicates="count",
    )


@pytest.fixture
def typed(built: Path) -> ov.Dataset:
    return ov.open_dataset(built / "typed")


@pytest.fixture
def ordered(built: Path) -> ov.Dataset:
    return ov.open_dataset(built / "ordered")


def test_the_reader_finds_what_overspill_finds_in_a_typed_dataset(
    reader: ModuleType, typed: ov.Dataset
) -> None:
    held = reader.Dataset(str(typed.path))
    for name in ("user", "item"):
        count = held.nodes[name]["count"]
        mine = [held.raw_id(name, node) for node in range(count)]
        assert mine == list(typed.node_ids(name)[:count])
        assert typed.lookup(mine, name).tolist() == list(range(count))
    for layout, rows in (("csc", "item"), ("csr", "user")):
        ends, others = typed.topology(layout=layout).indptr, typed.topology(layout=layout).indices
        for node in range(held.nodes[rows]["count"]):
            wanted = others[ends[node] : ends[node + 1]].tolist()
            assert held.neighbours(BUYS, node, layout) == wanted == sorted(wanted)
        stars = held.array(held.edges[BUYS]["arrays"][layout]["stars"]).tolist()
        assert stars == typed.edge_features("stars", layout=layout).tolist()
    assert held.row("user", "x", 3) == typed.gather("x", [3], "user").flatten().tolist()


def test_the_reader_follows_renumbered_nodes(reader: ModuleType, ordered: ov.Dataset) -> None:
    held = reader.Dataset(str(ordered.path))
    mine = [held.raw_id("node", node) for node in range(40)]
    assert mine == ordered.node_ids().tolist() != list(range(40))
    assert held.row("node", "x", 7) == ordered.gather("x", [7])[0].tolist()
    assert held.row("node", "x", 7)[0] == 3 * mine[7]
    back = held.array(held.nodes["node"]["renumbered"])
    assert [back[raw] for raw in mine] == list(range(40))


def test_edge_ids_are_places_in_the_input(reader: ModuleType, ordered: ov.Dataset) -> None:
    edges = np.random.default_rng(1).integers(0, 40, (2, 200)) ** 2 // 40
    held = reader.Dataset(str(ordered.path))
    places = held.array(held.edges[TO]["layouts"]["csc"]["edge_ids"]).tolist()
    ends = held.array(held.edges[TO]["layouts"]["csc"]["indptr"])
    for node in range(40):
        mine = places[ends[node] : ends[node + 1]]
        sources = held.neighbours(TO, node)
        assert [held.raw_id("node", one) for one in sources] == edges[0, mine].tolist()
        assert set(edges[1, mine]) <= {held.raw_id("node", node)}
        pairs = list(zip(sources, mine, strict=True))
        assert pairs == sorted(pairs)  # equal ones in the order of the input


def test_the_reader_refuses_a_version_it_does_not_know(
    reader: ModuleType, built: Path, tmp_path: Path
) -> None:
    text = (built / "ordered" / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"version": 2', '"version": 3'))
    with pytest.raises(ValueError, match="3"):
        reader.Dataset(str(tmp_path))


def test_the_hash_on_the_page_is_the_kernels(tmp_path: Path) -> None:
    text_hash = code_of("text_hash.py", tmp_path).text_hash
    for salt in (0, 1, 7):
        wanted = text_hashes(*joined(TEXTS), salt=salt).tolist()
        assert [text_hash(text, salt) for text in TEXTS] == wanted


def test_ids_of_text_rise_by_that_hash(tmp_path: Path, typed: ov.Dataset) -> None:
    text_hash = code_of("text_hash.py", tmp_path).text_hash
    held = typed.manifest.node_types["user"]
    hashes = [text_hash(text, held.salt) for text in typed.node_ids("user")[: held.count]]
    assert hashes == sorted(hashes)


def test_array_files_are_as_the_page_says(ordered: ov.Dataset) -> None:
    manifest = json.loads((ordered.path / "manifest.json").read_text())
    record = manifest["node_types"]["node"]["arrays"]["x"]
    data = (ordered.path / record["path"]).read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].decode()
    assert (8 + length) % 4096 == 0 and len(data) == record["nbytes"]
    payload = data[8 + length :]
    assert hashlib.sha256(payload).hexdigest() == record["sha256"]
    told = {"dtype": "F32", "shape": [40, 3], "data_offsets": [0, len(payload)]}
    wanted = json.dumps({"data": told}, separators=(",", ":"))
    assert text == wanted + " " * (length - len(wanted))


def test_every_field_of_every_document_is_on_the_page(
    typed: ov.Dataset, ordered: ov.Dataset, tmp_path: Path
) -> None:
    documents = [json.loads((held.path / "manifest.json").read_text()) for held in (typed, ordered)]
    for method in ("range", "hash"):
        ov.partition_dataset(typed, 2, out=tmp_path / method, method=method)
        documents.append(json.loads((tmp_path / method / "partition.json").read_text()))
        part = tmp_path / method / documents[-1]["parts"][1]["path"] / "manifest.json"
        documents.append(json.loads(part.read_text()))
    text = PAGE.read_text()
    names = {name for held in documents for name in _fields(held)}
    assert {"sha256", "renumbered", "texts", "out_count", "global_count", "whole"} <= names
    assert {one for one in names if f"`{one}`" not in text and f'"{one}"' not in text} == set()


def test_every_dtype_is_on_the_page() -> None:
    text = PAGE.read_text()
    for name, (code, _) in STORED_DTYPES.items():
        assert f"`{name}`" in text and f"`{code}`" in text


def test_a_part_leads_to_the_whole(reader: ModuleType, typed: ov.Dataset, tmp_path: Path) -> None:
    parts = ov.partition_dataset(typed, 3, out=tmp_path / "parts", method="hash")
    document = json.loads((tmp_path / "parts" / "partition.json").read_text())
    book = reader.read_array(tmp_path / "parts", document["books"]["item"]["file"])[1].tolist()
    assert book == parts.books["item"][torch.arange(len(book))].tolist()
    for index, entry in enumerate(document["parts"]):
        part = reader.Dataset(tmp_path / "parts" / entry["path"])
        told = part.manifest["partition"]["nodes"]["item"]
        mine = part.array(told["ids"]).tolist()
        assert mine == [node for node, owner in enumerate(book) if owner == index]
        for node, whole in enumerate(mine):
            wanted = reader.Dataset(str(typed.path)).neighbours(BUYS, whole)
            assert part.neighbours(BUYS, node) == wanted


def _fields(held: Any) -> set[str]:
    """Names of fields at any depth, but not of what people named."""
    named = {"arrays", "node_types", "books", "nodes", "notes", "options", "sources"}
    found: set[str] = set()
    if isinstance(held, list):
        for one in held:
            found |= _fields(one)
    elif isinstance(held, dict):
        for name, value in held.items():
            found.add(name)
            if name == "arrays":
                found |= _fields([_files(value)])
            elif name not in named:
                found |= _fields(value)
            elif isinstance(value, dict) and name not in ("notes", "options"):
                found |= _fields(list(value.values()))
    return found


def _files(value: dict[str, Any]) -> list[Any]:
    """The file records of arrays, of nodes or by layout."""
    flat = [one if "path" in one else list(one.values()) for one in value.values()]
    return [record for one in flat for record in (one if isinstance(one, list) else [one])]
