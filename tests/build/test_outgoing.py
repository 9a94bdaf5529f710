"""What lies in memory arrives as it is, whichever library holds it and however it lies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse

from overspill.build.readers.npy import bits_dtype
from overspill.build.sending.conversation import UnwantedError
from overspill.build.sending.outgoing import Outgoing
from overspill.build.sending.sent_arrays import SLICE_BYTES
from overspill.errors import InputError
from overspill.linux.pipes import open_wide_pipe
from sending import arrived_array, arrived_table, outlet_to, taken_in

# More than one slice of each kind, and no multiple of one.
COUNT = 150_001
EDGES = np.random.default_rng(4).integers(0, 1000, (2, COUNT))
ROWS = np.random.default_rng(5).random((5001, 60), np.float32)


class Dlpack:
    """An array of a library that offers nothing but DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class CStream:
    """A table of a library that offers nothing but Arrow's C stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(schema)


class Elsewhere:
    """An array in a file of another library: read whole by numpy, or in slices."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.largest = 0

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self[...]

    def __getitem__(self, place: Any) -> np.ndarray:
        part = self._array[place]
        self.largest = max(self.largest, part.nbytes)
        return part


def chunks(step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, COUNT, step):
        yield EDGES[0, first : first + step], EDGES[1, first : first + step]


def table() -> pa.Table:
    return pa.table({"src": EDGES[0], "dst": EDGES[1]})


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas")
    # An index that is not part of the data.
    return pandas.DataFrame({"src": EDGES[0], "dst": EDGES[1]}, index=np.arange(COUNT)[::-1])


def polars_frame() -> Any:
    return pytest.importorskip("polars").DataFrame({"src": EDGES[0], "dst": EDGES[1]})


def duckdb_relation() -> Any:
    duckdb = pytest.importorskip("duckdb")
    held = table()
    return duckdb.connect().from_arrow(held).project("src, dst")


ARRAYS: dict[str, Callable[[], Any]] = {
    "(2, E)": lambda: EDGES,
    "(E, 2)": lambda: np.ascontiguousarray(EDGES.T),
    "(E, 2) transposed": lambda: EDGES.T,
    "(2, E) in Fortran order": lambda: np.asfortranarray(EDGES),
    "(2, E) with gaps": lambda: np.repeat(EDGES, 2, axis=1)[:, ::2],
    "(E, 2) with gaps": lambda: np.repeat(EDGES, 2, axis=0).T[:, ::2],
    "backwards": lambda: np.ascontiguousarray(EDGES[:, ::-1])[:, ::-1],
    "big-endian": lambda: EDGES.astype(">i4"),
    "read-only": lambda: np.frombuffer(EDGES.tobytes(), np.int64).reshape(2, -1),
    "DLPack": lambda: Dlpack(EDGES),
    "a pair": lambda: (EDGES[0], EDGES[1]),
    "a pair as a list": lambda: [EDGES[0], EDGES[1]],
    "a pair of two types": lambda: (EDGES[0].astype(np.int16), EDGES[1]),
    "a pair, one unsigned": lambda: (EDGES[0], EDGES[1].astype(np.uint64)),
    "a pair with gaps": lambda: (np.repeat(EDGES[0], 3)[::3], EDGES[1]),
    "a pair of lists": lambda: [EDGES[0].tolist(), EDGES[1].tolist()],
    "a generator of pairs": lambda: chunks(1000),
    "a generator of large pairs": lambda: chunks(COUNT - 1),
    "a list of arrays": lambda: [EDGES[:, :70_000], EDGES[:, 70_000:]],
    "a generator of (E, 2)": lambda: (EDGES.T[i : i + 999] for i in range(0, COUNT, 999)),
}
TABLES: dict[str, Callable[[], Any]] = {
    "Table": table,
    "RecordBatch": lambda: table().combine_chunks().to_batches()[0],
    "RecordBatchReader": lambda: table().to_reader(1000),
    "a C stream": lambda: CStream(table()),
    "an iterator of batches": lambda: iter(table().to_batches(777)),
    "a list of tables": lambda: [table().slice(0, 10), table().slice(10)],
    "a pair of columns": lambda: [table()["src"], table()["dst"]],
    "a column and an array": lambda: [table()["src"].combine_chunks(), EDGES[1]],
    "pandas": pandas_frame,
    "polars": polars_frame,
    "polars columns": lambda: [polars_frame()["src"], polars_frame()["dst"]],
    "DuckDB": duckdb_relation,
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_edges_arrive_as_an_array(tmp_path: Path, kind: str) -> None:
    found = arrived_array(tmp_path / "out", ARRAYS[kind]())
    assert np.array_equal(found if found.shape[0] == 2 else found.T, EDGES)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", TABLES)
def test_edges_arrive_as_a_table(tmp_path: Path, kind: str) -> None:
    found = arrived_table(tmp_path / "out", TABLES[kind]())
    assert found.schema.names == ["src", "dst"]
    assert np.array_equal(found["src"].to_numpy(), EDGES[0])
    assert np.array_equal(found["dst"].to_numpy(), EDGES[1])


def test_types_of_arrays_stay(tmp_path: Path) -> None:
    for number, dtype in enumerate(["int8", "uint16", "int32", "uint64", ">i8"]):
        found = arrived_array(tmp_path / str(number), np.ones((2, 3), dtype))
        assert found.dtype == np.dtype(dtype)
    # Of chunks the later ones may be wider.
    wide = 2**40
    found = arrived_array(tmp_path / "c", iter([np.ones((2, 3), np.int8), np.array([[wide], [1]])]))
    assert found.dtype == np.int64 and found.max() == wide


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        np.asfortranarray(ROWS),
        np.repeat(ROWS, 2, axis=1)[:, ::2],
        ROWS[:, :1],
        ROWS[::-1],
        ROWS.reshape(-1, 3, 20).transpose(0, 2, 1),
        ROWS[:0],
        np.empty((4, 0), np.float64),
        np.arange(4) > 1,
        np.arange(3, dtype=np.complex64),
        np.array(7),
        [1.5, 2.5],
        [[1, 2], [3, 4], [5, 6]],
        pa.array([1, 2, 3], pa.int16()),
    ],
)
def test_rows_arrive_in_c_order(tmp_path: Path, value: Any) -> None:
    found = arrived_array(tmp_path / "out", value, what="node_features['x']")
    wanted = np.asarray(value)
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)
    assert found.flags.c_contiguous


