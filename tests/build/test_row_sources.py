from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naive_rows import building, output, random_rows, same_bits
from overspill.build.directory import BuildDirectory
from overspill.build.moving.row_sources import ArrayRows, NpyRows, RowSource
from overspill.build.moving.scatter import scatter_rows
from overspill.build.readers.npy import read_npy_header
from overspill.build.readers.source import SourceFile
from overspill.build.remedies import FILE_ALONE
from overspill.errors import InputError, StaleFileError
from overspill.linux.cache import cached_bytes


def joined(source: RowSource, most_bytes: int) -> np.ndarray:
    """All rows, each piece checked when the second after it has been made."""
    found: list[np.ndarray] = []
    alive: list[tuple[np.ndarray, np.ndarray]] = []
    for rows in source.pieces(most_bytes):
        assert rows.nbytes <= most_bytes or len(rows) == 1
        assert rows.shape[1:] == source.row_shape
        alive.append((rows, rows.copy()))
        assert all(same_bits(then, copy) for then, copy in alive[-3:]), "a buffer was used too soon"
        found.append(alive[-1][1])
    whole = np.concatenate(found) if found else np.empty((0, *source.row_shape))
    assert len(whole) == source.count
    return whole


def npy_rows(directory: BuildDirectory, array: np.ndarray, tmp_path: Path) -> NpyRows:
    np.save(tmp_path / "x.npy", array)
    return NpyRows(read_npy_header(SourceFile.check(str(tmp_path / "x.npy"))), directory)


@pytest.mark.parametrize("most_bytes", [1, 40, 100, 1 << 20])
@pytest.mark.parametrize("shape", [(7,), (30, 1), (5, 9), (40, 3, 2), (6, 0), (0, 4), (1, 300)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", "|u1"])
def test_npy_files_of_any_order(
    tmp_path: Path, most_bytes: int, shape: tuple[int, ...], order: Any, dtype: str
) -> None:
    array = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    with building(tmp_path) as directory:
        source = npy_rows(directory, np.asarray(array, order=order), tmp_path)
        assert source.dtype == array.dtype.newbyteorder("<").name
        for _ in range(2):  # again for each call
            found = joined(source, most_bytes)
            assert found.shape == array.shape and np.array_equal(found, array)
        assert found.dtype.isnative or not array.size


def test_leaving_a_fortran_file_early_leaves_no_scratch_file(tmp_path: Path) -> None:
    with building(tmp_path) as directory:
        array = np.asfortranarray(random_rows("int32", (2000, 3000)))
        pieces = npy_rows(directory, array, tmp_path).pieces(200)
        next(pieces)
        assert any((directory.path / "scratch").iterdir()), "or the test tests nothing"
        pieces.close()  # type: ignore[attr-defined]


def test_a_npy_file_that_changed_is_refused(tmp_path: Path) -> None:
    with building(tmp_path) as directory:
        source = npy_rows(directory, np.zeros((5, 2)), tmp_path)
        np.save(tmp_path / "x.npy", np.zeros((6, 2)))
        with pytest.raises(InputError, match="changed while the build read it"):
            joined(source, 100)


def array_rows(directory: BuildDirectory, rows: np.ndarray, dtype: str) -> ArrayRows:
    pieces = iter([(np.arange(len(rows)), rows)])
    record = scatter_rows(pieces, output(directory, dtype, rows.shape, budget_bytes=1 << 24)).record
    return ArrayRows(directory.path / record.path, record)


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "complex64", "bool"])
@pytest.mark.parametrize("shape", [(50,), (20, 3), (4, 0), (0, 2)])
@pytest.mark.parametrize("most_bytes", [1, 64, 1 << 20])
def test_array_files(tmp_path: Path, dtype: str, shape: tuple[int, ...], most_bytes: int) -> None:
    rows = random_rows(dtype, shape)
    with building(tmp_path) as directory:
        source = array_rows(directory, rows, dtype)
        found = joined(source, most_bytes)
        assert (source.dtype, source.row_shape) == (dtype, shape[1:])
    assert same_bits(found, rows) or not rows.size


@pytest.mark.requires("mincore")
def test_what_was_read_of_an_array_file_is_not_cached(tmp_path: Path) -> None:
    with building(tmp_path) as directory:
        source = array_rows(directory, np.zeros((1 << 20, 8), np.uint8), "uint8")
        for _ in source.pieces(100_000):
            pass
        assert cached_bytes(source.path) <= 64 << 10


@pytest.mark.parametrize("fault", ["gone", "cut", "another"])
def test_an_array_file_that_changed_is_refused(tmp_path: Path, fault: str) -> None:
    with building(tmp_path) as directory:
        source = array_rows(directory, np.zeros((5000, 8), np.uint8), "uint8")
        if fault == "gone":
            source.path.unlink()
        elif fault == "cut":
            os.truncate(source.path, 9000)
        else:
            source.path.unlink()
            array_rows(directory_again(directory, source), np.zeros((50, 8), np.uint8), "uint8")
        with pytest.raises(StaleFileError, match=str(source.path)):
            joined(source, 100)


def directory_again(directory: BuildDirectory, source: ArrayRows) -> BuildDirectory:
    assert not source.path.exists()
    return directory


def test_an_array_file_cut_while_it_is_read(tmp_path: Path) -> None:
    with building(tmp_path) as directory:
        source = array_rows(directory, np.zeros((5000, 8), np.uint8), "uint8")
        pieces = source.pieces(100)
        next(pieces)
        os.truncate(source.path, 4200)
        with pytest.raises(StaleFileError, match="was cut while in use") as caught:
            list(pieces)
    assert caught.value.remedy == FILE_ALONE and caught.value.path == str(source.path)
