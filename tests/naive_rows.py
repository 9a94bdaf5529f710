"""The plainest scatter and gather, plans that put every mechanism to work, and random rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from naive import TINY
from overspill.build.directory import SCRATCH, BuildDirectory
from overspill.build.moving.row_output import RowOutput
from overspill.storage.arrays import map_array
from overspill.storage.records import STORED_DTYPES, FileRecord, numpy_view_dtype

# A few ranges and blocks of one page: dozens of rows take several levels.
NARROW = TINY


@contextmanager
def building(tmp_path: Path) -> Iterator[BuildDirectory]:
    """A build's directory whose scratch files must be gone at the end, come what may."""
    with BuildDirectory(tmp_path / "out") as directory:
        try:
            yield directory
        finally:
            scratch = directory.path / SCRATCH
            assert not scratch.exists() or not list(scratch.iterdir())
            assert not list(directory.path.rglob("*.partial"))


def output(directory: BuildDirectory, dtype: str, shape: tuple[int, ...], **more: Any) -> RowOutput:
    options = {"plan": NARROW, "path": "a.safetensors", "budget_bytes": None} | more
    return RowOutput(directory, dtype=dtype, shape=shape, **options)


def random_rows(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random bits, or truth values."""
    kind, count = numpy_view_dtype(dtype), int(np.prod(shape))
    nbytes = count * STORED_DTYPES[dtype][1]
    bits = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
    return (bits & 1 if dtype == "bool" else bits).view(kind).reshape(shape)


@dataclass(frozen=True)
class MadeRows:
    """See `row_sources.RowSource`: rows that a function makes, given the size that is wanted."""

    count: int
    dtype: str
    row_shape: tuple[int, ...]
    pieces: Callable[[int], Iterator[np.ndarray]]


def cut(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(array), size):
        yield array[start : start + size]


def cut_both(
    positions: np.ndarray, rows: np.ndarray, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """In three buffers that are used in turn, as readers do."""
    held: list[tuple[np.ndarray, np.ndarray]] = [(positions[:0], rows[:0])] * 3
    for number, start in enumerate(range(0, len(positions), size)):
        for old in held[number % 3]:
            old[...] = 1  # whoever still needed it would see that
        part = slice(start, start + size)
        held[number % 3] = positions[part].copy(), rows[part].copy()
        yield held[number % 3]


def content(directory: BuildDirectory, record: FileRecord) -> np.ndarray:
    """What was written, once its digest agrees."""
    mapping, array = map_array(directory.path / record.path, record)
    found = array.copy()
    del mapping, array
    assert hashlib.sha256(found.tobytes()).hexdigest() == record.sha256
    return found


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether shape, dtype and every bit agree, NaNs too."""
    return (
        found.shape == wanted.shape
        and found.dtype == wanted.dtype
        and found.tobytes() == wanted.tobytes()
    )
