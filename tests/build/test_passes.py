"""The two passes together: whatever the options and the buffers, the plainest result."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overspill.build.directory import BuildDirectory
from overspill.build.passes.assemble import RowAssembler, RowFiles, RowOptions
from overspill.build.passes.partition import RangePartitioner
from overspill.build.plan import BuildPlan
from overspill.storage.arrays import map_array

OPTIONS = [
    RowOptions(edge_ids, sort, duplicates)
    for edge_ids in (False, True)
    for sort in (False, True)
    for duplicates in ("keep", "drop", "count")
]


def naive_rows(
    edges: np.ndarray, num_rows: int, options: RowOptions
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(indptr, sources, edge ids, counts), a row at a time."""
    rows: list[list[list[int]]] = [[] for _ in range(num_rows)]
    for source, target, edge in edges.T.tolist():
        rows[target].append([source, edge, 1])
    for row in rows:
        if options.sort_within_row:
            row.sort()
        if options.drop:
            first: dict[int, list[int]] = {}
            for held in row:
                if held[0] in first:
                    first[held[0]][2] += 1
                else:
                    first[held[0]] = held
            row[:] = first.values()
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    flat = np.array([held for row in rows for held in row], np.int64).reshape(-1, 3)
    return indptr, flat[:, 0], flat[:, 1], flat[:, 2]


def assemble(
    path: Path,
    plan: BuildPlan,
    edges: np.ndarray,
    shape: tuple[int, int],
    options: RowOptions,
    *,
    known: bool = True,
    hubs: Any = "none",
    chunk: int = 13,
) -> tuple[RowFiles, dict[str, np.ndarray]]:
    """Both passes over (3, n) edges; the content of every file, copied."""
    num_rows, num_columns = shape
    progress: list[int] = []
    with BuildDirectory(path) as directory:
        partitioner = RangePartitioner(
            directory.file("scratch/edges.spool"),
            plan,
            **({"id_limits": (num_columns, num_rows), "last_target": num_rows} if known else {}),
            edge_ids=options.edge_ids,
            hubs=hubs,
        )
        with partitioner:
            for start in range(0, edges.shape[1], chunk):
                some = edges[:, start : start + chunk]
                given = some if options.edge_ids else some[:2]
                assert partitioner.add(*given) == some.shape[1]
            blocks = partitioner.finish()
            assert blocks.edges == edges.shape[1]
            assembler = RowAssembler(
                directory,
                plan,
                num_rows=num_rows,
                num_columns=num_columns,
                num_edges=int(edges[2].max(initial=-1)) + 1,
                options=options,
                on_progress=progress.append,
            )
            files = assembler.write(blocks, prefix="a/rows")
        assert [held.name for held in (path / "scratch").iterdir()] == []
        assert progress == sorted(progress) and (progress or [0])[-1] == edges.shape[1]
        found = {}
        for name in ("indptr", "indices", "edge_ids", "counts"):
            record = getattr(files, name)
            if record is not None:
                assert record.path == f"a/rows.{name}.safetensors"
                found[name] = map_array(path / record.path, record)[1].copy()
    return files, found


def require_naive_rows(
    made: tuple[RowFiles, dict[str, np.ndarray]],
    edges: np.ndarray,
    num_rows: int,
    options: RowOptions,
) -> None:
    files, found = made
    indptr, sources, edge_ids, counts = naive_rows(edges, num_rows, options)
    assert np.array_equal(found["indptr"], indptr)
    assert np.array_equal(found["indices"], sources)
    assert files.edges == len(sources)
    assert ("edge_ids" in found, "counts" in found) == (
        options.edge_ids,
        options.duplicates == "count",
    )
    if options.edge_ids:
        assert np.array_equal(found["edge_ids"], edge_ids)
    if options.duplicates == "count":
        assert np.array_equal(found["counts"], counts) and found["counts"].dtype == np.int64
    distinct = len(np.unique(edges[:2], axis=1).T)
    told = options.drop or options.sort_within_row
    assert files.duplicates == (edges.shape[1] - distinct if told else None)


def plan_of(bucket_bytes: int, block_bytes: int, **sizes: Any) -> BuildPlan:
    """A bucket holds some blocks, whatever their ids."""
    return small_plan(
        bucket_bytes=max(bucket_bytes, 8 * block_bytes), block_bytes=block_bytes, **sizes
    )


