"""Any small graph, by any buffers, equals the plainest way."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import build_here, require_naive
from overspill.build.plan import BuildPlan
from overspill.errors import InputError

plans = st.builds(
    BuildPlan,
    chunk_edges=st.integers(1, 40),
    ranges=st.sampled_from([1, 2, 4, 16]),
    block_bytes=st.sampled_from([16, 32, 128]),
    spare_blocks=st.integers(1, 5),
    bucket_bytes=st.integers(1024, 5000),
    run_ids=st.integers(1, 20),
    copy_bytes=st.integers(1, 100),
)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Edges over few or many nodes, some with a hub that most edges enter."""
    nodes = draw(st.sampled_from([1, 2, 7, 100, 3000]))
    count = draw(st.integers(0, 150))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edges = rng.integers(0, nodes, (2, count))
    hub = draw(st.floats(0, 1))
    edges[1, rng.random(count) < hub] = draw(st.integers(0, nodes - 1))
    return edges, nodes


def build(directory: str, plan: BuildPlan, edges: np.ndarray, **options: Any) -> Any:
    np.save(f"{directory}/e.npy", edges)
    return build_here(
        Path(directory, "out"), plan=plan, edges=f"{directory}/e.npy", edge_axis=1, **options
    )


@given(graph=graphs(), plan=plans, given_count=st.booleans())
@settings(max_examples=120, deadline=None)
def test_dense_ids(graph: tuple[np.ndarray, int], plan: BuildPlan, given_count: bool) -> None:
    edges, nodes = graph
    with tempfile.TemporaryDirectory() as directory:
        if not given_count and edges.size:
            nodes = int(edges.max()) + 1
            require_naive(build(directory, plan, edges), *edges, nodes)
        else:
            require_naive(build(directory, plan, edges, num_nodes=nodes), *edges, nodes)


@given(
    graph=graphs(),
    plan=plans,
    scale=st.sampled_from([1, 1000, 2**40]),
    shift=st.integers(-(2**50), 2**50),
)
@settings(max_examples=80, deadline=None)
def test_remapped_ids(
    graph: tuple[np.ndarray, int], plan: BuildPlan, scale: int, shift: int
) -> None:
    raw = graph[0] * scale + shift
    ids, dense = np.unique(raw, return_inverse=True)
    with tempfile.TemporaryDirectory() as directory:
        if not raw.size:
            with pytest.raises(InputError, match="num_nodes"):
                build(directory, plan, raw, ids="remap")
            return
        built = build(directory, plan, raw, ids="remap")
    assert np.array_equal(built.ids, ids)
    require_naive(built, *dense.reshape(raw.shape), len(ids))


SHAPES = {
    "a star": (np.arange(1_000_000) % 5000, np.full(1_000_000, 3)),
    "all self loops": (np.arange(5000), np.arange(5000)),
    "one node, many loops": (np.zeros(3000, np.int64), np.zeros(3000, np.int64)),
    "every edge the same": (np.full(3000, 7), np.full(3000, 11)),
    "sorted by target": (np.arange(9000) % 97, np.arange(9000) // 2),
    "falling targets": (np.arange(9000) % 97, np.arange(9000)[::-1] // 2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_extreme_shapes(tmp_path: Path, name: str) -> None:
    sources, targets = SHAPES[name]
    plan = BuildPlan(
        chunk_edges=1 << 14,
        ranges=16,
        block_bytes=4096,
        spare_blocks=8,
        bucket_bytes=1 << 18,
        run_ids=1 << 15,
        copy_bytes=1 << 16,
    )
    nodes = int(max(sources.max(), targets.max())) + 1
    require_naive(build(str(tmp_path), plan, np.stack([sources, targets])), sources, targets, nodes)
    shutil.rmtree(tmp_path / "out")


def test_a_power_law_with_a_hub_of_a_fifth_of_the_edges(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    targets = np.minimum(rng.zipf(2.1, 300_000), 20_000) - 1
    targets[rng.random(len(targets)) < 0.2] = 12_345
    sources = rng.integers(0, 20_000, len(targets))
    plan = BuildPlan(
        chunk_edges=1 << 13,
        ranges=32,
        block_bytes=2048,
        spare_blocks=8,
        bucket_bytes=1 << 16,
        run_ids=1 << 13,
        copy_bytes=1 << 16,
    )
    built = build(str(tmp_path), plan, np.stack([sources, targets]), num_nodes=20_000)
    require_naive(built, sources, targets, 20_000)
