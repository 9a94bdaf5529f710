"""What readers hold beside the plan's buffers is in the plan: wide tables, large dictionaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from naive_graph import ReadDataset
from overspill.build import describe_build, run_build
from overspill.build.describe import Columns
from overspill.errors import NoRoomError

pytestmark = pytest.mark.memory
MIB = 1 << 20
COUNT, WIDTH = 300_000, 60
KEY = ("node", "to", "node")


def peak_at_the_least(tmp_path: Path, **options: Any) -> tuple[int, int]:
    """Peak and projection of a build with the least memory that the plan asks for."""
    with pytest.raises(NoRoomError) as caught:
        run_build(describe_build(tmp_path / "out", memory_limit="90MiB", **options))
    assert caught.value.needed_bytes is not None
    # A process's base differs by some pages from run to run.
    limit = caught.value.needed_bytes + 4 * MIB
    summary = run_build(describe_build(tmp_path / "out", memory_limit=limit, **options))
    assert summary["peak_anon_bytes"] <= summary["projected_bytes"] <= limit
    return summary["peak_anon_bytes"], summary["projected_bytes"]


def test_a_page_of_each_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {f"c{n}": rng.random(COUNT).astype(np.float32) for n in range(WIDTH)}
    edges = rng.integers(0, 9000, (2, COUNT))
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"src": edges[0], "dst": edges[1], **values}), path)
    plain = peak_at_the_least(tmp_path / "plain", edges=path)
    columns = {"c": Columns(list(values))}
    wide = peak_at_the_least(tmp_path / "wide", edges=path, edge_features=columns)
    assert wide[0] > plain[0] + 60 * MIB, "the columns were meant to take memory"
    assert wide[1] < plain[1] + WIDTH * 3 * MIB
    dataset = ReadDataset(tmp_path / "wide" / "out")
    edge = dataset.manifest.edge_types[KEY]
    rows = dataset.content(edge.layouts["csc"]["edge_ids"])
    assert np.array_equal(dataset.content(edge.arrays["csc"]["c"])[:, 7], values["c7"][rows])


@pytest.mark.parametrize("length", [8, 150])
def test_a_large_dictionary(tmp_path: Path, length: int) -> None:
    """A column of pandas' categories comes with all that its row group holds."""
    names = pa.array([f"{n:0{length}d}" for n in range(60_000)])
    edges = np.random.default_rng(1).integers(0, len(names), (2, COUNT)).astype(np.int32)
    ends = [pa.DictionaryArray.from_arrays(pa.array(end), names) for end in edges]
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), path)
    peak_at_the_least(tmp_path, edges=path)
    assert ReadDataset(tmp_path / "out").manifest.edge_types[KEY].count == COUNT