plans = st.builds(
    plan_of,
    chunk_edges=st.integers(1, 40),
    ranges=st.sampled_from([1, 2, 4, 16]),
    block_bytes=st.sampled_from([16, 32, 128, 4096]),
    spare_blocks=st.integers(1, 5),
    bucket_bytes=st.sampled_from([4096, 6000, 40_000]),
    run_ids=st.integers(1, 20),
    threads=st.integers(1, 3),
    narrow_nodes=st.sampled_from([2**31 - 1, 20, 2]),
)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, int]]:
    """(3, n) edges between few or many nodes, some with a hub, some with many equal edges."""
    num_rows, num_columns = (draw(st.sampled_from([1, 2, 7, 100, 3000])) for _ in range(2))
    count = draw(st.sampled_from([0, 1, 30, 300, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edges = np.stack(
        [rng.integers(0, num_columns, count), rng.integers(0, num_rows, count), np.arange(count)]
    )
    edges[1, rng.random(count) < draw(st.floats(0, 1))] = draw(st.integers(0, num_rows - 1))
    edges[0, rng.random(count) < draw(st.floats(0, 1))] = draw(st.integers(0, num_columns - 1))
    if draw(st.booleans()):
        edges = edges[:, np.argsort(edges[1], kind="stable")]
        edges[2] = np.arange(count)
    return edges, (num_rows, num_columns)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(
    graph=graphs(), plan=plans, known=st.booleans(), own=st.booleans(), chunk=st.integers(1, 300)
)
@settings(max_examples=10, deadline=None)
def test_any_graph_by_any_buffers(
    options: RowOptions,
    graph: tuple[np.ndarray, tuple[int, int]],
    plan: BuildPlan,
    known: bool,
    own: bool,
    chunk: int,
) -> None:
    edges, shape = graph
    hubs = "none" if not own else "by source" if options.sort_within_row else "whole"
    with tempfile.TemporaryDirectory() as directory:
        made = assemble(
            Path(directory, "out"), plan, edges, shape, options, known=known, hubs=hubs, chunk=chunk
        )
        require_naive_rows(made, edges, shape[0], options)


def small_plan(**sizes: Any) -> BuildPlan:
    made: dict[str, Any] = {
        "chunk_edges": 64,
        "ranges": 4,
        "block_bytes": 64,
        "spare_blocks": 3,
        "bucket_bytes": 4096,
        "run_ids": 40,
        "copy_bytes": 64,
    }
    return BuildPlan(**(made | sizes))


EQUAL = np.stack([np.full(900, 3), np.full(900, 5), np.arange(900)[::-1]])
LONG = np.stack([np.arange(1200) * 7 % 900, np.full(1200, 5), np.arange(1200)])


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("edges", [EQUAL, LONG], ids=["one pair", "one row"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_no_bucket_holds(
    tmp_path: Path, options: RowOptions, edges: np.ndarray, own: bool
) -> None:
    hubs = "none" if not own else "by source" if options.sort_within_row else "whole"
    made = assemble(tmp_path / "out", small_plan(), edges, (9, 900), options, hubs=hubs, chunk=300)
    require_naive_rows(made, edges, 9, options)


def test_wide_indices_and_narrow_ones_are_told_by_their_limits(tmp_path: Path) -> None:
    edges = np.array([[2, 1], [1, 0], [1, 0]])
    for name, narrow, wanted in (("a", 5, "int32"), ("b", 4, "int64")):
        plan = small_plan(narrow_nodes=narrow)
        files, found = assemble(tmp_path / name, plan, edges, (9, 5), RowOptions(True))
        assert (files.indices.dtype, found["indices"].tolist()) == (wanted, [1, 2])
        assert files.edge_ids is not None and files.edge_ids.dtype == "int32"


def test_a_spool_for_other_options_is_refused(tmp_path: Path) -> None:
    edges = np.zeros((3, 4), np.int64)
    for hubs, options in (("by source", RowOptions(sort_within_row=False)),):
        with pytest.raises(ValueError, match="sorted"):
            assemble(tmp_path / "out", small_plan(), edges, (1, 1), options, hubs=hubs)
    assert not (tmp_path / "out").exists()
