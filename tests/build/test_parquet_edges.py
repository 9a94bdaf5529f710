"""Parquet: any integer type, text of every kind, nulls and floats, rows of any shape."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overspill.build.readers.parquet_edges import ParquetTable
from overspill.errors import InputError
from reading import edges_of, opened, place, refused, rows_of

RNG = np.random.default_rng(3)
SRC, DST = RNG.integers(0, 100, (2, 1000))
BIG = 4873214862074861312


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
@pytest.mark.parametrize("most", [1, 7, 1 << 16])
def test_integers_of_every_width(tmp_path: Path, kind: str, most: int) -> None:
    path = written(
        tmp_path / "e.parquet",
        {"dst": DST.astype(kind), "x": SRC, "src": pa.array(SRC, kind)},
        row_group_size=333,
    )
    assert edges_of(path, most=most) == (SRC.tolist(), DST.tolist())


@pytest.mark.parametrize(
    ("names", "options"),
    [(("a", "b"), {}), (("a", "b"), {"columns": ("a", "b")}), (("dst", "src"), {})],
)
def test_which_columns(tmp_path: Path, names: tuple[str, str], options: dict[str, Any]) -> None:
    path = written(tmp_path / "e.parquet", dict(zip(names, (SRC, DST), strict=True)))
    first, second = (SRC, DST) if "a" in names else (DST, SRC)
    assert edges_of(path, **options) == (first.tolist(), second.tolist())


def test_a_column_for_both_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "e.parquet", {"a": SRC, "b": DST})
    assert edges_of(path, columns=("b", "b")) == (DST.tolist(), DST.tolist())


@pytest.mark.parametrize(
    ("names", "wanted", "missing"),
    [
        (["src", "to", "w"], None, "dst"),
        (["src", "dst"], ("src", "to"), "to"),
        (["src"], None, "src"),
        (["src", "src", "dst"], None, "src"),
    ],
)
def test_missing_columns(tmp_path: Path, names: list[str], wanted: Any, missing: str) -> None:
    table = pa.Table.from_arrays([pa.array(SRC)] * len(names), names)
    pq.write_table(table, tmp_path / "e.parquet")
    error = refused(tmp_path / "e.parquet", columns=wanted)
    if names != ["src"]:
        assert error.column == missing
    assert ", ".join(names) in str(error)


def test_an_unsigned_id_beyond_63_bits(tmp_path: Path) -> None:
    ids = pa.array([5, 2**63 - 1, 2**63 + 5], pa.uint64())
    path = written(tmp_path / "e.parquet", {"src": [1, 2, 3], "dst": ids})
    assert place(refused(path)) == (2, "dst", str(2**63 + 5))
    assert place(refused(path, most=1)) == (2, "dst", str(2**63 + 5))


def test_nullable_integers_keep_every_digit_and_nulls_are_refused(tmp_path: Path) -> None:
    whole = pa.array([BIG, BIG + 1, -(2**63)], pa.int64())
    path = written(tmp_path / "e.parquet", {"src": whole, "dst": whole})
    assert edges_of(path) == ([BIG, BIG + 1, -(2**63)],) * 2
    holed = pa.array([BIG] * 700 + [None], pa.int64())
    path = written(tmp_path / "n.parquet", {"src": holed, "dst": pa.array([BIG] * 701)})
    error = refused(path, most=100)
    assert place(error)[:2] == (700, "src") and "null" in str(error)


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("float64", 2.0**53 - 1, True),
        ("float64", 2.0**53, False),
        ("float64", -7.0, True),
        ("float64", 1.5, False),
        ("float64", np.nan, False),
        ("float64", -np.inf, False),
        ("float32", 2.0**24 - 1, True),
        ("float32", 2.0**24, False),
    ],
)
def test_floats_only_where_they_are_exact(
    tmp_path: Path, kind: str, value: float, fits: bool
) -> None:
    ids = np.array([0, 3, value], kind)
    path = written(tmp_path / "e.parquet", {"src": ids, "dst": [1, 2, 3]})
    if fits:
        assert edges_of(path) == ([0, 3, int(value)], [1, 2, 3])
    else:
        error = refused(path)
        assert place(error) == (2, "src", str(ids[2])) and "int64" in str(error.remedy)


def test_whole_decimals(tmp_path: Path) -> None:
    kind = pa.decimal128(38, 0)
    ids = pa.array([Decimal(BIG), Decimal(-3)], kind)
    assert edges_of(written(tmp_path / "e.parquet", {"src": ids, "dst": ids})) == ([BIG, -3],) * 2
    ids = pa.array([Decimal(1), Decimal(2**63)], kind)
    path = written(tmp_path / "f.parquet", {"src": [1, 2], "dst": ids})
    assert place(refused(path)) == (1, "dst", str(2**63))


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([True, False]),
        pa.array([datetime.datetime(2020, 1, 1)] * 2),
        pa.array([[1], [2]]),
        pa.array([Decimal("1.5"), Decimal("2.5")]),
    ],
    ids=["bool", "time", "list", "decimal"],
)
def test_columns_that_are_no_ids(tmp_path: Path, ids: pa.Array) -> None:
    path = written(tmp_path / "e.parquet", {"src": ids, "dst": [1, 2]})
    with pytest.raises(InputError, match=r"'src' of .*holds") as caught:
        opened(path)
    assert caught.value.column == "src" and caught.value.remedy


WORDS = ["007", "7", "", "schön", "日本", "a" * 300, "7", "7 "]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("most", [1, 3, 1 << 16])
def test_text_of_every_kind(tmp_path: Path, kind: pa.DataType, most: int) -> None:
    words = pa.array(WORDS * 9).cast(kind)
    path = written(
        tmp_path / "e.parquet", {"src": words, "dst": pa.array(range(72))}, row_group_size=11
    )
    assert opened(path).text == (True, False)
    assert edges_of(path, most=most) == (WORDS * 9, list(range(72)))


def test_text_nulls_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    words = pa.array(["a", "b", None]).dictionary_encode()
    path = written(tmp_path / "e.parquet", {"src": ["x", "y", "z"], "dst": words})
    assert place(refused(path, most=2))[:2] == (2, "dst")
    path = written(tmp_path / "f.parquet", {"src": [b"x", b"caf\xe9"], "dst": ["x", "y"]})
    assert place(refused(path)) == (1, "src", "caf\ufffd")
    for kind in (pa.string(), pa.large_string()):  # which hold whatever was put in
        cells = pa.array([b"x", b"caf\xe9"], pa.large_binary() if "large" in str(kind) else None)
        path = written(tmp_path / "g.parquet", {"src": cells.view(kind), "dst": ["x", "y"]})
        assert place(refused(path)) == (1, "src", "caf\ufffd")


def test_each_file_has_types_of_its_own(tmp_path: Path) -> None:
    """What a directory holds that grew over the years; each file by itself."""
    columns: list[Any] = [
        pa.array([1, 2], pa.int32()),
        pa.array([1, 2], pa.int64()),
        pa.array([1, 2], pa.uint64()),
        pa.array(["b", "a"]).dictionary_encode(),
        pa.array(["c", "a"]).dictionary_encode(),
    ]
    found = [
        edges_of(written(tmp_path / f"{n}.parquet", {"src": column, "dst": column}))[0]
        for n, column in enumerate(columns)
    ]
    assert found == [[1, 2], [1, 2], [1, 2], ["b", "a"], ["c", "a"]]


def test_skewed_row_groups_and_none(tmp_path: Path) -> None:
    schema = pa.schema({"src": pa.int64(), "dst": pa.int64()})
    with pq.ParquetWriter(tmp_path / "e.parquet", schema) as writer:
        for size in [3] * 10 + [50_000] + [1] * 10 + [0]:
            batch = np.arange(size)
            writer.write_table(pa.table({"src": batch, "dst": batch + 1}))
    sources, targets = edges_of(tmp_path / "e.parquet", most=1 << 20)
    assert len(sources) == 50_040 and sources[30:40] == list(range(10))
    assert targets == [source + 1 for source in sources]
    written(tmp_path / "none.parquet", {"src": pa.array([], pa.int64()), "dst": []})
    assert edges_of(tmp_path / "none.parquet") == ([], [])
    pq.ParquetWriter(tmp_path / "no-group.parquet", schema).close()
    assert edges_of(tmp_path / "no-group.parquet") == ([], [])


def test_the_row_of_an_error_is_counted_over_row_groups(tmp_path: Path) -> None:
    ids = pa.array([*range(2500), None, 7])
    path = written(tmp_path / "e.parquet", {"src": ids, "dst": ids}, row_group_size=1000)
    assert place(refused(path, most=300))[:2] == (2500, "src")
    assert opened(path).locate(2499) == 2499


@pytest.mark.parametrize("cut", [1, 1000])
def test_a_file_that_was_cut(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "e.parquet", {"src": SRC, "dst": DST})
    path.write_bytes(path.read_bytes()[:-cut])
    assert "Parquet" in str(refused(path)) and refused(path).remedy


def test_a_damaged_page(tmp_path: Path) -> None:
    path = written(tmp_path / "e.parquet", {"src": SRC, "dst": DST}, compression="zstd")
    held = bytearray(path.read_bytes())
    held[100:500] = bytes(400)
    path.write_bytes(bytes(held))
    assert refused(path).remedy


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_codecs_and_page_versions(tmp_path: Path, codec: str, version: str) -> None:
    path = written(
        tmp_path / "e.parquet",
        {"src": SRC, "dst": DST},
        compression=codec,
        data_page_version=version,
        data_page_size=500,
    )
    assert edges_of(path, most=77) == (SRC.tolist(), DST.tolist())


VALUES = RNG.random((1000, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (VALUES[:, 0].astype(np.float16), VALUES[:, 0].astype(np.float16)),
        (VALUES[:, 0], VALUES[:, 0]),
        (SRC.astype(np.uint16), SRC.astype(np.uint16)),
        (SRC > 50, SRC > 50),
        (pa.array(SRC, pa.timestamp("us")), SRC),
        (pa.array(SRC.astype(np.int32)).view(pa.date32()), SRC.astype(np.int32)),
        (pa.array(list(VALUES)), VALUES),
        (pa.array(list(VALUES), pa.large_list(pa.float32())), VALUES),
        (pa.FixedSizeListArray.from_arrays(VALUES.ravel(), 3), VALUES),
        (pa.FixedSizeListArray.from_arrays(pa.array(SRC.repeat(2) > 9), 2), SRC[:, None] > [9, 9]),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(VALUES[:, :2, None]), VALUES[:, :2, None]),
    ],
    ids=["half", "float", "uint16", "bool", "time", "date", "list", "large", "fixed", "flags", "t"],
)
@pytest.mark.parametrize("most_bytes", [5, 1 << 12, 1 << 20])
def test_rows(tmp_path: Path, column: Any, wanted: Any, most_bytes: int) -> None:
    path = written(
        tmp_path / "e.parquet", {"src": SRC, "dst": DST, "w": column}, row_group_size=300
    )
    found = rows_of(path, ["w"], most_bytes=most_bytes)
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_several_columns_as_one_array(tmp_path: Path) -> None:
    path = written(tmp_path / "e.parquet", {"src": SRC, "b": VALUES[:, 1], "a": VALUES[:, 0]})
    found = rows_of(path, ["a", "b"], columns=("src", "src"), most_bytes=100)
    assert np.array_equal(found, VALUES[:, :2])


@pytest.mark.parametrize(
    ("columns", "named", "told"),
    [
        ({"w": pa.array([1.0, None, 2.0])}, ["w"], "null"),
        ({"w": pa.array([[1, 2], [3, 4], [5]])}, ["w"], "1 elements where others have 2"),
        ({"w": pa.array([[1, 2], None, [5, 6]])}, ["w"], "null"),
        ({"w": pa.array([[1, 2], [3, None], [5, 6]])}, ["w"], "null"),
        ({"w": pa.array([[1, 2], [3, 4], [5, None]], pa.list_(pa.int8(), 2))}, ["w"], "null"),
        ({"w": pa.array(["a", "b", "c"])}, ["w"], "encode"),
        ({"w": pa.array([[[1]]] * 3)}, ["w"], "cast"),
        ({"w": pa.array([1, 2, 3]), "v": pa.array([1.0, 2, 3])}, ["w", "v"], "differ"),
        ({"w": pa.array([1, 2, 3]), "v": pa.array([[1]] * 3)}, ["v", "w"], "lists"),
        ({}, ["w"], "no column 'w'"),
    ],
)
def test_rows_that_are_no_array(
    tmp_path: Path, columns: dict[str, Any], named: list[str], told: str
) -> None:
    path = written(tmp_path / "e.parquet", {"src": [1, 2, 3], "dst": [1, 2, 3], **columns})
    with pytest.raises(InputError) as caught:
        rows_of(path, named)
    assert told in str(caught.value) and caught.value.path == str(path) and caught.value.column
    holes = (
        [n for n, cell in enumerate(columns["w"].to_pylist()) if _holed(cell)] if columns else []
    )
    if told in ("null", "1 elements where others have 2"):
        assert caught.value.row == (holes[0] if holes else 2)


def _holed(cell: Any) -> bool:
    return cell is None or (isinstance(cell, list) and None in cell)


def test_lists_in_a_file_without_rows(tmp_path: Path) -> None:
    column = pa.array([], pa.list_(pa.float32()))
    path = written(
        tmp_path / "e.parquet", {"src": pa.array([], pa.int64()), "dst": [], "w": column}
    )
    source = opened(path).rows(("w",))
    assert source.count == 0 and not source.layout.known and list(source.pieces(100)) == []


@pytest.mark.parametrize("cuts", [[(3, 4, 3), (10,)], [(1,) * 10, (4, 6)], [(10,), (10,)]])
def test_columns_decoded_apart_are_put_together_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts: list[tuple[int, ...]]
) -> None:
    # Arrow may end the batches of one column where those of another go on.
    path = written(tmp_path / "e.parquet", {"src": SRC[:10], "dst": DST[:10]})
    deliver_in_pieces(monkeypatch, {"src": cuts[0], "dst": cuts[1]})
    assert edges_of(path) == (SRC[:10].tolist(), DST[:10].tolist())


def test_columns_of_different_lengths_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "e.parquet", {"src": SRC[:10], "dst": DST[:10]})
    deliver_in_pieces(monkeypatch, {"src": (3, 4, 3), "dst": (9,)})
    with pytest.raises(InputError, match="not equally long"):
        edges_of(path)


def deliver_in_pieces(monkeypatch: pytest.MonkeyPatch, cuts: dict[str, tuple[int, ...]]) -> None:
    whole = ParquetTable._decoded

    def decoded(self: ParquetTable, columns: Any, rows: int) -> Any:
        (name,) = columns
        (array,) = next(whole(self, columns, rows))
        ends = np.cumsum(cuts[name]).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            yield [array[start:end]]

    monkeypatch.setattr(ParquetTable, "_decoded", decoded)
