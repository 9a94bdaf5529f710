"""Nothing is compiled while rows are moved, once their kernels have been warmed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from confined import PythonResult

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from naive_rows import MadeRows, building, cut, output, random_rows
from overspill.build.moving.permute import (
    gather_rows, invert_permutation, scatter_rows, warm_row_kernels
)
from overspill.kernels import rows as kernels

width = int(sys.argv[2])
warm_row_kernels([width, 4, 8])
mine = [kernels.stage_rows, kernels.place_rows, kernels.take_rows]
before = [len(kernel.signatures) for kernel in mine]
assert all(before)
rows = random_rows("uint8", (60, width))
source = MadeRows(60, "uint8", (width,), lambda _: cut(rows, 7))
for writable in (True, False):
    rows.flags.writeable = writable
    positions = np.random.default_rng(1).permutation(60)
    positions.flags.writeable = writable
    for budget in (200, 1 << 20):
        with building(Path(sys.argv[1]) / f"{writable}{budget}") as directory:
            out = output(directory, "uint8", rows.shape, budget_bytes=budget)
            scatter_rows(iter([(positions, rows)]), out)
            for dtype in (np.int32, np.int64):
                name = f"{np.dtype(dtype)}.safetensors"
                out = output(directory, "uint8", rows.shape, budget_bytes=budget, path=name)
                index = positions.astype(dtype)
                index.flags.writeable = writable
                gather_rows(cut(index, 9), source, out)
                name = f"inverse-{name}"
                out = output(directory, f"{index.dtype}", (60,), budget_bytes=budget, path=name)
                invert_permutation(cut(index, 9), out)
assert [len(kernel.signatures) for kernel in mine] == before, mine
"""


@pytest.mark.parametrize("width", [1, 12, 24])
def test_nothing_is_compiled_on_the_way(
    tmp_path: object, run_python: Callable[..., PythonResult], width: int
) -> None:
    run_python(SCRIPT, arguments=[tmp_path, width]).check()
