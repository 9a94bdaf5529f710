"""The kernels that move rows, compiled or loaded before a build plans its memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from overspill.build.moving.row_blocks import word_dtype
from overspill.kernels.rows import place_rows, stage_rows, take_rows


def warm_row_kernels(widths: Iterable[int]) -> None:
    """Compile, or load from the cache, what rows of these sizes in bytes will use.

    Rows that cannot be written to, as Arrow's, and rows of which indices in 4 and 8 bytes are
    wanted are all foreseen.
    """
    for word in {word_dtype(width) for width in widths}:
        one, rows = np.zeros(1, np.int64), np.zeros((1, 1), word)
        read_only = rows.copy()
        read_only.flags.writeable = False
        data = np.zeros(64, np.uint8)
        views = data.view(np.uint32), data.view(word)
        geometry = 1, 16, 64 // word.itemsize, 8 // word.itemsize
        for given in (rows, read_only):
            # Its position stops it at once.
            tables = (one.copy(), one.copy(), one.copy(), one.copy(), one.copy())
            stage_rows((one, given, 0), (0, 0), views, geometry, tables, np.array([1, 0, 0]))
        place_rows(views, geometry, 0, np.zeros(1, np.uint8), rows)
        for index in (one, one.astype(np.int32)):
            take_rows(rows, index[:0], 0, rows)
