"""Measured peak <= projected <= allowed, each in a fresh process under a real memory limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from confined import PythonResult, make_cold
from naive import naive_csc, read_built, require_csc, require_naive

pytestmark = [pytest.mark.memory, pytest.mark.requires("memory_cgroup", "mincore")]
MIB = 1 << 20

# The caller holds torch and numba, inside the same group, as a training script does.
SCRIPT = """
import json, sys
import torch
import overspill
overspill.build_dataset  # loads the graph room, numba included, as a call would
from overspill.build import describe_build, run_build
from overspill.linux.processes import process_memory

options = json.loads(sys.argv[1])
events = []
summary = run_build(describe_build(**options), on_event=events.append)
plan = next(event for event in events if event["event"] == "plan")
print(json.dumps({"caller": process_memory().anon_bytes, **plan, **summary}))
"""


def confined_build(
    run_python: Callable[..., PythonResult],
    inputs: list[Path],
    limit_mib: int | None,
    **options: Any,
) -> dict[str, Any]:
    make_cold(*inputs)
    options = {name: str(v) if isinstance(v, Path) else v for name, v in options.items()}
    limit = None if limit_mib is None else limit_mib * MIB
    result = run_python(SCRIPT, arguments=[json.dumps(options)], limit_bytes=limit).check()
    assert result.kills == 0
    found = json.loads(result.stdout)
    assert found["peak_anon_bytes"] <= found["projected_bytes"] <= found["allowed_bytes"]
    assert "torch" not in found["modules"]
    if limit is not None:
        assert result.peaks.anon_shmem_bytes < limit
    return dict(found)


def random_edges(path: Path, count: int, nodes: int, *, hub: float = 0.0) -> Path:
    rng = np.random.default_rng(count)
    array = np.lib.format.open_memmap(path, "w+", np.int64, (2, count))
    for start in range(0, count, 1 << 22):
        part = array[:, start : start + (1 << 22)]
        part[:] = rng.integers(0, nodes, part.shape)
        if hub:
            part[1] = np.minimum(rng.zipf(2.1, part.shape[1]), nodes) - 1
            part[1, rng.random(part.shape[1]) < hub] = nodes // 2
    array.flush()
    return path


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A directory for gigabytes: emptied at once, not when pytest gets to it."""
    place = tmp_path / "large"
    place.mkdir()
    yield place
    for path in sorted(place.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


@pytest.mark.slow
def test_fifty_million_edges_in_512_mib_equal_the_reference_at_the_peak_of_ten_million(
    run_python: Callable[..., PythonResult], large: Path
) -> None:
    peaks = {}
    for count in (10_000_000, 50_000_000):
        nodes = count // 10
        edges = random_edges(large / "e.npy", count, nodes)
        found = confined_build(
            run_python, [edges], 512, edges=edges, out=large / "out", num_nodes=nodes
        )
        assert found["caller"] > 150 * MIB, "the caller was meant to hold torch"
        peaks[count] = found["peak_anon_bytes"]
        require_scipy(large / "out", np.load(edges, mmap_mode="r"), nodes)
        for path in sorted((large / "out").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    assert peaks[50_000_000] <= 1.2 * peaks[10_000_000]
    assert peaks[10_000_000] <= 1.2 * peaks[50_000_000]


def require_scipy(out: Path, edges: np.ndarray, nodes: int) -> None:
    """Compare with scipy, outside of the group; duplicates are kept, so values are not summed."""
    built = read_built(out)
    ones = np.ones(edges.shape[1], np.int8)
    # coo -> csr by target keeps duplicates where tocsr would sum them: count and sort instead.
    reference = scipy.sparse.csr_matrix(
        (ones, built.indices, built.indptr), shape=(nodes, nodes), copy=False
    )
    wanted = scipy.sparse.coo_matrix((ones, (edges[1], edges[0])), shape=(nodes, nodes)).tocsr()
    reference.sum_duplicates()
    assert np.array_equal(reference.indptr, wanted.indptr)
    assert np.array_equal(reference.indices, wanted.indices)
    assert np.array_equal(reference.data, wanted.data)
    assert len(built.indices) == edges.shape[1]


@pytest.mark.slow
def test_a_hub_of_a_fifth_of_the_edges_in_a_tight_group(
    run_python: Callable[..., PythonResult], large: Path
) -> None:
    edges = random_edges(large / "e.npy", 8_000_000, 1_000_000, hub=0.2)
    confined_build(run_python, [edges], 400, edges=edges, out=large / "out", num_nodes=1_000_000)
    require_naive(read_built(large / "out"), *np.load(edges), 1_000_000)


@pytest.mark.slow
def test_nodes_cost_no_memory(run_python: Callable[..., PythonResult], large: Path) -> None:
    """60 million nodes, few edges: 480 MB of row pointers, more than the limit."""
    np.save(large / "e.npy", np.array([[5, 59_999_999, 3], [0, 5, 59_999_998]]))
    found = confined_build(
        run_python,
        [large / "e.npy"],
        400,
        edges=large / "e.npy",
        out=large / "out",
        num_nodes=60_000_000,
        edge_axis=1,
    )
    assert found["peak_anon_bytes"] < 200 * MIB
    require_naive(read_built(large / "out"), [5, 59_999_999, 3], [0, 5, 59_999_998], 60_000_000)


@pytest.mark.parametrize("kind", ["csv", "snap"])
def test_text_costs_no_memory_as_it_grows(
    run_python: Callable[..., PythonResult], large: Path, kind: str
) -> None:
    path = large / ("e.csv" if kind == "csv" else "e.txt")
    pairs = np.random.default_rng(1).integers(0, 100_000, (400_000, 2))
    apart = "," if kind == "csv" else "\t"
    text = "".join(f"{s}{apart}{t}\n" for s, t in pairs.tolist())
    indptr, indices = naive_csc(*pairs.T, int(pairs.max()) + 1)
    peaks = []
    for times in (3, 12):
        with path.open("w") as file:
            file.write("src,dst\n" if kind == "csv" else "# SNAP\n")
            for _ in range(times):
                file.write(text)
        out = large / f"out{times}"
        found = confined_build(
            run_python, [path], 400, edges=path, out=out, memory_limit="160MiB", ids="dense"
        )
        peaks.append(found["peak_anon_bytes"])
        # In each row every source as often as the text is repeated, side by side once sorted.
        require_csc(read_built(out), times * indptr, np.repeat(indices, times))
    assert peaks[1] <= 1.2 * peaks[0]


def test_remapped_ids_cost_no_memory(run_python: Callable[..., PythonResult], large: Path) -> None:
    """Four million distinct 64-bit ids, 32 MB, at a plan for small buffers."""
    peaks = []
    for count in (1_000_000, 4_000_000):
        ids = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, count)
        raw = np.stack([ids, np.roll(ids, 1)])
        np.save(large / "e.npy", raw)
        out = large / f"out{count}"
        found = confined_build(
            run_python,
            [large / "e.npy"],
            400,
            edges=large / "e.npy",
            out=out,
            ids="remap",
            memory_limit="140MiB",
        )
        peaks.append(found["peak_anon_bytes"])
        distinct, dense = np.unique(raw, return_inverse=True)
        built = read_built(out)
        assert np.array_equal(built.ids, distinct)
        require_naive(built, *dense.reshape(raw.shape), len(distinct))
    assert peaks[1] <= 1.2 * peaks[0]


@pytest.mark.parametrize("limit_mib", [130, 170, 250])
def test_the_limit_asked_for_is_kept(
    run_python: Callable[..., PythonResult], large: Path, limit_mib: int
) -> None:
    edges = random_edges(large / "e.npy", 3_000_000, 300_000)
    np.save(large / "x.npy", np.zeros((300_000, 100), np.float32))
    found = confined_build(
        run_python,
        [edges, large / "x.npy"],
        None,
        edges=edges,
        node_features={"x": str(large / "x.npy")},
        out=large / "out",
        memory_limit=f"{limit_mib}MiB",
    )
    assert found["allowed_bytes"] == limit_mib * MIB
    require_naive(read_built(large / "out"), *np.load(edges), 300_000)


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_larger_than_a_slice_keep_the_limit(
    run_python: Callable[..., PythonResult], large: Path, order: str
) -> None:
    """Rows of 64 MiB in big-endian order, which a build turns as well."""
    np.save(large / "e.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    array = np.arange(3 << 24, dtype=">f4").reshape(3, 1 << 24)
    np.save(large / "x.npy", np.asarray(array, order=order))
    found = confined_build(
        run_python,
        [large / "x.npy"],
        None,
        edges=large / "e.npy",
        edge_axis=1,
        node_features={"x": str(large / "x.npy")},
        out=large / "out",
        memory_limit="128MiB",
    )
    assert found["allowed_bytes"] == 128 * MIB
    assert np.array_equal(read_built(large / "out").arrays["x"], array)