def test_rows_in_chunks(tmp_path: Path) -> None:
    def rows() -> Iterator[np.ndarray]:
        yield np.empty((0,))
        for first in range(0, len(ROWS), 7):
            yield ROWS[first : first + 7]
            yield ROWS[:0].astype(np.float64)

    found = arrived_array(tmp_path / "out", rows(), what="node_features['x']")
    assert found.dtype == np.float32 and np.array_equal(found, ROWS)
    narrower = iter([np.ones(2, np.int64), np.ones(3, np.int32)])
    found = arrived_array(tmp_path / "out2", narrower, what="edge_features['w']")
    assert found.dtype == np.int64 and found.tolist() == [1] * 5


def test_nothing_is_copied_whole(tmp_path: Path) -> None:
    """What does not lie as it travels is cut into slices that are copied one at a time."""
    sizes: list[int] = []

    class Counted:
        def put(self, data: Any) -> None:
            sizes.append(memoryview(data).nbytes)

        end_stream = give_up = lambda self: None

    for value in (np.repeat(ROWS, 8, axis=1)[:, ::2], np.repeat(EDGES, 4, axis=1)[:, ::2]):
        sizes.clear()
        streams = Outgoing()
        streams.add(value, what="node_features['x']")
        streams.send(Counted(), {})  # type: ignore[arg-type]
        assert sum(sizes) > value.nbytes > 3 * SLICE_BYTES and max(sizes) <= SLICE_BYTES


@pytest.mark.parametrize("value", [EDGES, EDGES.T, EDGES[:, :1], EDGES[:, :2], EDGES[:, :0]])
def test_edges_that_lie_elsewhere_are_read_in_slices(tmp_path: Path, value: np.ndarray) -> None:
    held = Elsewhere(value)
    found = arrived_array(tmp_path / "out", held, axis=1)
    wanted = value if value.shape[0] != 2 or value.shape == (2, 2) else value.T
    assert found.tolist() == wanted.tolist()
    assert held.largest <= SLICE_BYTES


@pytest.mark.parametrize(
    "value", [ROWS, ROWS[:, 0], ROWS[:0], ROWS[:, :0], ROWS.reshape(-1, 3, 20)]
)
def test_rows_that_lie_elsewhere_are_read_in_slices(tmp_path: Path, value: np.ndarray) -> None:
    held = Elsewhere(value)
    found = arrived_array(tmp_path / "out", held, what="node_features['x']")
    assert found.dtype == value.dtype and np.array_equal(found, value)
    assert held.largest <= SLICE_BYTES


