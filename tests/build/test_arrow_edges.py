"""Arrow IPC: files and streams, compressed or not, any batch some rows at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from overspill.build.readers import arrow_edges
from overspill.build.readers.tables import open_table
from overspill.errors import InputError
from reading import edges_of, gathered, opened, place, refused, rows_of

RNG = np.random.default_rng(11)
SRC, DST = RNG.integers(-(2**63), 2**63 - 1, (2, 1000))
WORDS = ["007", "7", "", "schön", "日本" * 20] * 200
FEAT = RNG.random((1000, 3)).astype(np.float32)
# Columns before and between the ids, of every number of buffers.
MIXED = {
    "null": pa.nulls(1000),
    "struct": pa.array([{"a": 1, "b": "x"}] * 1000),
    "view": pa.array(WORDS).cast(pa.string_view()),
    "list view": pa.array([[1, 2]] * 1000, pa.list_view(pa.int64())),
    "map": pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int8())),
    "union": pa.UnionArray.from_sparse(pa.array([0] * 1000, pa.int8()), [pa.array(SRC)]),
    "dense": pa.UnionArray.from_dense(
        pa.array([0] * 1000, pa.int8()), pa.array(range(1000), pa.int32()), [pa.array(SRC)]
    ),
    "runs": pa.RunEndEncodedArray.from_arrays([1000], ["x"]),
    "dict": pa.array(WORDS).dictionary_encode(),
    "bool": pa.array(SRC > 0),
    "src": pa.array(SRC),
    "text": pa.array(WORDS),
    "binary view": pa.array([b"x" * 40] * 1000, pa.binary_view()),
    "large": pa.array(WORDS, pa.large_string()),
    "w": pa.array(FEAT[:, 0]),
    "half": pa.array(FEAT[:, 0].astype(np.float16)),
    "flags": pa.FixedSizeListArray.from_arrays(pa.array(SRC.repeat(3) > 0), 3),
    "feat": pa.FixedSizeListArray.from_arrays(FEAT.ravel(), 3),
    "lists": pa.array(list(FEAT)),
    "large lists": pa.array(list(FEAT), pa.large_list(pa.float32())),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(FEAT[:, :2, None]),
    "time": pa.array(SRC, pa.timestamp("ms")),
    "dst": pa.array(DST),
}
KINDS = ["file", "stream"]
CODECS = [None, "lz4", "zstd"]


def write(
    path: Path, columns: Any, *, kind: str = "file", codec: str | None = None, rows: int = 333
) -> Path:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out:
        out.write_table(table, rows)
    return path


@pytest.fixture(params=[8, 1 << 14])
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_edges, "_MOST_ROWS", request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.usefixtures("step")
def test_every_column_among_every_other(tmp_path: Path, kind: str, codec: str | None) -> None:
    path = write(tmp_path / "e.arrows", MIXED, kind=kind, codec=codec)
    assert opened(path).count == 1000
    for most in (7, 1 << 16):
        assert edges_of(path, most=most) == (SRC.tolist(), DST.tolist())
    for name in ("text", "large", "dict", "view"):
        assert edges_of(path, columns=(name, "dst")) == (WORDS, DST.tolist())
    wanted = {
        "w": FEAT[:, 0],
        "half": FEAT[:, 0].astype(np.float16),
        "bool": SRC > 0,
        "flags": np.repeat(SRC > 0, 3).reshape(-1, 3),
        "time": SRC,
        "tensor": FEAT[:, :2, None],
        **dict.fromkeys(("feat", "lists", "large lists"), FEAT),
    }
    for name, array in wanted.items():
        found = rows_of(path, [name], most_bytes=1000)
        assert found.dtype == array.dtype and np.array_equal(found, array), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 64, 10_000])
def test_batches_of_every_size(tmp_path: Path, kind: str, rows: int) -> None:
    path = write(tmp_path / "e.arrow", {"src": SRC, "dst": DST}, kind=kind, rows=rows)
    assert edges_of(path) == (SRC.tolist(), DST.tolist())
    none = write(tmp_path / "n.arrow", pa.table({"src": SRC, "dst": DST})[:0], kind=kind)
    assert opened(none).count == 0 and edges_of(none) == ([], [])


@pytest.mark.filterwarnings("ignore:Feather V1:DeprecationWarning")
def test_feather(tmp_path: Path) -> None:
    table = pa.table({"src": SRC, "dst": DST})
    pa.feather.write_feather(table, str(tmp_path / "e.feather"), compression="zstd")
    assert edges_of(tmp_path / "e.feather") == (SRC.tolist(), DST.tolist())
    pa.feather.write_feather(table, str(tmp_path / "o.feather"), version=1)
    assert "first version" in str(refused(tmp_path / "o.feather"))


def test_batches_that_were_cut_from_larger_ones(tmp_path: Path) -> None:
    """Offsets that do not begin at 0, and bits that do not begin at a byte."""
    table = pa.table({"src": pa.array(WORDS), "dst": DST, "b": SRC > 0, "l": list(FEAT)})[13:601]
    path = write(tmp_path / "e.arrow", table, rows=100)
    assert edges_of(path) == (WORDS[13:601], DST[13:601].tolist())
    assert np.array_equal(rows_of(path, ["b"]), (SRC > 0)[13:601])
    assert np.array_equal(rows_of(path, ["l"]), FEAT[13:601])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("row", [0, 5, 350, 999])
@pytest.mark.parametrize(
    "column",
    [
        [*range(1000)],
        ["x"] * 1000,
        [[1, 2]] * 1000,
        pa.array([[1, 2]] * 1000, pa.list_(pa.int8(), 2)),
    ],
    ids=["int", "text", "list", "fixed"],
)
@pytest.mark.usefixtures("step")
def test_nulls(tmp_path: Path, codec: str | None, row: int, column: Any) -> None:
    kind = pa.array(column).type
    cells = pa.array(column).to_pylist()
    lists = isinstance(cells[row], list)
    for null in (None, [3, None]) if lists else (None,):
        cells[row] = null
        held = {"x": pa.array(cells, kind), "dst": DST, "src": SRC}
        path = write(tmp_path / "e.arrow", held, codec=codec)
        with pytest.raises(InputError, match="null") as caught:
            rows_of(path, ["x"]) if lists else edges_of(path, columns=("x", "dst"))
        assert place(caught.value)[:2] == (row, "x")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_files_cut_short(tmp_path: Path, kind: str, part: float) -> None:
    path = write(tmp_path / "e.arrows", {"src": SRC, "dst": DST}, kind=kind)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    assert refused(path).remedy
    path.write_bytes(whole[:3])
    assert refused(path).remedy


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("column", ["text", "dict", "view", "src"])
def test_damage_is_an_error_or_other_values(tmp_path: Path, codec: str | None, column: str) -> None:
    """No checksum tells; what matters is that nothing worse comes of it."""
    held = {"src": MIXED[column], "dst": DST}
    path = write(tmp_path / "e.arrows", held, kind="stream", codec=codec)
    whole = path.read_bytes()
    refusals = 0
    for at in RNG.integers(0, len(whole), 60):
        broken = bytearray(whole)
        broken[at] ^= 255
        path.write_bytes(bytes(broken))
        try:
            edges_of(path)
        except InputError:
            refusals += 1
    assert refusals


def test_a_stream_without_its_end_marker(tmp_path: Path) -> None:
    path = write(tmp_path / "e.arrows", {"src": SRC, "dst": DST}, kind="stream")
    path.write_bytes(path.read_bytes()[:-8])
    assert edges_of(path) == (SRC.tolist(), DST.tolist())


def test_node_tables(tmp_path: Path) -> None:
    paths = [
        str(write(tmp_path / f"{n}.arrows", {"id": SRC[part], "x": list(FEAT[part])}, kind=kind))
        for n, (part, kind) in enumerate([(slice(0, 700), "file"), (slice(700, 1000), "stream")])
    ]
    table = open_table(paths, ["x"], key="id")
    assert (table.count, table.row_shape) == (1000, (3,))
    assert np.array_equal(gathered(table, 500), FEAT)
    assert [key for keys, *_ in table.keyed_pieces(500) for key in keys] == SRC.tolist()
