"""Measured peaks of a CSR beyond its inputs: at most what was planned, and within a hard limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capabilities import requires

pytestmark = [pytest.mark.memory, requires("memory_cgroup")]
MIB = 1 << 20
# torch, numba and what else a process needs, the kernels compiled.
BASE_BYTES = 400 * MIB

BUILD = """
import sys, torch
import overspill as ov
from overspill.graph.csr_plan import Shape, sizes_in_memory
from overspill.linux.peaks import PeakSampler

edges, nodes, place, limit = sys.argv[1:]
edges, nodes, limit = int(edges), int(nodes), limit if limit != "none" else None
torch.manual_seed(1)
row, col = torch.randint(nodes, (edges,)), torch.randint(nodes, (edges,))
row[::7] = 3  # a hub
for extra in (False, True):  # compiles
    ov.build_csr(row[:99], col[:99], nodes, num_cols=nodes, edge_ids=extra)
with ov.settings(spill_dir=place if limit else None):
    with PeakSampler(children=False, interval_s=0.01) as before:
        pass
    with PeakSampler(children=False, interval_s=0.01) as sampler:
        found = ov.build_csr(
            row, col, nodes, num_cols=nodes, memory_limit=limit, edge_ids=limit is not None
        )
    grown = sampler.peaks.anon_shmem_bytes - before.peaks.anon_shmem_bytes
    shape = Shape(edges=edges, num_rows=nodes, num_cols=nodes, column_bytes=4)
    planned = shape.output_bytes + sizes_in_memory(shape).scratch_bytes
    assert ov.is_disk_backed(found.indices) == (limit is not None)
    # Sums that any loss or mixing of edges would change.
    counts = torch.bincount(row, minlength=nodes)
    assert torch.equal(found.indptr.diff(), counts)
    assert int(found.indices.sum()) == int(col.sum())
    assert torch.equal(found.indices[: counts[0]].long(), col[row == 0].sort().values)
    if limit:
        assert torch.equal(col[found.edge_ids], found.indices.long())
        assert torch.equal(found.edge_ids[: counts[0]].sort().values, (row == 0).nonzero()[:, 0])
    print(grown, planned)
"""


def grown_and_planned(result: Any) -> tuple[int, int]:
    assert result.kills == 0
    grown, planned = (int(word) for word in result.stdout.split())
    return grown, planned


@pytest.mark.parametrize("edges", [5_000_000, 20_000_000])
def test_in_memory_it_takes_no_more_than_planned(
    edges: int, run_python: Callable[..., Any], tmp_path: Path
) -> None:
    env = {"OVERSPILL_DIR": "", "OVERSPILL_RUN": "", "OVERSPILL_MIN_BYTES": "4GiB"}
    array = 8 * edges
    most = BASE_BYTES + 2 * array + int(2.2 * array)
    arguments = (edges, edges // 10, tmp_path / "spill", "none")
    result = run_python(BUILD, limit_bytes=most, env=env, arguments=arguments).check()
    grown, planned = grown_and_planned(result)
    assert grown <= planned <= 2.2 * array
    assert grown > shape_bytes(edges)  # the sampler saw the outputs


def shape_bytes(edges: int) -> int:
    """The outputs alone."""
    return 4 * edges + 8 * edges // 10


def test_on_disk_it_takes_no_more_than_its_limit_however_many_edges(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    env = {"OVERSPILL_DIR": "", "OVERSPILL_RUN": "", "OVERSPILL_MIN_BYTES": "1MiB"}
    limit = 48 * MIB
    grown = []
    for edges in (3_000_000, 9_000_000):
        arguments = (edges, edges // 10, tmp_path / "spill", "48MiB")
        most = BASE_BYTES + 5 * 8 * edges + limit  # what checks the result included
        result = run_python(BUILD, limit_bytes=most, env=env, arguments=arguments).check()
        grown.append(grown_and_planned(result)[0])
    assert max(grown) <= limit
