"""Which reader reads a file: by its first bytes, else by its name."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overspill.build.readers.edges import sniff_format
from overspill.build.readers.source import SourceFile
from overspill.errors import InputError
from reading import edges_of, refused

PAIRS = np.array([[5, 7, 9], [7, 1, 2]])


def sniff(path: Path) -> str:
    return sniff_format(SourceFile.check(str(path)))


@pytest.mark.parametrize("name", ["e.csv", "e", "part-00000", "e.npy", "e.parquet.backup", "e.txt"])
def test_content_goes_before_the_name(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"src": PAIRS[0], "dst": PAIRS[1]}), tmp_path / name)
    assert sniff(tmp_path / name) == "parquet"
    with (tmp_path / name).open("wb") as file:
        np.save(file, PAIRS)
    assert sniff(tmp_path / name) == "npy"
    assert edges_of(tmp_path / name) == (PAIRS[0].tolist(), PAIRS[1].tolist())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("e.csv", "csv"),
        ("E.CSV", "csv"),
        ("e.tsv", "csv"),
        ("e.txt", "snap"),
        ("com-dblp.ungraph.txt", "snap"),
        ("e.tfrecord", "tfrecord"),
        ("e.tfrecord-00000-of-00010", "tfrecord"),
        ("e.arrows", "arrow"),
    ],
)
def test_names(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"1 2\n")
    assert sniff(tmp_path / name) == kind


@pytest.mark.parametrize("name", ["e.csv.gz", "e.csv.GZ", "e.csv"])
def test_names_of_compressed_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"1,2\n"))
    assert sniff(tmp_path / name) == "csv"


def test_raw_bytes_named_npy(tmp_path: Path) -> None:
    PAIRS.tofile(tmp_path / "e.npy")
    assert "raw bytes" in str(refused(tmp_path / "e.npy"))


@pytest.mark.parametrize("name", ["e.parquet", "e.npz", "e.arrow"])
def test_text_under_the_name_of_a_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("src,dst\n1,2\n")
    assert refused(tmp_path / name).remedy


@pytest.mark.parametrize("name", ["e", "e.bin", "e.pt", "e.json.gz"])
def test_unknown_names_are_told_what_is_read(tmp_path: Path, name: str) -> None:
    content = b"1 2\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    error = refused(tmp_path / name)
    for known in ("Parquet", "Arrow", ".npy", ".npz", "CSV", "SNAP", "TFRecord", ".gz", ".zst"):
        assert known in str(error)


def test_compressed_files_that_are_not_read_from_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "e.npy.gz").write_bytes(gzip.compress(b"\x93NUMPY"))
    with pytest.raises(InputError, match="decompress it first"):
        sniff(tmp_path / "e.npy.gz")


def test_text_is_asked_of_integers(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("1 2\n")
    assert "ids='text'" in str(refused(tmp_path / "e.txt", text=(False, True)))


def test_npy_and_snap_text_cost_no_pyarrow(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", PAIRS)
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"1 2\n"))
    script = (
        "import sys\n"
        "from overspill.build.readers.edges import open_edges\n"
        "from overspill.build.readers.source import SourceFile\n"
        "from overspill.build.spec import EdgeSpec\n"
        "for path in sys.argv[1:]:\n"
        "    for _ in open_edges(SourceFile.check(path), EdgeSpec()).chunks(9): pass\n"
        "print('pyarrow' in sys.modules)\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "e.npy"), str(tmp_path / "e.txt.gz")]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "False\n"