def test_batches_are_cut_to_bounded_sizes(tmp_path: Path) -> None:
    text = pa.table({"id": ["x" * (i % 300) for i in range(100_000)]})
    streams = Outgoing()
    streams.add(text.combine_chunks(), what="node_features['x']")
    with taken_in(tmp_path / "out", streams, "stream:0") as arrived:
        (path,) = arrived.names
        with pa.ipc.open_stream(path) as reader:
            batches = list(reader)
    assert pa.Table.from_batches(batches).equals(text)
    assert len(batches) > 3 and max(batch.nbytes for batch in batches) <= 4 << 20


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.large_string()])
@pytest.mark.parametrize("coded", [False, True])
def test_text_arrives_plain(tmp_path: Path, kind: pa.DataType, coded: bool) -> None:
    """A view or a dictionary would have every batch carry all of the text."""
    words = ["007", "7", None, ""] * 50_000
    column = pa.array(words, kind)
    if coded:
        indices = pa.array([0, 1, None, 3] * 50_000, pa.int32())
        column = pa.DictionaryArray.from_arrays(indices, pa.array(["007", "7", "-", ""], kind))
    found = arrived_table(tmp_path / "out", pa.table({"src": column, "dst": column}))
    assert found["src"].type in (pa.string(), pa.large_string())
    assert found["dst"].to_pylist() == words


@pytest.mark.parametrize(
    "ends",
    [
        (["a", "b", "007"], ["c", "c", "7"]),
        (np.array(["a", "b", "007"]), np.array(["c", "c", "7"], object)),
        np.array([["a", "b", "007"], ["c", "c", "7"]]),
        np.array([["a", "c"], ["b", "c"], ["007", "7"]]),
        iter([np.array([["a", "b", "007"], ["c", "c", "7"]])]),
        iter([(["a", "b"], ["c", "c"]), ([], []), (["007"], ["7"])]),
    ],
)
def test_text_ids(tmp_path: Path, ends: Any) -> None:
    found = arrived_table(tmp_path / "out", ends)
    assert found.to_pydict() == {"src": ["a", "b", "007"], "dst": ["c", "c", "7"]}


def test_nulls_stay_nulls(tmp_path: Path) -> None:
    big = 4873214862074861312
    for number, pair in enumerate([([big, None], [1, 2]), (pa.array([big, None]), [1, 2])]):
        found = arrived_table(tmp_path / str(number), pair)
        assert found["src"].to_pylist() == [big, None]


def test_missing_numbers_of_pandas_are_no_nulls(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"w": [1.5, float("nan")], "n": [1, 2]})
    found = arrived_table(tmp_path / "out", frame, what="node_features['w']")
    assert found["w"].null_count == 0 and np.isnan(found["w"].to_numpy()[1])


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x4000], "<u2").view(bits_dtype("bfloat16"))
    found = arrived_array(tmp_path / "out", bits, what="node_features['x']")
    assert found.dtype == bits_dtype("bfloat16") and found.tobytes() == bits.tobytes()
    prepared = Outgoing(lambda value: bits if value == "mine" else value)  # type: ignore[comparison-overlap]
    assert prepared.add("mine", what="node_features['x']") == "stream:0"
    assert prepared.kinds == ("npy",)


@pytest.mark.parametrize(
    "value", [iter([]), [[], []], np.empty((2, 0), int), np.empty((0, 2), int)]
)
def test_no_edges(tmp_path: Path, value: Any) -> None:
    found = arrived_array(tmp_path / "out", value)
    assert found.size == 0 and found.ndim == 2 and found.dtype == np.int64


def test_no_edges_in_tables(tmp_path: Path) -> None:
    empty = pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.string())})
    found = arrived_table(tmp_path / "out", iter([empty, empty]))
    assert len(found) == 0 and found.schema == empty.schema


def test_empty_chunks_say_nothing(tmp_path: Path) -> None:
    empty = [np.empty(0), ([], []), np.empty((2, 0)), np.empty((0, 2), np.int32)]
    items = [*empty, np.array([[1, 2, 3], [4, 5, 6]]), *empty, np.array([[7, 8], [9, 9]])]
    found = arrived_array(tmp_path / "out", iter(items))
    assert found.tolist() == [[1, 4], [2, 5], [3, 6], [7, 9], [8, 9]]


def test_an_axis_that_was_told_holds_for_every_chunk(tmp_path: Path) -> None:
    square = np.array([[1, 2], [3, 4]])
    found = arrived_array(tmp_path / "a", iter([square]), axis=0)
    assert found.tolist() == [[1, 2], [3, 4]]
    found = arrived_array(tmp_path / "b", iter([square]), axis=1)
    assert found.tolist() == [[1, 3], [2, 4]]
    found = arrived_array(tmp_path / "c", square)  # its reader refuses it, or is told
    assert found.tolist() == square.tolist()


