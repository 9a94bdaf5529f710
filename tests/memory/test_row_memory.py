"""Rows out of core hold what they are allowed to, however many there are, under a real limit."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from confined import PythonResult

pytestmark = [pytest.mark.memory, pytest.mark.requires("memory_cgroup")]
MIB = 1 << 20
BUDGET = 6 * MIB

# The positions are i * step modulo the count, an odd number of a power of two: a permutation.
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from naive_rows import MadeRows, building, output
from overspill.build.moving.permute import gather_rows, scatter_rows
from overspill.build.plan import BuildPlan
from overspill.build.moving.row_sources import ArrayRows
from overspill.linux.peaks import PeakSampler
from overspill.linux.processes import process_memory

place, way, width, counts, budget = Path(sys.argv[1]), sys.argv[2], *json.loads(sys.argv[3])
plan = BuildPlan(
    chunk_edges=1 << 14, ranges=128, block_bytes=32 << 10, spare_blocks=12, bucket_bytes=1 << 20,
    run_ids=1 << 16, copy_bytes=1 << 20,
)

def numbers(count, step):
    for start in range(0, count, step):
        yield np.arange(start, min(count, start + step))

def row_pieces(count, step):
    for ids in numbers(count, step):
        rows = np.empty((len(ids), width // 4), np.uint32)
        rows[:] = ids[:, None]
        yield rows

def move(count, directory, name):
    out = output(directory, "uint32", (count, width // 4), plan=plan, budget_bytes=budget,
                 path=f"{name}.safetensors")
    step = max(1, (256 << 10) // (width + 8))
    permuted = (ids * 12345 % count for ids in numbers(count, step))
    if way == "scatter":
        return scatter_rows(zip(permuted, row_pieces(count, step)), out).record
    source = MadeRows(count, "uint32", (width // 4,), lambda most: row_pieces(count, step))
    return gather_rows(permuted, source, out)

def require(directory, record, count):
    first = 0
    for rows in ArrayRows(directory.path / record.path, record).pieces(256 << 10):
        places, found = np.arange(first, first + len(rows)), rows[:, 0].astype(np.int64)
        assert np.all(rows == rows[:, :1])
        if way == "scatter":
            places, found = found, places
        assert np.array_equal(found, places * 12345 % count)
        first += len(rows)
    assert first == count

with building(place) as directory:
    move(counts[0], directory, "first")  # compiles the kernels, which takes memory for good
    peaks = {count: [] for count in counts}
    # A short move may be over before its peak has been sampled: the highest of three.
    for number, count in enumerate([counts[0]] * 3 + [counts[1]]):
        before = process_memory().anon_bytes
        with PeakSampler(children=False, interval_s=0.002) as sampler:
            record = move(count, directory, number)
        peaks[count].append(sampler.peaks.anon_bytes - before)
        require(directory, record, count)
print(json.dumps([max(found) for found in peaks.values()]))
"""


@pytest.mark.parametrize("way", ["scatter", "gather"])
@pytest.mark.parametrize(
    ("width", "counts"),
    [
        (4, [1 << 19, 1 << 22]),
        (256, [1 << 15, 1 << 17]),
        # Wider than a block: each row has its place in the scratch file.
        (128 << 10, [1 << 7, 1 << 8]),
    ],
)
def test_rows_cost_no_memory_as_they_grow(
    run_python: Callable[..., PythonResult],
    tmp_path: object,
    way: str,
    width: int,
    counts: list[int],
) -> None:
    """Payloads of 16 and 32 MiB, moved in 6."""
    result = run_python(
        SCRIPT,
        arguments=[tmp_path, way, json.dumps([width, counts, BUDGET])],
        limit_bytes=200 * MIB,
    ).check()
    assert result.kills == 0
    small, large = json.loads(result.stdout)
    # Beside the budget: the pieces of the caller, three of each kind, and threads.
    assert small > MIB // 2, "or nothing was sampled"
    assert max(small, large) <= BUDGET + 3 * MIB, (small, large)
    assert large <= 1.2 * small + 2 * MIB, (small, large)
