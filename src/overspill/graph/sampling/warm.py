"""Compiles the kernels of a way of sampling before anything depends on their being ready."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from overspill.graph.sampling.spec import Described, SamplingSpec
from overspill.kernels.relabel import (
    enter_seeds,
    first_places,
    keep_known,
    move_entries,
    relabel,
    relabel_in_trees,
)
from overspill.kernels.sample import count_picks, pick_edges
from overspill.kernels.sample_ranked import (
    TALLY,
    cut_group,
    draw_sorted,
    end_draws,
    find_draws,
    first_bad_weight,
    keep_allowed,
    list_candidates,
    pick_ranked,
    rank_piece,
    redraw,
    row_state,
    settle_row,
    sum_piece,
)

_KEY = np.uint64(0)
_ONE = np.zeros(1, np.int64)
_EXTENTS = np.array([[0, 1]], np.int64)


def warm_sampling(dataset: Described, spec: SamplingSpec) -> None:
    """Compile, or load from the cache, every kernel that sampling by a specification uses.

    Args:
        dataset: The dataset, which has the edge types of the specification.
        spec: How it will be sampled.
    """
    edges = dataset.manifest.edge_types
    for key in spec.num_neighbors:
        dtype = edges[key].layouts["csc"]["indices"].dtype
        counts = [dataset.manifest.node_types[name].count for name in (key[0], key[2])]
        tables = {np.int32 if count <= 2**31 - 1 else np.int64 for count in counts}
        for table in {np.int64} if spec.in_trees else tables:
            _warm_relabel(np.full((4, 2), -1, table), np.zeros(1, dtype), spec)
    count_picks(_EXTENTS, 1, False, 1)
    pick_edges(_EXTENTS, 1, False, (_KEY, 0), np.zeros(2, np.int64), (_ONE, _ONE.copy()))
    if spec.induced or spec.weight is not None or spec.time is not None:
        cut_group(_EXTENTS, 0, 1, False, 1)
        list_candidates(_EXTENTS, -1, _ONE)
    if spec.weight is not None or spec.time is not None:
        _warm_ranked()


def _warm_relabel(
    table: npt.NDArray[np.int64], values: npt.NDArray[np.int64], spec: SamplingSpec
) -> None:
    ids, trees = np.zeros(2, np.int64), np.zeros(2, np.int32)
    enter_seeds(table, 62, _ONE)
    move_entries(table.copy(), table, 62)
    if spec.in_trees:
        edges = (values, _ONE, trees)
        relabel_in_trees(table, 62, edges, _ONE.copy(), (ids, trees), (1, 1))
    else:
        relabel(table, 62, values, _ONE.copy(), ids, (0, 1, 1))
    if spec.induced:
        first_places(table, 62, _ONE, 0, np.ones(1, np.bool_))
        none = np.empty(0, np.int64)
        out = (ids, ids.copy(), ids.copy())
        keep_known(table, 62, (_EXTENTS, 0, trees, 1), (values, none, none), out, 0)


def _warm_ranked() -> None:
    weights, tally, sums = np.ones(1), np.zeros(TALLY, np.int64), np.zeros(2)
    held, ends = (weights, _ONE), (_ONE.copy(), _ONE.copy())
    first_bad_weight(weights)
    state = np.uint64(row_state(_KEY, 0))
    keep_allowed((0, 1, 0, 0), 0, held, ends, 0)
    rank_piece((0, 1, 0), state, (1, False, 0), held, ends, tally)
    settle_row(ends, 1, True, tally)
    redraw(state, 1, 1, _ONE, _ONE.copy())
    sum_piece((0, 1, 0), 0, held, sums)
    draw_sorted(state, sums, np.zeros(1))
    tally[:] = 0
    find_draws((0, 1, 0), 0, held, (sums, np.zeros(1)), tally, _ONE.copy())
    end_draws(tally, _ONE.copy())
    rule = (1, True, False, -1, _ONE)
    pick_ranked(_EXTENTS, rule, (_KEY, 0, 0), held, (*ends, np.zeros(1)), ends)
