"""Parts of files of edges: rows of .npy, row groups of Parquet, each read without the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overspill.build.readers.edges import EdgeReader, open_edges
from overspill.build.readers.source import SourceFile
from overspill.build.readers.windows import units_of, within
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError


def opened(path: Path) -> EdgeReader:
    return open_edges(SourceFile.check(str(path)), EdgeSpec())


def read(reader: EdgeReader, most: int = 7) -> tuple[np.ndarray, list[int]]:
    """Its edges, and the numbers that they have in the file."""
    parts, rows = [np.empty((2, 0), np.int64)], []
    for chunk in reader.chunks(most):
        parts.append(np.stack([chunk.sources, chunk.targets]))
        rows += [reader.locate(chunk.first + n) for n in range(len(chunk.sources))]
    return np.concatenate(parts, 1), rows


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["int64", ">i4"])
def test_rows_of_npy(tmp_path: Path, order: str, axis: int, dtype: str) -> None:
    edges = np.random.default_rng(0).integers(0, 99, (2, 40))
    held = (edges if axis else edges.T).astype(dtype)
    np.save(tmp_path / "e.npy", np.asarray(held, order=order))
    reader = opened(tmp_path / "e.npy")
    assert units_of(reader) is None
    for first, last in ((0, 40), (0, 11), (11, 29), (29, 40), (5, 5)):
        part = within(reader, first, last)
        found, rows = read(part)
        assert np.array_equal(found, edges[:, first:last])
        assert rows == list(range(first, last)) and part.count == last - first
        assert part.nbytes < reader.nbytes or last - first == 40


def test_row_groups_of_parquet(tmp_path: Path) -> None:
    edges = np.random.default_rng(0).integers(0, 99, (2, 50))
    table = pa.table({"src": edges[0], "dst": edges[1]})
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=12)
    reader = opened(tmp_path / "e.parquet")
    assert units_of(reader) == (12, 12, 12, 12, 2)
    for first, last in ((0, 5), (0, 1), (1, 4), (4, 5)):
        part = within(reader, first, last)
        found, rows = read(part)
        places = list(range(12 * first, min(50, 12 * last)))
        assert np.array_equal(found, edges[:, places])
        assert rows == places and part.count == len(places)


def test_errors_of_a_part_count_rows_of_the_file(tmp_path: Path) -> None:
    held = pa.array([1] * 30 + [None] + [2] * 9, pa.int64())
    table = pa.table({"src": held, "dst": pa.array(range(40))})
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=10)
    with pytest.raises(InputError) as caught:
        read(within(opened(tmp_path / "e.parquet"), 2, 4))
    assert caught.value.row == 30
