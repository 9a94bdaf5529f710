"""The plainest way to build what a build must give, and how tests run one in their own process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overspill.build.construct import BuildSummary, construct
from overspill.build.describe import describe_build
from overspill.build.inputs import Inputs
from overspill.build.plan import BuildPlan
from overspill.build.spec import EDGE_TYPE, NODE_TYPE
from overspill.storage.arrays import map_array
from overspill.storage.checksums import verify_checksums
from overspill.storage.index_bounds import bounds_of
from overspill.storage.manifest import Manifest, read_manifest

# So small that every mechanism is at work on a few dozen edges: several chunks, ranges that grow,
# full blocks, second levels, long rows, several runs and merges.
TINY = BuildPlan(
    chunk_edges=7,
    ranges=4,
    block_bytes=64,
    spare_blocks=2,
    bucket_bytes=2048,
    run_ids=8,
    copy_bytes=64,
)


@dataclass(frozen=True)
class Built:
    """A dataset's content, copied out of its mappings."""

    manifest: Manifest
    indptr: np.ndarray
    indices: np.ndarray
    ids: np.ndarray | None
    arrays: dict[str, np.ndarray]
    summary: BuildSummary | None = None


def naive_csc(
    sources: np.ndarray, targets: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort all edges by target, then source; count."""
    order = np.lexsort((sources, targets))
    counts = np.bincount(targets.astype(np.int64), minlength=num_nodes)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), sources[order]


def build_here(out: Path, *, plan: BuildPlan = TINY, **options: Any) -> Built:
    """Build in this process with the sizes of `plan`, and read the result."""
    spec = describe_build(out, **options)
    summary = construct(spec, plan, inputs=Inputs.open(spec), send=lambda _: None)
    return read_built(out, summary)


def build_spec_here(out: Path, *, plan: BuildPlan = TINY, **options: Any) -> BuildSummary:
    """Build in this process with the sizes of `plan`; what was built is read by the test."""
    spec = describe_build(out, **options)
    return construct(spec, plan, inputs=Inputs.open(spec), send=lambda _: None)


def read_built(out: Path, summary: BuildSummary | None = None) -> Built:
    manifest = read_manifest(out)
    assert verify_checksums(out, manifest, bounds=bounds_of(manifest)) == []
    listed = {record.path for record in manifest.files()} | {"manifest.json"}
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == listed, "a build left files that its manifest does not name"
    node, edge = manifest.node_types[NODE_TYPE], manifest.edge_types[EDGE_TYPE]

    def content(record: Any) -> np.ndarray:
        return map_array(out / record.path, record)[1].copy()

    return Built(
        manifest,
        content(edge.layouts["csc"]["indptr"]),
        content(edge.layouts["csc"]["indices"]),
        None if node.ids is None else content(node.ids),
        {name: content(record) for name, record in node.arrays.items()},
        summary,
    )


def require_naive(built: Built, sources: Any, targets: Any, num_nodes: int) -> None:
    """Assert that a build gave what the plainest way gives."""
    require_csc(
        built, *naive_csc(np.asarray(sources, np.int64), np.asarray(targets, np.int64), num_nodes)
    )


def require_csc(built: Built, indptr: np.ndarray, indices: np.ndarray) -> None:
    """Assert that a build gave these rows, in these types, and tells their numbers."""
    assert built.indptr.dtype == np.int64 and built.indices.dtype == np.int32
    assert np.array_equal(built.indptr, indptr)
    assert np.array_equal(built.indices, indices)
    counts = (
        built.manifest.edge_types[EDGE_TYPE].count,
        built.manifest.node_types[NODE_TYPE].count,
    )
    assert counts == (len(indices), len(indptr) - 1)