def test_wider_integers_after_narrow_ones(tmp_path: Path) -> None:
    def batch(dtype: pa.DataType, *ids: int) -> pa.RecordBatch:
        return pa.record_batch({"src": pa.array(ids, dtype), "dst": pa.array(ids, pa.int64())})

    found = arrived_table(tmp_path / "o", iter([batch(pa.int64(), 1), batch(pa.uint8(), 2, 3)]))
    assert found["src"].to_pylist() == [1, 2, 3]


def test_an_object_is_sent_once(tmp_path: Path) -> None:
    frame, reader = table(), table().to_reader()
    streams = Outgoing()
    assert [streams.add(frame, what="edges"), streams.add(frame, what="edges")] == ["stream:0"] * 2
    assert streams.add(reader, what="node_features['x']") == "stream:1"
    assert streams.add(reader, what="node_features['y']") == "stream:1"
    # As edges it lies otherwise than as rows.
    array = np.asfortranarray(ROWS[:2])
    assert streams.add(array, what="edges") != streams.add(array, what="node_features['z']")
    assert streams.kinds == ("arrow", "arrow", "npy", "npy")


def test_several_are_told_apart_by_name(tmp_path: Path) -> None:
    streams = Outgoing()
    for array in (EDGES, EDGES.copy(), ROWS):
        streams.add(array, what="node_features['x']" if array is ROWS else "edges")
    with taken_in(tmp_path / "out", streams, "stream:0", "stream:1") as arrived:
        assert list(arrived.names.values()) == [
            "edges (sent from memory)",
            "edges (sent from memory, number 2)",
            "node_features['x'] (sent from memory)",
        ]


@pytest.mark.parametrize(
    "value",
    [
        "a.npy",
        Path("a.npy"),
        b"a",
        None,
        7,
        2.5,
        {},
        {1},
        object(),
        ["a.npy"],
        (1, 2),
        [],
        [(1, 2, 3)],
    ],
)
def test_what_is_nothing_to_send(value: Any) -> None:
    streams = Outgoing()
    assert streams.add(value, what="edges") is None and streams.kinds == ()


def test_an_open_file_is_nothing_to_send(tmp_path: Path) -> None:
    with (tmp_path / "e.csv").open("w") as file:
        assert Outgoing().add(file, what="edges") is None


REFUSED_AT_ONCE: dict[str, tuple[Any, str]] = {
    "objects": (np.array([object()]), "numbers"),
    "records": (np.zeros(3, [("a", int), ("b", int)]), "numbers"),
    "masked": (np.ma.array([1, 2], mask=[True, False]), "masked"),
    "ragged": ([[1, 2], [3]], "differ in shape"),
    "a null": (pa.array([1, None]), "null"),
}


@pytest.mark.parametrize("kind", REFUSED_AT_ONCE)
def test_rows_that_are_refused(tmp_path: Path, kind: str) -> None:
    value, told = REFUSED_AT_ONCE[kind]
    with pytest.raises(InputError, match=told) as caught:
        arrived_array(tmp_path / "out", value, what="node_features['x']")
    assert caught.value.path == "node_features['x'] (sent from memory)"
    assert not (tmp_path / "out").exists()


def pair_batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


