"""npz: a matrix of edges or two arrays, stored or compressed, and further members as rows."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.build.readers.tables import open_table
from overspill.errors import InputError
from reading import edges_of, gathered, place, refused, rows_of

PAIRS = np.random.default_rng(4).integers(0, 99, (2, 1000))
WANTED = tuple(PAIRS.tolist())


def packed(path: Path, *, squeeze: bool = True, **arrays: Any) -> Path:
    (np.savez_compressed if squeeze else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("squeeze", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<u4", "|i1", "<u8"])
def test_a_matrix(tmp_path: Path, squeeze: bool, order: Any, axis: int, dtype: str) -> None:
    array = np.asarray(PAIRS if axis == 1 else PAIRS.T, dtype, order)
    path = packed(tmp_path / "e.npz", squeeze=squeeze, edges=array, x=np.zeros((3, 3)), n=7)
    for most in (1, 333, 1 << 16):
        assert edges_of(path, most=most) == WANTED


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("src", "dst"), {}),
        (("row", "col"), {}),
        (("a", "b"), {}),
        (("a", "b"), {"columns": ("a", "b")}),
    ],
)
def test_two_arrays(tmp_path: Path, names: tuple[str, str], options: dict[str, Any]) -> None:
    arrays = dict(zip(names, (PAIRS[0].astype(">u2"), PAIRS[1]), strict=True))
    more = {} if names == ("a", "b") and not options else {"shape": np.array([99, 99])}
    path = packed(tmp_path / "e.npz", **arrays, **more, data=np.ones(1000))
    assert edges_of(path, **options, most=77) == WANTED


def test_the_named_matrix_among_several(tmp_path: Path) -> None:
    path = packed(tmp_path / "e.npz", edge_feat=PAIRS.T.copy(), edge_index=PAIRS, n=np.arange(4))
    assert edges_of(path) == WANTED
    assert edges_of(path, columns=("edge_feat", "edge_feat")) == WANTED
    assert np.array_equal(rows_of(path, ["edge_feat"]), PAIRS.T)


@pytest.mark.parametrize(
    ("arrays", "options", "told"),
    [
        ({"a": PAIRS, "b": PAIRS}, {}, "which of its arrays"),
        ({"x": np.zeros((2, 5))}, {}, "x float64"),
        ({"src": PAIRS[0], "dst": PAIRS[1][:-1]}, {}, "999 targets"),
        ({"src": PAIRS[0], "dst": PAIRS[1] * 1.0}, {}, "must be integers"),
        ({"src": PAIRS[0], "dst": PAIRS}, {}, "must be integers"),
        ({"e": PAIRS}, {"columns": ("e", "f")}, "no column 'f'"),
        ({"e": PAIRS[:, :2]}, {}, "is it"),
        ({"e": np.zeros((3, 4), int)}, {}, "edges want"),
        ({"e": PAIRS}, {"edge_axis": 0}, "edges want"),
        ({"e": np.array([{}, {}])}, {}, "e object"),
    ],
)
def test_what_is_no_edges(
    tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    assert told in str(refused(packed(tmp_path / "e.npz", **arrays), **options))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_square_as_told(tmp_path: Path, axis: int) -> None:
    path = packed(tmp_path / "e.npz", e=np.array([[0, 1], [2, 3]]))
    wanted = ([0, 1], [2, 3]) if axis == 1 else ([0, 2], [1, 3])
    assert edges_of(path, edge_axis=axis) == wanted


@pytest.mark.parametrize("shape", [(2, 0), (0, 2)])
def test_no_edges(tmp_path: Path, shape: tuple[int, int]) -> None:
    assert edges_of(packed(tmp_path / "e.npz", e=np.empty(shape, int))) == ([], [])


def test_an_unsigned_id_beyond_63_bits(tmp_path: Path) -> None:
    ids = np.array([[1, 2, 3], [4, 2**63 + 5, 5]], np.uint64)
    assert place(refused(packed(tmp_path / "e.npz", e=ids))) == (1, "1", str(2**63 + 5))
    path = packed(tmp_path / "f.npz", src=ids[0], dst=ids[1])
    assert place(refused(path, most=1)) == (1, "dst", str(2**63 + 5))


@pytest.mark.parametrize("squeeze", [True, False])
def test_damaged_archives(tmp_path: Path, squeeze: bool) -> None:
    path = packed(tmp_path / "e.npz", squeeze=squeeze, e=PAIRS)
    whole = path.read_bytes()
    middle = len(whole) // 2
    broken = [whole[:-1], whole[:middle], whole[:middle] + b"XXXX" + whole[middle + 4 :]]
    for content in broken:
        path.write_bytes(content)
        assert "npz" in str(refused(path)) and refused(path).remedy


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "no arrays" in str(refused(tmp_path / "e.npz"))


def test_a_member_whose_header_promises_too_much(tmp_path: Path) -> None:
    held = io.BytesIO()
    np.save(held, PAIRS)
    for content in (held.getvalue()[:-8], held.getvalue() + b"more"):
        with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
            archive.writestr("e.npy", content)
        assert "member 'e'" in str(refused(tmp_path / "e.npz"))


@pytest.mark.parametrize("squeeze", [True, False])
def test_rows(tmp_path: Path, squeeze: bool) -> None:
    rng = np.random.default_rng(5)
    arrays = {
        "w": rng.random(1000).astype(">f4"),
        "x": rng.random((1000, 3, 2)),
        "flag": PAIRS[0] > 5,
        "one": np.asfortranarray(rng.random((1000, 1))),
    }
    path = packed(tmp_path / "e.npz", squeeze=squeeze, edge_index=PAIRS, **arrays)
    for name, array in arrays.items():
        found = rows_of(path, [name], most_bytes=1000)
        assert np.array_equal(found, array) and found.dtype == array.dtype.newbyteorder("<")
    table = open_table([str(path)], ["x"])
    assert table.count == 1000 and np.array_equal(gathered(table, 50), arrays["x"])


def test_columns_as_one_array_and_keys(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.npz", id=[7, 5], a=[1.0, 2], b=[3.0, 4])
    table = open_table([str(path)], ["b", "a"], key="id")
    ((keys, rows, _, first),) = table.keyed_pieces(1 << 10)
    assert (list(keys), rows.tolist(), first) == ([7, 5], [[3, 1], [4, 2]], 0)


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros(999), "not 1000 rows"),
        (np.array(3), "not 1000 rows"),
        (np.asfortranarray(np.zeros((1000, 2))), "Fortran"),
        (np.full(1000, "text"), "no array file can"),
        (np.zeros(1000, np.complex128), "no array file can"),
    ],
)
def test_members_that_are_no_rows(tmp_path: Path, array: Any, told: str) -> None:
    path = packed(tmp_path / "e.npz", edge_index=PAIRS, x=array)
    with pytest.raises(InputError, match=told) as caught:
        rows_of(path, ["x"])
    assert caught.value.column == "x"
