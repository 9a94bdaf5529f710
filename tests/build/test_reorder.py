"""Fortran order to C order out of core, against numpy, for buffers of every size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.build.passes.spool import ScratchFile
from overspill.build.readers import reorder
from overspill.build.readers.reorder import Reorder

SHAPES = [(7,), (1, 50), (50, 1), (5, 200), (200, 5), (13, 17), (3, 4, 5), (6, 1, 9), (2, 30, 7, 3)]


class Source:
    """An array as a file in Fortran order holds it; counts the reads."""

    def __init__(self, array: np.ndarray) -> None:
        self._flat = array.reshape(-1, order="F")
        self.reads = self.elements = 0

    def __call__(self, first: int, out: np.ndarray) -> None:
        assert out.flags.c_contiguous
        self.reads, self.elements = self.reads + 1, self.elements + len(out)
        out[:] = self._flat[first : first + len(out)]


@pytest.fixture
def make_scratch(tmp_path: Path) -> Callable[[], ScratchFile]:
    numbers = itertools.count()
    return lambda: ScratchFile(tmp_path / f"scratch{next(numbers)}")


def in_c_order(array: np.ndarray, nbytes: int, make_scratch: Any) -> tuple[np.ndarray, Source]:
    source = Source(array)
    parts = []
    for part in Reorder(array.dtype, nbytes, make_scratch).slices(source, 0, array.shape):
        assert part.nbytes <= max(nbytes // 5, array.itemsize) and part.ndim == 1
        parts.append(part.copy())
    return np.concatenate(parts).reshape(array.shape), source


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("elements", [1, 2, 5, 16, 60, 1000])
@pytest.mark.parametrize("least", [1, 10**6])
def test_the_same_as_numpy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_scratch: Callable[[], ScratchFile],
    shape: tuple[int, ...],
    elements: int,
    least: int,
) -> None:
    monkeypatch.setattr(reorder, "_LEAST_READ_BYTES", least)
    monkeypatch.setattr(reorder, "_DIRTY_BYTES", 100)
    array = np.random.default_rng(3).integers(0, 10**6, shape, dtype=np.int32)
    found, source = in_c_order(array, 5 * 4 * elements, make_scratch)
    assert np.array_equal(found, array)
    assert source.elements == array.size, "each element is read once"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(5, 200_000), (200_000, 5), (1000, 1000), (5, 400, 500)])
def test_no_shape_is_read_by_the_element(
    make_scratch: Callable[[], ScratchFile], shape: tuple[int, ...]
) -> None:
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape, order="F")
    found, source = in_c_order(array, 5 * 4 * 10_000, make_scratch)
    assert np.array_equal(found, array)
    assert source.reads <= array.size / 90


def test_leaving_early_removes_the_scratch_file(
    tmp_path: Path, make_scratch: Callable[[], ScratchFile]
) -> None:
    array = np.zeros((20, 30), np.int32)
    slices = Reorder(array.dtype, 5 * 4 * 9, make_scratch).slices(Source(array), 0, array.shape)
    next(slices)
    assert len(list(tmp_path.iterdir())) == 1
    slices.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
