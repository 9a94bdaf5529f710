from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from overspill.tensors import tiles
from overspill.tensors.tiles import copy_in_tiles, is_crossed

LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "transposed": lambda a: a.reshape(7 * 9, -1).T,
    "3-D permuted": lambda a: a.reshape(7, 9, -1).transpose(2, 0, 1),
    "3-D, planes transposed": lambda a: a.reshape(7, 9, -1).transpose(0, 2, 1),
    "4-D reversed": lambda a: a.reshape(7, 9, 11, -1).transpose(3, 2, 1, 0),
    "4-D permuted": lambda a: a.reshape(7, 9, 11, -1).transpose(0, 3, 1, 2),
    "sliced": lambda a: a.reshape(7, 9, -1)[1:, ::2, 3::5].transpose(2, 1, 0),
    "one row": lambda a: a.reshape(1, -1).T,
    "one column": lambda a: a.reshape(-1, 1).T,
    "expanded": lambda a: np.broadcast_to(a.reshape(7 * 9, -1).T[:, None], (11 * 13, 3, 7 * 9)),
    "expanded last": lambda a: np.broadcast_to(a[:, None], (len(a), 3)),
    "a value everywhere": lambda a: np.broadcast_to(a[:1], (70, 80)),
    "contiguous": lambda a: a.reshape(7, -1),
    "0-d": lambda a: a[5:6].reshape(()),
    "empty": lambda a: a[:0].reshape(0, 5).T,
}
DTYPES = [np.bool_, np.uint8, np.int16, np.float32, np.complex64, np.float64, np.complex128]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_values_are_those_of_a_plain_copy(
    name: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that ragged tiles lie on both edges of every plane.
    monkeypatch.setattr(tiles, "_RUN_BYTES", 64)
    monkeypatch.setattr(tiles, "_TILE_BYTES", 700)
    monkeypatch.setattr(tiles, "_FEWEST_ELEMENTS", 2)
    raw = np.random.default_rng(3).integers(0, 2**31, 7 * 9 * 11 * 13)
    source = LAYOUTS[name]((raw % 251).astype(dtype))
    into = np.zeros(source.shape, dtype)
    copy_in_tiles(into, source)
    assert np.array_equal(into, source)


@pytest.mark.parametrize(
    ("name", "crossed"),
    [("transposed", True), ("3-D permuted", True), ("contiguous", False), ("one row", False)],
)
def test_what_is_crossed(name: str, crossed: bool) -> None:
    assert is_crossed(LAYOUTS[name](np.zeros(7 * 9 * 11 * 13))) == crossed


def test_a_line_is_read_whole_and_no_large_copy_is_made() -> None:
    source = np.arange(512 * 4096, dtype=np.int32).reshape(512, 4096).T
    into = np.empty(source.shape, source.dtype)
    tracemalloc.start()
    try:
        copy_in_tiles(into, source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(into, source)
    assert 64 << 10 < peak < 160 << 10  # a tile's buffer, and nothing of the source's 8 MiB
