"""Node tables: one file or several, by row order or by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overspill.build.readers.tables import TableRows, open_table
from overspill.errors import InputError
from reading import gathered, plain


def parquet(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return str(path)


def csv(path: Path, content: str) -> str:
    path.write_text(content)
    return str(path)


def keyed(table: TableRows, most_bytes: int = 1 << 16) -> list[tuple[Any, Any, str, int]]:
    """Key, row, file and row number of every row."""
    return [
        (key, row, Path(path).name, first + place)
        for keys, rows, path, first in table.keyed_pieces(most_bytes)
        for place, (key, row) in enumerate(zip(plain(keys), rows.tolist(), strict=True))
    ]


def test_several_files_in_order(tmp_path: Path) -> None:
    paths = [
        parquet(tmp_path / "b.parquet", x=pa.array([1.0, 2, 3, 4], pa.float32())),
        parquet(tmp_path / "none.parquet", x=pa.array([], pa.float32())),
        parquet(tmp_path / "a.parquet", x=pa.array([5.0], pa.float32())),
    ]
    table = open_table(paths, ["x"])
    assert (table.dtype, table.row_shape, table.count) == ("float32", (), 5)
    assert table.nbytes == sum(Path(path).stat().st_size for path in paths)
    assert gathered(table).tolist() == gathered(table, 4).tolist() == [1, 2, 3, 4, 5]


def test_csv_files_whose_cells_look_different(tmp_path: Path) -> None:
    paths = [
        csv(tmp_path / "none.csv", "id,x\n"),
        csv(tmp_path / "whole.csv", "id,x\n0,1\n1,2\n"),
        csv(tmp_path / "parts.csv", "id,x\n2,2.5\n"),
    ]
    table = open_table(paths, ["x"], key="id")
    assert (table.dtype, gathered(table).tolist()) == ("float64", [1.0, 2.0, 2.5])
    assert gathered(table).dtype == np.float64
    assert [(key, row) for key, row, *_ in keyed(table)] == [(0, 1.0), (1, 2.0), (2, 2.5)]
    whole = open_table(paths[:2], ["x"])
    assert (whole.dtype, gathered(whole).tolist()) == ("int64", [1, 2])
    truths = csv(tmp_path / "truths.csv", "id,x\n3,true\n")
    with pytest.raises(InputError, match="same types"):
        open_table([*paths, truths], ["x"])


def test_lists_of_a_length_that_only_rows_tell(tmp_path: Path) -> None:
    kind = pa.list_(pa.int16())
    none = parquet(tmp_path / "none.parquet", x=pa.array([], kind))
    paths = [none, parquet(tmp_path / "a.parquet", x=pa.array([[1, 2], [3, 4]], kind))]
    table = open_table(paths, ["x"])
    assert table.row_shape == (2,) and gathered(table).tolist() == [[1, 2], [3, 4]]
    assert open_table([none], ["x"]).row_shape == (0,)


def test_rows_by_key(tmp_path: Path) -> None:
    paths = [
        parquet(tmp_path / "a.parquet", id=[5, 7, 2**62, 9], x=[1, 2, 3, 4], y=[5, 6, 7, 8]),
        parquet(tmp_path / "b.parquet", y=[9], id=pa.array([1], pa.uint8()), x=[0]),
    ]
    table = open_table(paths, ["x", "y"], key="id")
    wanted = [
        (5, [1, 5], "a.parquet", 0),
        (7, [2, 6], "a.parquet", 1),
        (2**62, [3, 7], "a.parquet", 2),
        (9, [4, 8], "a.parquet", 3),
        (1, [0, 9], "b.parquet", 0),
    ]
    assert not table.key_text and keyed(table) == keyed(table, 1) == wanted
    assert gathered(table).tolist() == [row for _, row, _, _ in wanted]


def test_rows_by_text(tmp_path: Path) -> None:
    paths = [
        parquet(tmp_path / "a.parquet", id=pa.array(["007", "7"]).dictionary_encode(), x=[1, 2]),
        csv(tmp_path / "b.csv", "x,id\n3,07\n4,é\n"),
    ]
    table = open_table(paths, ["x"], key="id", text=True)
    assert table.key_text and table.count is None
    assert keyed(table) == [
        ("007", 1, "a.parquet", 0),
        ("7", 2, "a.parquet", 1),
        ("07", 3, "b.csv", 1),
        ("é", 4, "b.csv", 2),
    ]
    with pytest.raises(InputError, match=r"keys of .*b.csv are integers"):
        open_table(paths, ["x"], key="id")


def test_a_csv_whose_columns_are_years(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "id,2019,2020\n1,5,6\n0,7,8\n")
    assert keyed(open_table([path], ["2020", "2019"], key="id"), 1) == [
        (1, [6, 5], "x.csv", 1),
        (0, [8, 7], "x.csv", 2),
    ]


def test_a_key_that_is_a_value_too(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", "id,x\n3,0.5\n")
    assert keyed(open_table([path], ["id"], key="id")) == [(3, 3, "x.csv", 1)]
    with pytest.raises(InputError, match="as ids and as values"):
        keyed(open_table([path], ["x"], key="x"))


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"x": pa.array([1.0])}, "float64"),
        ({"x": pa.array([[1, 2, 3]])}, r"\(3,\)"),
        ({"x": pa.array([["a"]])}, "encode"),
        ({"z": pa.array([1])}, "no column 'x'"),
    ],
)
def test_files_that_differ(tmp_path: Path, second: dict[str, Any], told: str) -> None:
    first = parquet(tmp_path / "a.parquet", x=pa.array([[1, 2]]))
    other = parquet(tmp_path / "b.parquet", **second)
    with pytest.raises(InputError, match=told) as caught:
        open_table([first, other], ["x"])
    assert caught.value.path == other and caught.value.remedy


def test_times_of_different_units(tmp_path: Path) -> None:
    paths = [
        parquet(tmp_path / f"{unit}.parquet", t=pa.array([1], pa.timestamp(unit)))
        for unit in ("ms", "us")
    ]
    with pytest.raises(InputError, match=r"timestamp\[us\]"):
        open_table(paths, ["t"])


@pytest.mark.parametrize(("cells", "row"), [([1, 2, None, 4], 2), ([1, 2, 3, 4, 5, 6, 7, None], 7)])
def test_nulls_name_file_and_row(tmp_path: Path, cells: list[Any], row: int) -> None:
    first = parquet(tmp_path / "a.parquet", x=[1, 2])
    path = parquet(tmp_path / "b.parquet", x=cells, id=list(range(len(cells))))
    with pytest.raises(InputError, match="null") as caught:
        gathered(open_table([first, path], ["x"]), 24)
    assert (caught.value.path, caught.value.row, caught.value.column) == (path, row, "x")
    path = parquet(tmp_path / "c.parquet", id=cells, x=list(range(len(cells))))
    with pytest.raises(InputError, match="null") as caught:
        keyed(open_table([path], ["x"], key="id"), 24)
    assert (caught.value.path, caught.value.row, caught.value.column) == (path, row, "id")


def test_files_without_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    for name in ("x.npy", "e.txt"):
        (tmp_path / "e.txt").write_text("1 2\n")
        with pytest.raises(InputError, match="no columns by name"):
            open_table([str(tmp_path / name)], ["x"])