TOO_LARGE = np.array([1, 2**63], np.uint64)
REFUSED: dict[str, tuple[Any, str, int | None]] = {
    "lengths": ((EDGES[0], EDGES[1, :-1]), "150001 sources and 150000 targets", COUNT - 1),
    "an id of 64 bits": ((np.array([1, 2]), TOO_LARGE), "63 bits", 1),
    "a later id of 64 bits": (iter([EDGES[:, :5], (TOO_LARGE, TOO_LARGE)]), "63 bits", 6),
    "a chunk's lengths": (iter([EDGES[:, :5], ([1, 2], [3])]), "2 sources and 1 targets", 6),
    "a chunk's shape": (
        iter([EDGES[:, :5], np.ones((3, 4), int)]),
        r"chunk 1 of edges.*\(3, 4\)",
        5,
    ),
    "another axis": (iter([EDGES[:, :5], np.ones((4, 2), int)]), r"chunk 1.*\(4, 2\).*\(2, E\)", 5),
    "two by two": (iter([np.ones((2, 2), int)]), "as rows, or as columns", 0),
    "a chunk of floats": (iter([EDGES[:, :5], EDGES[:, :5] / 2]), "chunk 1.*no integers", 5),
    "a chunk of text": (iter([EDGES[:, :5], (["a"], ["b"])]), "chunk 1.*no integers", 5),
    "a table after arrays": (iter([EDGES[:, :5], table()]), "chunk 1.*no integers", 5),
    "a path": (iter(["a.npy"]), "chunk 0.*builtins str", 0),
    "an iterator": (iter([EDGES[:, :5], iter([])]), "chunk 1.*iterator", 5),
    "mixed text": ((["a", 1], ["b", "c"]), "no column of one type", None),
    "one column": (pa.array([1]), "one column", None),
    "another column": (
        iter([pair_batch(src=[1], dst=[2]), pair_batch(src=[1], to=[2])]),
        "chunk 1.*'dst'.*no such column",
        1,
    ),
    "another type": (
        iter([pair_batch(src=[1], dst=[2]), pair_batch(src=["a"], dst=[2])]),
        "chunk 1.*'src' of int64: string",
        1,
    ),
    "too wide": (
        iter([pair_batch(src=pa.array([1], pa.int8())), pair_batch(src=[2**40])]),
        "chunk 1.*1099511627776",
        1,
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_edges_that_are_refused(tmp_path: Path, kind: str) -> None:
    value, told, row = REFUSED[kind]
    with pytest.raises(InputError, match=told) as caught:
        arrived_array(tmp_path / "out", value)
    assert caught.value.path == "edges (sent from memory)" and caught.value.row == row
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([ROWS, ROWS[:, :5]], r"chunk 1.*\(5,\), after rows of float32 \(60,\)"),
        ([ROWS, ROWS.astype(np.float64)], "float64.*after rows of float32"),
        ([ROWS, np.array(3)], "no rows"),
        ([], "yielded nothing"),
        ([table(), ROWS], "no table"),
    ],
)
def test_chunks_of_rows_that_are_refused(tmp_path: Path, items: list[Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        arrived_array(tmp_path / "out", iter(items), what="node_features['x']")
    assert caught.value.path == "node_features['x'] (sent from memory)"


def test_a_library_that_gives_no_array() -> None:
    class Unwilling:
        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            raise TypeError("it lies on another device")

    with pytest.raises(InputError, match="another device") as caught:
        Outgoing().add(Unwilling(), what="edges")
    assert isinstance(caught.value.__cause__, TypeError)


class Ended(BaseException):
    """As an interrupt, no Exception."""


@pytest.mark.parametrize("kind", [ValueError, Ended])
@pytest.mark.parametrize("after", [0, 3])
def test_an_iterators_error_comes_out_as_it_is(
    tmp_path: Path, kind: type[BaseException], after: int
) -> None:
    closed = []

    def items() -> Iterator[np.ndarray]:
        try:
            for _ in range(after):
                yield EDGES
            raise kind("mine")
        finally:
            closed.append(True)

    with pytest.raises(kind, match="mine") as caught:
        arrived_array(tmp_path / "out", items())
    assert any("edges (sent from memory)" in note for note in caught.value.__notes__)
    assert closed == [True] and not (tmp_path / "out").exists()


def test_a_generator_is_closed_where_nobody_reads_on() -> None:
    reading, writing = open_wide_pipe()
    closed = []

    def items() -> Iterator[np.ndarray]:
        try:
            yield EDGES[:, :10]
            reading.close()
            while True:
                yield EDGES
        finally:
            closed.append(True)

    streams = Outgoing()
    streams.add(items(), what="edges")
    with outlet_to(writing) as outlet, pytest.raises(UnwantedError):
        streams.send(outlet, {})
    assert closed == [True]


def test_arrays_alone_need_no_pyarrow() -> None:
    script = (
        "import sys, numpy as np\n"
        "from overspill.build.sending.outgoing import Outgoing\n"
        "s = Outgoing()\n"
        "s.add(np.ones((2, 9), int), what='edges')\n"
        "s.add((np.ones((2, 9), int) for _ in range(3)), what='edges')\n"
        "class Sink:\n"
        "    put = lambda self, data: None\n"
        "    end_stream = give_up = lambda self: None\n"
        "s.send(Sink(), {})\n"
        "print([name for name in ('pyarrow', 'torch', 'pandas') if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_a_sparse_matrix_is_told_what_to_pass() -> None:
    matrix = scipy.sparse.coo_matrix(np.eye(3))
    with pytest.raises(InputError, match="sparse matrix") as caught:
        Outgoing().add(matrix, what="edges")
    assert "coo.row, coo.col" in str(caught.value.remedy)
