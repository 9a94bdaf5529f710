"""The benchmark of power-law traces at a small size: every way delivers the rows of the trace."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest

from benchmarks import lookahead_job
from benchmarks.lookahead_job import WAYS, trace
from overspill.graph.dataset import Dataset, open_dataset
from overspill.storage.manifest import Manifest, NodeTypeRecord, publish_manifest
from small_graphs import write_array

ROWS = 4096


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    for name, value in {"BATCH_DRAWS": 500, "BATCHES": 6, "LOOKAHEAD": 3}.items():
        monkeypatch.setattr(lookahead_job, name, value)
    monkeypatch.setattr(lookahead_job, "HOT_BYTES", 20_000)
    place = tmp_path / "ds"
    place.mkdir()
    record = write_array(place / "x", np.zeros((ROWS, 16), np.uint8))
    node = NodeTypeRecord("node", ROWS, {"x": record})
    publish_manifest(place, Manifest(uuid.uuid4().hex, {"node": node}, {}))
    return open_dataset(place)


def test_every_way_delivers_the_whole_trace(dataset: Dataset, tmp_path: Path) -> None:
    wanted = sum(ids.size for ids in trace(ROWS, 6))
    for way in ("gather", "gather_hot", "lookahead", "lookahead_hot", "pack", "packed"):
        told = WAYS[way](dataset, tmp_path / "pack", 1000.0)
        assert told["rows"] == wanted, way
        assert told["seconds"] > 0
        assert (told.get("hot_rate", 0) > 0) == way.endswith("hot")


def test_a_way_stops_when_its_time_is_over(dataset: Dataset, tmp_path: Path) -> None:
    assert WAYS["gather"](dataset, tmp_path, 0.0)["rows"] == next(trace(ROWS, 1)).size


def test_the_trace_is_a_power_law_of_distinct_rows(dataset: Dataset) -> None:
    batches = list(trace(ROWS, 200))
    assert all(np.unique(ids).size == ids.size for ids in batches)
    assert len({ids.tobytes() for ids in batches}) == 200
    counts = np.sort(np.bincount(np.concatenate(batches), minlength=ROWS))[::-1]
    for rank in (1, 40, 400):
        # 500 draws, each of this row with a chance of 1 / rank / log(rows).
        chance = 1 - np.exp(-500 / rank / np.log(ROWS))
        assert counts[rank - 1 : rank + 4].mean() == pytest.approx(200 * chance, rel=0.3)
