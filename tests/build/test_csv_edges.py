"""CSV and TSV: headers or none, text ids, values, compressed files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from overspill.build.readers import csv_stream
from overspill.errors import InputError
from reading import edges_of, opened, place, refused, rows_of

TEXT = (True, True)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture(params=[1 << 20, 24])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_stream, "_BLOCK_BYTES", request.param)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("e.csv", "src,dst\n5,7\n7,1\n", {}),
        ("e.csv", "5,7\n7,1\n", {}),
        ("e.csv", "5,7\r\n7,1", {"header": False}),
        ("e.csv", "\ufeff5,7\n7,1", {}),
        ("e.csv", "\n\n5,7\n\n7,1\n\n", {}),
        ("e.csv", "\n\nsrc,dst\n\n5,7\n\n7,1\n\n", {}),
        ("e.csv", "1,2\n5,7\n7,1\n", {"header": True}),
        ("e.csv", "9,5,7\n9,7,1\n", {"columns": ("1", "2")}),
        ("e.csv", "x,5,7\ny,7,1\n", {"columns": ("1", "2"), "header": False}),
        ("e.csv", "src,2019,dst\n5,0,7\n7,0,1\n", {}),
        ("e.tsv", "src\tdst\n5\t7\n7\t1\n", {}),
        ("e.tsv", "5\t7\n7\t1", {}),
        ("e.tab", "a,b\tdst\tsrc\n,\t7\t5\n,,\t1\t7", {}),
    ],
)
@pytest.mark.usefixtures("blocks")
def test_headers_and_delimiters(
    tmp_path: Path, name: str, content: str, options: dict[str, Any]
) -> None:
    path = write(tmp_path / name, content)
    assert edges_of(path, **options) == ([5, 7], [7, 1])
    assert edges_of(path, most=1, **options) == ([5, 7], [7, 1])


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("0,1,0.5\n", {}),
        ("0,b\n", {}),
        ("alice,bob\n", {"text": TEXT}),
        ("007,7\n8,9\n", {"text": TEXT}),
        ("7,alice\n", {"text": (False, True)}),
    ],
)
def test_a_first_line_that_could_be_either(
    tmp_path: Path, content: str, options: dict[str, Any]
) -> None:
    error = refused(write(tmp_path / "e.csv", content), **options)
    assert error.row == 0 and error.value == content.split("\n")[0]
    assert "header=True" in str(error) and "header=False" in str(error)


def test_no_edges(tmp_path: Path) -> None:
    for header, content in ((None, "src,dst"), (False, ""), (True, "a,b\n\n")):
        assert edges_of(write(tmp_path / "e.csv", content), header=header) == ([], [])
    assert "empty" in str(refused(write(tmp_path / "e.csv", "")))


def test_more_columns_than_two_without_a_header(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "e.csv", "1,2,3\n"))
    assert "columns are 0, 1, 2" in str(error)


WORDS = ["007", "7", "a b", " a", "schön", 'say "x"', "two\nlines", "1,5", "0x1f", "NULL"]


def quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if set(word) & set('",\n') else word


@pytest.mark.usefixtures("blocks")
def test_text_keeps_its_bytes(tmp_path: Path) -> None:
    lines = [f"{quoted(word)},{n}" for n, word in enumerate(WORDS)]
    path = write(tmp_path / "e.csv", "\n".join(["src,dst", *lines]))
    assert edges_of(path, text=(True, False)) == (WORDS, list(range(10)))
    found = edges_of(path, text=TEXT, most=3)
    assert found == (WORDS, [str(n) for n in range(10)])


def test_text_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "007,7\n7,alice\n")
    assert edges_of(path, text=TEXT, header=False) == (["007", "7"], ["7", "alice"])


@pytest.mark.parametrize(
    ("cell", "value", "told"),
    [(b"", "", "null"), (b'""', "", "null"), (b"caf\xe9", "caf\ufffd", "UTF-8")],
)
@pytest.mark.usefixtures("blocks")
def test_text_that_is_none(tmp_path: Path, cell: bytes, value: str, told: str) -> None:
    path = write(tmp_path / "e.csv", b"src,dst\n" + b"a,b\n" * 20 + b"c," + cell + b"\na,b\n")
    error = refused(path, text=TEXT)
    assert place(error) == (21, "dst", value) and told in str(error) and error.remedy


@pytest.mark.usefixtures("blocks")
def test_cells_of_one_end_as_text_and_of_the_other_as_integers(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst\n" + "a,1\n" * 9 + "b,x\n")
    assert place(refused(path, text=(True, False))) == (10, "dst", "x")
    error = refused(path)
    assert place(error) == (1, "src", "a") and error.remedy == "say that ids are text: ids='text'"


ROWS = np.arange(400).reshape(2, 200)
BODY = "\n".join(f"{s},{t}" for s, t in ROWS.T.tolist()) + "\n"
PACKED = {
    "gz": gzip.compress,
    "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("most", [1 << 16, 7])
def test_compressed(tmp_path: Path, suffix: str, most: int) -> None:
    path = write(tmp_path / f"e.csv.{suffix}", PACKED[suffix](f"src,dst\n{BODY}".encode()))
    assert edges_of(path, most=most) == (ROWS[0].tolist(), ROWS[1].tolist())
    assert opened(path).nbytes == path.stat().st_size


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["csv", "txt"])
@pytest.mark.parametrize("padding", [b"", b"\0" * 600])
def test_members_one_after_another(tmp_path: Path, suffix: str, kind: str, padding: bytes) -> None:
    """The first one ends within a line, and within a number."""
    text = BODY.replace(",", "\t" if kind == "txt" else ",").encode()
    packed = PACKED[suffix](text[:101]) + PACKED[suffix](b"") + PACKED[suffix](text[101:])
    path = write(tmp_path / f"e.{kind}.{suffix}", packed + (padding if suffix == "gz" else b""))
    assert edges_of(path) == (ROWS[0].tolist(), ROWS[1].tolist())


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["csv", "txt"])
@pytest.mark.parametrize("cut", [1, 9, 200])
def test_a_compressed_file_cut_short(tmp_path: Path, suffix: str, kind: str, cut: int) -> None:
    text = BODY.replace(",", "\t" if kind == "txt" else ",").encode()
    whole = PACKED[suffix](text)
    for packed in (whole[:-cut], whole + whole[:-cut]):
        error = refused(write(tmp_path / f"e.{kind}.{suffix}", packed))
        assert "cut short" in str(error) and error.remedy


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_damaged_compressed_file(tmp_path: Path, suffix: str) -> None:
    packed = PACKED[suffix](BODY.encode()) + b"rubbish at the end"
    error = refused(write(tmp_path / f"e.csv.{suffix}", packed))
    assert "damaged" in str(error)


@pytest.mark.parametrize("content", [b"", b"src,dst\n1,2\n"])
def test_a_name_that_says_compressed_and_content_that_is_not(
    tmp_path: Path, content: bytes
) -> None:
    error = refused(write(tmp_path / "e.csv.gz", content))
    assert error.remedy and "suffix" in error.remedy


def test_a_compressed_file_under_a_plain_name(tmp_path: Path) -> None:
    assert edges_of(write(tmp_path / "e.csv", gzip.compress(b"1,2\n"))) == ([1], [2])


def test_errors_within_compressed_files(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv.gz", gzip.compress(f"src,dst\n{BODY}5,x\n".encode()))
    assert place(refused(path)) == (201, "dst", "x")
    path = write(tmp_path / "q.csv.gz", gzip.compress(f'src,dst\n{BODY}5,6\n"7,8\n'.encode()))
    assert refused(path).row == 202
    path = write(tmp_path / "x.csv.gz", gzip.compress(f"src,dst\n{BODY}0x5,6\n".encode()))
    assert place(refused(path)) == (201, "src", "0x5")


VALUES = ["0.5", "nan", "-inf", "3", "1e-3", " 2.5 "]


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (VALUES, np.array([0.5, np.nan, -np.inf, 3, 1e-3, 2.5])),
        (["1", "-2", "4873214862074861312"], np.array([1, -2, 4873214862074861312])),
        (["true", "False", "TRUE"], np.array([True, False, True])),
        (["1", "2", "0.5"], np.array([1, 2, 0.5])),
    ],
    ids=["float", "int", "bool", "mixed"],
)
@pytest.mark.usefixtures("blocks")
def test_values(tmp_path: Path, cells: list[str], wanted: np.ndarray) -> None:
    body = "\n".join(f"1,{cell},2" for cell in cells)
    path = write(tmp_path / "e.csv", f"src,w,dst\n{body}")
    found = rows_of(path, ["w"], most_bytes=17)
    assert found.dtype == wanted.dtype and np.array_equal(
        found, wanted, equal_nan=found.dtype == float
    )


def test_values_that_are_integers_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_stream, "_BLOCK_BYTES", 64)
    path = write(tmp_path / "e.csv", "src,dst,w,v\n" + "1,2,3,4\n" * 50 + "1,2,0.5,5\n")
    assert rows_of(path, ["w"]).tolist() == [3.0] * 50 + [0.5]
    found = rows_of(path, ["v", "w"])
    assert found.shape == (51, 2) and found[-1].tolist() == [5, 0.5]
    assert rows_of(path, ["v"]).dtype == np.int64


@pytest.mark.parametrize(
    ("cell", "told"),
    [("", "null"), ("x", "not a number"), ("1_0", "not a number"), ("0x1f", "not a number")],
)
@pytest.mark.usefixtures("blocks")
def test_values_that_are_none(tmp_path: Path, cell: str, told: str) -> None:
    path = write(tmp_path / "e.csv", "src,dst,w\n" + "1,2,.5\n" * 30 + f"1,2,{cell}\n")
    with pytest.raises(InputError, match=told) as caught:
        rows_of(path, ["w"])
    assert place(caught.value) == (31, "w", cell)


@pytest.mark.usefixtures("blocks")
def test_a_hexadecimal_cell_is_no_integer(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst,w\n" + "1,2,5\n" * 30 + "1,2,0x1f\n")
    with pytest.raises(InputError) as caught:
        rows_of(path, ["w"])
    assert place(caught.value) == (31, "w", "0x1f")


def test_columns_that_make_no_array(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst,w,b\n1,2,3,true\n")
    with pytest.raises(InputError, match="booleans"):
        rows_of(path, ["w", "b"])
    with pytest.raises(InputError, match="no column 'x'"):
        rows_of(path, ["x"])
    assert rows_of(path, ["src"]).tolist() == [1]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_utf_16_is_told(tmp_path: Path, encoding: str) -> None:
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    path = write(tmp_path / "e.csv", mark + "src,dst\n0,1\n".encode(encoding))
    error = refused(path)
    assert "UTF-16" in str(error) and "iconv" in str(error.remedy)


def test_a_header_that_arrow_reads_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", b"s\xffc,dst\n0,1\n")
    error = refused(path)
    assert "header" in str(error) and "UTF-8" in str(error.remedy)


def test_other_delimiters_are_told(tmp_path: Path) -> None:
    for mark in (";", "|", "\t"):
        error = refused(write(tmp_path / "e.csv", f"src{mark}dst\n0{mark}1\n"))
        assert repr(mark) in str(error.remedy)
