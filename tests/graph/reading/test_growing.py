"""Array files whose length is known at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from overspill.errors import DiskRefusedError, InputError
from overspill.graph.reading.growing import GrowingArrayWriter
from overspill.graph.reading.pack_manifest import PackRecipe
from overspill.graph.reading.pack_writer import PackWriter
from overspill.storage.arrays import map_array, partial_path
from reading_graphs import write_wide


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 5], [1, 70_000]], ids=str)
def test_rows_are_appended(tmp_path: Path, sizes: list[int]) -> None:
    path = tmp_path / "x"
    rows = np.random.default_rng(0).integers(0, 99, (sum(sizes), 2), dtype=np.int32)
    file = GrowingArrayWriter(path, dtype="int32", row_shape=(2,), record_path="parts/x")
    for first, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        file.append(rows[first : first + size])
    assert not path.exists()
    record = file.finish()
    file.close()
    assert (record.path, record.shape) == ("parts/x", rows.shape)
    assert record.sha256 == hashlib.sha256(rows.tobytes()).hexdigest()
    assert np.array_equal(map_array(path, record)[1], rows)
    assert not partial_path(path).exists()


def test_rows_of_another_kind_are_refused(tmp_path: Path) -> None:
    file = GrowingArrayWriter(tmp_path / "x", dtype="int32", row_shape=(2,), record_path="x")
    for rows in (np.zeros((1, 2)), np.zeros((1, 3), np.int32), np.zeros(2, np.int32)):
        with pytest.raises(InputError, match="for int32"):
            file.append(rows)
    file.close()
    assert not (tmp_path / "x").exists()
    with pytest.raises(DiskRefusedError):
        GrowingArrayWriter(tmp_path / "none" / "x", dtype="int32", row_shape=(), record_path="x")


@pytest.mark.requires("loop_device")
@pytest.mark.parametrize("row_bytes", [8, 4096], ids=["in the parts", "in the rows"])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, loop_disk: Callable[[int], Path], row_bytes: int
) -> None:
    rows = np.zeros((1000, row_bytes), np.uint8)
    dataset = write_wide(tmp_path / "ds", {"x": ("uint8", rows)}, 1000)
    recipe = PackRecipe(
        dataset=dataset.manifest.identifier, seed=0, arrays={("node", "x"): "nodes"}
    )
    place = loop_disk(12 << 20)
    batch = {"nodes": np.zeros(30_000, np.int64)}
    with (
        pytest.raises(DiskRefusedError),
        PackWriter(place / "pack", dataset, recipe) as writer,
    ):
        for _ in range(100 if row_bytes == 8 else 1):
            writer.append(batch)
        writer.finish()
    assert not (place / "pack").exists()
