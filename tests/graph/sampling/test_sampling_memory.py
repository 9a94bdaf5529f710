"""What a sampler holds at its peak, against what its module says: a loader plans by it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import SamplingSpec
from overspill.graph.sampling.warm import warm_sampling
from overspill.graph.streams import stream_key
from typed_graphs import write_typed

MIB = 1 << 20
KEY = stream_key(1)
TO = ("n", "to", "n")
NODES, DEGREE, SEEDS = 600_000, 6, 15_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(6)
    targets = np.repeat(np.arange(NODES), DEGREE)
    arrays = {"w": rng.random(len(targets)), "t": rng.integers(0, 9, len(targets))}
    made = tmp_path_factory.mktemp("graph")
    sources = rng.integers(0, NODES, len(targets))
    write_typed(made, {"n": (NODES, {})}, {TO: (sources, targets, arrays)})
    return made


@pytest.mark.parametrize(
    ("options", "edge", "largest", "node", "fixed"),
    [
        ({}, 20, 5, 86, 6 * MIB),
        ({"edge_places": True}, 30, 5, 86, 6 * MIB),
        ({"disjoint": True, "edge_places": True}, 30, 5, 143, 6 * MIB),
        ({"weight": "w", "edge_places": True}, 30, 13, 86, 22 * MIB),
        ({"time": "t", "weight": "w", "replace": True}, 20, 13, 153, 22 * MIB),
    ],
)
def test_a_sampler_takes_no_more_than_it_says(
    path: Path, options: dict[str, object], edge: int, largest: int, node: int, fixed: int
) -> None:
    dataset = open_dataset(path)
    spec = SamplingSpec(num_neighbors={TO: (5, 4, 3)}, **options)  # type: ignore[arg-type]
    warm_sampling(dataset, spec)
    times = np.full(SEEDS, 8) if spec.time else None
    # Once, so that what opening and the first read make is there.
    dataset.sampler(spec).sample(
        np.arange(9), key=KEY, seed_times=None if times is None else times[:9]
    )
    tracemalloc.start()
    try:
        sampler = dataset.sampler(spec)
        sampled = sampler.sample(np.arange(SEEDS), key=KEY, seed_times=times)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (per_hop,) = sampled.edges_per_hop.values()
    reads = 32 * max(per_hop) + 8 * MIB  # what a PagedArray takes meanwhile
    parts = edge * sum(per_hop) + largest * max(per_hop) + node * sampled.num_nodes()
    assert sum(per_hop) > 650_000 and peak <= parts + fixed + reads
    # Most buffers have just grown, and not all at once: twice the bytes of an edge would show.
    assert 0.6 * parts < peak <= 0.87 * parts


def test_induced_edges_take_no_more_than_the_module_says(path: Path) -> None:
    dataset = open_dataset(path)
    spec = SamplingSpec(num_neighbors={TO: (5, 4, 3)}, induced=True, edge_places=True)
    warm_sampling(dataset, spec)
    dataset.sampler(spec).sample(np.arange(9), key=KEY)
    tracemalloc.start()
    try:
        sampler = dataset.sampler(spec)
        sampled = sampler.sample(np.arange(SEEDS), key=KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    followed = sum(hop.count for hops in sampler._found.values() for hop in hops)
    allowed = 38 * (sampled.num_edges() + followed) + 5 * followed + 86 * sampled.num_nodes()
    assert peak <= allowed + 32 * sampled.num_nodes() + 30 * MIB
