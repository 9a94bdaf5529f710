"""Arrays in files of their own, opened for random reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from overspill.graph.paged import PagedArray
from small_graphs import write_array


def opened(path: Path, rows: np.ndarray) -> PagedArray:
    record = write_array(path, rows)
    nbytes = rows.nbytes // max(len(rows), 1)
    return PagedArray(path, record, stride_bytes=nbytes, span_bytes=nbytes)


def random_rows(count: int, width: int, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 200, (count, width), np.uint8).astype(dtype)
