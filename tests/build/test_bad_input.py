"""Bad input: the error names file, row, column and value, and nothing is left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from naive import build_here
from overspill.errors import DiskRefusedError, InputError
from refused import place, refused, text

GOOD = np.random.default_rng(8).integers(0, 30, (2, 200))


@pytest.mark.parametrize("block_bytes", [1 << 20, 40])
@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("5,30", "dst", "30"),
        ("30,5", "src", "30"),
        ("-1,5", "src", "-1"),
        ("5,-7", "dst", "-7"),
        (",5", "src", ""),
        ("5,", "dst", ""),
        ("1.5,5", "src", "1.5"),
        ("5,2.0", "dst", "2.0"),
        ("5,nan", "dst", "nan"),
        ("5,NULL", "dst", "NULL"),
        ("5,abc", "dst", "abc"),
        ("5,1e3", "dst", "1e3"),
        ("9223372036854775808,1", "src", "9223372036854775808"),
        ("5,18446744073709551615", "dst", "18446744073709551615"),
        ("0x10,5", "src", "0x10"),
        ("5,0XfF", "dst", "0XfF"),
        ("5,\u0665", "dst", "\u0665"),
        (f"{'9' * 5000},5", "src", "9" * 80),
        ("5,caf\udce9", "dst", "caf\ufffd"),
    ],
)
def test_csv_cells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    row: str,
    column: str,
    value: str,
) -> None:
    rows = [f"{s},{t}" for s, t in GOOD.T.tolist()]
    rows[132] = row
    if len(row) > block_bytes:
        block_bytes = 1 << 13
    monkeypatch.setattr("overspill.build.readers.csv_stream._BLOCK_BYTES", block_bytes)
    path = text(tmp_path / "e.csv", "src,dst\n" + "\n".join(rows) + "\n")
    error = refused(tmp_path, path, num_nodes=30)
    assert place(error) == ("e.csv", 133, column, value)
    assert all(part in str(error) for part in ("e.csv", "133", column, value))


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ("src,target,weight\n1,2,3\n", "dst"),
        ("a,b,c\n1,2,3\n", "src"),
        ("src\n1\n", "src"),
        ("", "src"),
        ("src,src,dst\n1,2,3\n", "src"),
    ],
)
def test_missing_columns(tmp_path: Path, content: str, column: str) -> None:
    error = refused(tmp_path, text(tmp_path / "e.csv", content), num_nodes=9)
    assert error.column is not None and Path(error.path or "").name == "e.csv"
    if content.count(",") > 2:
        assert error.column == column


def test_a_named_column_that_is_missing(tmp_path: Path) -> None:
    path = text(tmp_path / "e.csv", "src,dst\n1,2\n")
    error = refused(tmp_path, path, columns=("src", "to"))
    assert error.column == "to" and "src, dst" in str(error)


@pytest.mark.parametrize("where", [0, 3, 120])
@pytest.mark.parametrize("cell", ["x" * 3000, '"never closed'])
def test_a_csv_row_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: int, cell: str
) -> None:
    monkeypatch.setattr("overspill.build.readers.csv_stream._BLOCK_BYTES", 1000)
    rows = [f"{s},{t},{cell if n == where else 7}" for n, (s, t) in enumerate(GOOD.T.tolist())]
    path = text(tmp_path / "e.csv", "\n".join(["src,dst,name", *rows]))
    error = refused(tmp_path, path, num_nodes=30)
    assert place(error)[:2] == ("e.csv", where + 1) and "quote" in str(error) and error.remedy


@pytest.mark.parametrize("blank", ["", "\n\n"])
def test_a_quote_that_swallows_the_end_of_a_csv(tmp_path: Path, blank: str) -> None:
    content = f'src,dst,name\n1,2,"a"\n{blank}3,4,"b\n5,6,c\n7,8,d\n'
    error = refused(tmp_path, text(tmp_path / "e.csv", content), num_nodes=30)
    assert place(error)[:2] == ("e.csv", 2) and "quote" in str(error)


def test_a_csv_whose_first_line_is_half_a_header(tmp_path: Path) -> None:
    error = refused(tmp_path, text(tmp_path / "e.csv", "0,to\n1,2\n"))
    assert place(error)[:2] == ("e.csv", 0) and error.value == "0,to" and error.remedy


def test_a_csv_line_with_too_many_columns(tmp_path: Path) -> None:
    error = refused(tmp_path, text(tmp_path / "e.csv", "src,dst\n1,2\n3,4,5\n"))
    assert place(error)[:2] == ("e.csv", 2) and error.value == "3,4,5"


@pytest.mark.parametrize(
    ("line", "column", "value"),
    [
        ("5 30", "target", "30"),
        ("-1 5", "source", "-1"),
        ("5", "target", ""),
        ("5 x", "target", "x"),
        ("1.5 2", "source", "1.5"),
        ("5 9223372036854775808", "target", "9223372036854775808"),
    ],
)
def test_snap_lines(tmp_path: Path, line: str, column: str, value: str) -> None:
    lines = ["# a header", "", *(f"{s}\t{t}" for s, t in GOOD.T.tolist())]
    lines[142] = line
    path = text(tmp_path / "e.txt", "\r\n".join(lines))
    error = refused(tmp_path, path, num_nodes=30)
    assert place(error) == ("e.txt", 143, column, value)
    if value == "x":
        assert ".csv" in str(error.remedy) and "ids='text'" not in str(error.remedy)


@pytest.mark.parametrize("value", [-1, 30, 2**31, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_npy_ids(tmp_path: Path, value: int, column: int, axis: int) -> None:
    array = GOOD.copy()
    array[column, 77] = value
    np.save(tmp_path / "e.npy", array if axis else array.T)
    error = refused(tmp_path, tmp_path / "e.npy", num_nodes=30)
    assert place(error) == ("e.npy", 77, str(column), str(value))
    if value >= 0:
        assert "30 nodes" in str(error)


@pytest.mark.parametrize("value", [2**62, 2**63 - 1])
@pytest.mark.parametrize("column", [0, 1])
def test_an_id_too_large_to_count_nodes_by(tmp_path: Path, value: int, column: int) -> None:
    array = GOOD.copy()
    array[column, 77] = value
    np.save(tmp_path / "e.npy", array)
    error = refused(tmp_path, tmp_path / "e.npy")
    assert place(error) == ("e.npy", 77, str(column), str(value))
    assert "below 2**62" in str(error) and error.remedy == 'use ids="remap"'


def test_unsigned_ids_beyond_63_bits(tmp_path: Path) -> None:
    array = GOOD.astype(np.uint64)
    array[1, 77] = 2**63 + 5
    np.save(tmp_path / "e.npy", array)
    for ids in ("dense", "remap"):
        error = refused(tmp_path, tmp_path / "e.npy", ids=ids)
        assert place(error) == ("e.npy", 77, "1", str(2**63 + 5))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "b1", "U3", "M8[s]"])
def test_npy_of_other_types(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "e.npy", np.zeros((2, 5)).astype(dtype))
    error = refused(tmp_path, tmp_path / "e.npy", num_nodes=9)
    assert place(error)[:3] == ("e.npy", 0, "0") and error.value
    assert "integers" in str(error)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 5, 2), ()])
def test_npy_of_other_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "e.npy", np.zeros(shape, np.int64))
    assert str(shape) in str(refused(tmp_path, tmp_path / "e.npy"))


def test_npy_of_the_shape_that_was_not_told(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", GOOD)
    assert "(E, 2)" in str(refused(tmp_path, tmp_path / "e.npy", edge_axis=0))


def test_an_ambiguous_square(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.zeros((2, 2), np.int64))
    error = refused(tmp_path, tmp_path / "e.npy")
    assert "edge_axis" in str(error) and error.value == "(2, 2)"


@pytest.mark.parametrize("how", ["cut", "raw"])
@pytest.mark.parametrize("what", ["edges", "features"])
def test_damaged_npy(tmp_path: Path, how: str, what: str) -> None:
    paths = {"edges": tmp_path / "e.npy", "features": tmp_path / "x.npy"}
    np.save(paths["edges"], GOOD)
    np.save(paths["features"], np.zeros((30, 2)))
    content = paths[what].read_bytes()
    paths[what].write_bytes(content[:-1] if how == "cut" else content[128:])
    error = refused(tmp_path, paths["edges"], node_features={"x": paths["features"]})
    assert error.path == str(paths[what])


@pytest.mark.parametrize("ids", ["dense", "remap", "auto"])
@pytest.mark.parametrize("name", ["e.npy", "e.csv", "comments.txt", "nothing.txt"])
def test_no_edges_and_no_number_of_nodes(tmp_path: Path, name: str, ids: str) -> None:
    np.save(tmp_path / "e.npy", np.empty((2, 0), np.int64))
    text(tmp_path / "e.csv", "src,dst\n")
    text(tmp_path / "comments.txt", "# one\n# another\n")
    text(tmp_path / "nothing.txt", "")
    error = refused(tmp_path, tmp_path / name, ids=ids)
    assert Path(error.path or "").name == name and "num_nodes" in str(error)


@pytest.mark.parametrize(
    "name", ["missing.csv", "e.parquet", "e", "directory.csv", "pipe.csv", "pipe.npy"]
)
def test_files_that_are_not_edges(tmp_path: Path, name: str) -> None:
    if name == "directory.csv":
        (tmp_path / name).mkdir()
    elif name.startswith("pipe"):
        os.mkfifo(tmp_path / name)
    elif name != "missing.csv":
        (tmp_path / name).write_bytes(b"x")
    error = refused(tmp_path, tmp_path / name)
    assert error.path == str(tmp_path / name) and error.remedy


def test_a_sparse_id_that_no_disk_could_hold(tmp_path: Path) -> None:
    text(tmp_path / "e.csv", "src,dst\n0,4873214862074861312\n")
    with pytest.raises((DiskRefusedError, InputError)) as caught:
        build_here(tmp_path / "out", edges=tmp_path / "e.csv")
    assert "remap" in str(caught.value) and "4873214862074861312" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("alice", "ids='text'"),
        ("1.0", "save the ids as int64"),
        ("1.5", "is this the right column"),
        ("", "drop the row, or fill the cell"),
    ],
)
def test_a_wrong_id_says_what_to_do(tmp_path: Path, cell: str, told: str) -> None:
    error = refused(tmp_path, text(tmp_path / "e.csv", f"src,dst\n1,{cell}\n"), num_nodes=9)
    assert told in (error.remedy or "")


def test_integers_are_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"src": [7, 8], "dst": [1, 2]}), tmp_path / "e.parquet")
    error = refused(tmp_path, tmp_path / "e.parquet", ids="text")
    assert error.path == str(tmp_path / "e.parquet") and "integers" in str(error)
    none = pa.table({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())})
    pq.write_table(none, tmp_path / "none.parquet")
    build_here(tmp_path / "out", edges=tmp_path / "none.parquet", ids="text", num_nodes=0)
    assert (tmp_path / "out" / "manifest.json").exists()


def test_ends_of_two_kinds_name_their_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"src": [7, 8], "dst": ["a", "b"]}), tmp_path / "e.parquet")
    error = refused(tmp_path, tmp_path / "e.parquet")
    assert error.column == "dst" and "integers in column 'src'" in str(error)


@pytest.mark.parametrize("ids", ["remap", "text"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("types", [1, 2])
def test_the_end_that_is_wrong_is_named_beside_ids_of_another_kind(
    tmp_path: Path, ids: str, swapped: bool, types: int
) -> None:
    """Raw ids beyond the number of nodes are right where they are remapped."""
    rows = ["10000000000,1", "-5,2", "7,-3"]
    if swapped:
        rows = [",".join(reversed(row.split(","))) for row in rows]
    path = text(tmp_path / "e.csv", "src,dst\n" + "\n".join(rows) + "\n")
    ends = ("item", "user") if swapped else ("user", "item")
    edges = {(ends[0], f"r{number}", ends[1]): path for number in range(types)}
    options: dict[str, Any] = {"num_nodes": {"item": 3}} if types == 1 else {}
    with pytest.raises(InputError, match="an id is negative") as caught:
        build_here(tmp_path / "out", edges=edges, ids={"user": ids}, **options)
    assert place(caught.value) == ("e.csv", 3, "src" if swapped else "dst", "-3")
