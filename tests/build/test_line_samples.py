"""The edges of a text file, estimated: near enough for a plan, and never more than it says."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from overspill.build.readers.line_samples import EdgeEstimate, estimate_edges
from overspill.build.readers.source import SourceFile
from tf_examples import records

LINES = [f"{s},{t}" for s, t in np.random.default_rng(2).integers(0, 10**7, (300_000, 2)).tolist()]


def estimate(path: Path) -> EdgeEstimate:
    return estimate_edges(SourceFile.check(str(path)))


def test_a_small_file_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "e.txt"
    path.write_text("# a comment\n\n1 2\r\n3 4\n\n5 6")
    assert estimate(path).likely == 3


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst"])
def test_a_large_file_is_estimated(tmp_path: Path, suffix: str) -> None:
    path, text = tmp_path / f"e{suffix}", "src,dst\n" + "\n".join(LINES)
    if suffix == ".csv":
        path.write_text(text)
    elif suffix == ".csv.gz":
        path.write_bytes(gzip.compress(text.encode(), 1))
    else:
        with pa.output_stream(str(path), compression="zstd") as file:
            file.write(text.encode())
    found = estimate(path)
    assert found.likely == pytest.approx(len(LINES), rel=0.1)
    # Of the end of a compressed file nobody knows a thing.
    assert found.least == (int(0.75 * found.likely) if suffix == ".csv" else 0)


def test_a_file_that_grows_sparser_is_not_overestimated_by_much(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    with path.open("w") as file:
        for number in range(40_000):
            file.write(f"{number},1{' ' * (number // 400)}\n")
    found = estimate(path)
    assert found.least <= 40_000 and found.likely == pytest.approx(40_000, rel=0.2)


def test_records_tell_their_length(tmp_path: Path) -> None:
    path = tmp_path / "e.tfrecord"
    path.write_bytes(records({"src": n, "dst": n + 1} for n in range(500)))
    assert estimate(path) == EdgeEstimate(500, 0)


def test_an_empty_file_has_no_edges(tmp_path: Path) -> None:
    (tmp_path / "e.csv").touch()
    assert estimate(tmp_path / "e.csv") == EdgeEstimate(0, 0)
