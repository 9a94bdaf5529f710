"""Compiles what reading from parts uses, before threads and processes depend on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.cluster.layout import Layout
from overspill.kernels.parts import (
    find_hashed,
    find_ranges,
    place_picks,
    scatter_rows,
    sort_by_group,
)
from overspill.kernels.sample import count_each, pick_edges_apart
from overspill.kernels.words import WORDS


def warm_parts(layout: Layout) -> None:
    """Compile, or load from the cache, every kernel of parts.

    Some seconds with a cold cache, 0.2 s with a warm one, nothing the second time.
    """
    ids, parts, two = np.zeros(1, np.int64), np.zeros(1, np.uint32), np.zeros(2, np.int64)
    find_ranges(ids, np.ones(1, np.int64), parts)
    find_hashed(ids, 1, parts)
    sort_by_group(parts, ids, two, ids.copy())
    for word in WORDS:
        scatter_rows(read_only(np.zeros((1, 1), word)), ids, np.zeros((1, 1), word))
    extents, counts = np.array([[0, 1]], np.int64), np.ones(1, np.uint32)
    count_each(extents, 1, False, counts)
    pick_edges_apart(extents, 1, False, (np.uint64(0), ids), two, ids.copy())
    for edge in layout.manifest.edge_types.values():
        sources = np.zeros(1, edge.layouts["csc"]["indices"].dtype)
        picked = np.zeros(1, place_dtype(edge.count)), sources.copy()
        place_picks(
            (ids, 0),
            read_only(counts),
            ids,
            (read_only(picked[0]), read_only(picked[1])),
            (ids.copy(), ids.copy(), sources),
        )


def place_dtype(count: int) -> np.dtype[Any]:
    """The type in which places among so many edges are sent."""
    return np.dtype(np.int32 if count <= np.iinfo(np.int32).max else np.int64)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, read-only, as all that Ray hands over is: kernels know it as another type."""
    view = array.view()
    view.flags.writeable = False
    return view
