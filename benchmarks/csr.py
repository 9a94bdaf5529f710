"""Compressed sparse rows from random edges in memory: a radix partition beside peers that sort.

Everybody has one thread. The limit is one copy of the edges into memory that is there already.
What a contender takes at its peak is measured in a run of its own, outside the clock: a thread that
samples would be measured too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import overspill as ov
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures, SpeedTarget
from benchmarks.peers import peer
from overspill.linux.peaks import PeakSampler

DEFAULT_BYTES = 480 << 20
OURS, UNSORTED = "overspill", "overspill, input order"
SORT = "torch.sort(stable)"
SCIPY = "scipy, coo to csr"
PYG = "PyG's to_csc"
LIMIT = "the edges, copied once"
PEAK = "peak in int64 edge arrays"
_EDGE_BYTES = 16
# The mean degree of many a graph that people sample from.
_EDGES_A_NODE = 10
_SAMPLE_SECONDS = 0.002
AT_LEAST, AT_MOST = 2.5, 2.2

Act = Callable[[], Any]


@contextmanager
def opened(_directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case, with its edges in memory.

    Args:
        nbytes: Size of the edges, 16 bytes each; 480 MiB by default.

    Yields:
        The case.
    """
    count = max(1, (nbytes or DEFAULT_BYTES) // _EDGE_BYTES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = torch.Generator().manual_seed(1)
        nodes = max(1, count // _EDGES_A_NODE)
        yield [_case(torch.randint(nodes, (2, count), generator=made), nodes)]
    finally:
        torch.set_num_threads(threads)


def _case(edges: torch.Tensor, nodes: int) -> Case:
    row, col = edges
    for sort in (True, False):  # compiles
        ov.build_csr(row[:1000], col[:1000], nodes, num_cols=nodes, sort_within_row=sort)
    peers = {SCIPY: _scipy(row, col, nodes), PYG: _pyg(edges, nodes)}
    copied = torch.zeros_like(edges)
    acts: dict[str, tuple[Act, str]] = {
        OURS: (lambda: ov.build_csr(row, col, nodes, num_cols=nodes), "rows sorted by column"),
        UNSORTED: (
            lambda: ov.build_csr(row, col, nodes, num_cols=nodes, sort_within_row=False),
            "rows in the order of the input, as a stable sort gives them",
        ),
        SORT: (lambda: _by_sorting(row, col, nodes), "by row, then a gather"),
        **{
            name: (act, "sums duplicates, sorts by column" if name == SCIPY else "")
            for name, act in peers.items()
            if act is not None
        },
    }
    measured = [_contender(name, act, edges, note) for name, (act, note) in acts.items()]
    limit = Contender(name=LIMIT, act=lambda _: copied.copy_(edges), nbytes=edges.nbytes)
    return Case(
        name=f"CSR of {len(row) / 1e6:.3g} million edges, {nodes / 1e6:.3g} million rows",
        contenders=[*measured, limit],
        baseline=OURS,
        limit=LIMIT,
        targets=[
            *(
                SpeedTarget(of=ours, against=name, at_least=AT_LEAST)
                for ours in (OURS, UNSORTED)
                for name in (SORT, SCIPY)
                if name in acts
            ),
            *(Bound(of=ours, figure=PEAK, at_most=AT_MOST) for ours in (OURS, UNSORTED)),
        ],
        absent=[name for name, act in peers.items() if act is None],
    )


def _contender(name: str, act: Act, edges: torch.Tensor, note: str) -> Contender:
    known: dict[str, float] = {}

    def measure(_result: object) -> Figures:
        if not known:  # the same work takes the same each time
            known[PEAK] = _peak_bytes(act) / (8 * edges.shape[1])
        return known

    return Contender(name=name, act=lambda _: act(), after=measure, nbytes=edges.nbytes, note=note)


def _peak_bytes(act: Act) -> int:
    """What an act takes at its peak beyond what was there before, its result included."""
    with PeakSampler(children=False, interval_s=_SAMPLE_SECONDS) as before:
        pass
    with PeakSampler(children=False, interval_s=_SAMPLE_SECONDS) as sampler:
        act()
    return sampler.peaks.anon_shmem_bytes - before.peaks.anon_shmem_bytes


def _by_sorting(row: torch.Tensor, col: torch.Tensor, nodes: int) -> tuple[torch.Tensor, ...]:
    ordered, order = torch.sort(row, stable=True)
    return torch._convert_indices_from_coo_to_csr(ordered, nodes), col[order]


def _scipy(row: torch.Tensor, col: torch.Tensor, nodes: int) -> Act | None:
    sparse = peer("scipy.sparse")
    if sparse is None:
        return None
    # One byte a value: it cannot do without.
    values = np.ones(len(row), np.int8)
    given = (values, (row.numpy(), col.numpy()))
    return lambda: sparse.coo_matrix(given, shape=(nodes, nodes)).tocsr()


def _pyg(edges: torch.Tensor, nodes: int) -> Act | None:
    geometric = peer("torch_geometric.data")
    sampling = peer("torch_geometric.sampler.utils")
    if geometric is None or sampling is None:
        return None
    # Its rows are columns: the other way round it arranges the same.
    graph = geometric.Data(edge_index=edges.flip(0), num_nodes=nodes)
    return lambda: sampling.to_csc(graph)


if __name__ == "__main__":
    sys.exit(main([opened]))
