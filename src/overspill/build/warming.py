"""The kernels that a build will use, compiled or loaded before it plans its memory.

What is not foreseen is 8-byte ids of a graph whose number of nodes nobody told, and of edges beyond
2**31 - 1 of them.
"""

from __future__ import annotations

import importlib

import numpy as np

from overspill.build.edge_types import degree_options, row_options
from overspill.build.ids.text_warming import warm_text_kernels
from overspill.build.inputs import Inputs
from overspill.build.moving.row_warming import warm_row_kernels
from overspill.build.passes.buckets import RowOptions, warm_sorting
from overspill.build.passes.partition import warm_partition
from overspill.build.plan import BuildPlan
from overspill.build.readers.snap_edges import SnapEdges
from overspill.build.spec import BuildSpec
from overspill.kernels.text import parse_edges
from overspill.kernels.translate import rank_ids

_WIDTHS = (1, 4, 8)  # one of each kind of rows that differ to the kernels


def warm_kernels(spec: BuildSpec, inputs: Inputs) -> None:
    """Compile, or load from the cache, what a build will use: its memory counts as the base.

    Args:
        spec: The build.
        inputs: Its inputs; where some are still to be sent, more is foreseen.
    """
    counts = [node.count or 0 for node in inputs.nodes.values()]
    wide = max(counts, default=0) > BuildPlan.narrow_nodes
    for options in _options(spec):
        warm_partition(edge_ids=options.edge_ids, wide=wide)
        warm_sorting(options, wide=wide)
    kinds = {node.kind for node in inputs.nodes.values()}
    if spec.streams:
        kinds |= {"remap"}
    if set(spec.streams) - {"npy"}:
        # What reads tables takes memory by itself, and may find text.
        importlib.import_module("overspill.build.readers.arrow_edges")
        kinds |= {"text"}
    if "remap" in kinds:
        one = np.zeros(1, np.int64)
        rank_ids(one, one, one, one, 1, one.copy())
    if "text" in kinds:
        warm_text_kernels()
    warm_row_kernels(_widths(spec, inputs))
    readers = [reader for edge in inputs.edges for reader in edge.readers]
    if any(isinstance(reader, SnapEdges) for reader in readers):
        one = np.zeros(1, np.int64)
        parse_edges(np.frombuffer(b"\n", np.uint8), one, one, np.zeros(5, np.int64))


def _options(spec: BuildSpec) -> set[RowOptions]:
    """How the rows of each edge type are going to be built."""
    found = {row_options(spec, edge) for edge in spec.edges}
    if spec.order == "degree":
        found.add(degree_options(spec))
    if any(edge.arrays for edge in spec.edges):
        found.add(RowOptions())  # pairs of places, of which the partition alone is used
    return found


def _widths(spec: BuildSpec, inputs: Inputs) -> set[int]:
    """Bytes of the rows that are moved out of core."""
    if spec.streams:
        return set(_WIDTHS)
    widths = {array.row_bytes for edge in inputs.edges for array in edge.arrays}
    moved = [
        array
        for node in inputs.nodes.values()
        for array in node.arrays
        if array.keyed or spec.order == "degree"
    ]
    widths |= {array.row_bytes for array in moved}
    return widths | ({4, 8} if spec.order == "degree" else set())
