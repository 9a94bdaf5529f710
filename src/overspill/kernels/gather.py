"""Copy items from random places of an array, and find the pages that they lie on.

Bottleneck: one cache or TLB miss an item; copies run in the widest words that the items allow.
An item starts at ``id * stride`` and may reach into the next one (``span > stride``): two
consecutive entries of an indptr are one item.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel


@kernel
def first_outside(ids: npt.NDArray[np.int64], count: int) -> tuple[int, int]:
    """Find ids outside 0 .. count - 1.

    Returns:
        How many there are, and the position of the first (-1 where there is none).
    """
    outside = 0
    first = -1
    for i in range(ids.size):
        if ids[i] < 0 or ids[i] >= count:
            if outside == 0:
                first = i
            outside += 1
    return outside, first


@kernel
def copy_items(
    words: npt.NDArray[Any],
    ids: npt.NDArray[np.int64],
    stride: int,
    out: npt.NDArray[Any],
) -> None:
    """Copy items in the order they are asked for.

    Args:
        words: The payload, one-dimensional.
        ids: int64 (items,), within the payload.
        stride: Words from one item to the next.
        out: (items, span) words, filled.
    """
    span = out.shape[1]
    if span == 1:
        for i in range(ids.size):
            out[i, 0] = words[ids[i] * stride]
    elif span == 2:
        for i in range(ids.size):
            out[i, 0] = words[ids[i] * stride]
            out[i, 1] = words[ids[i] * stride + 1]
    else:
        for i in range(ids.size):
            start = ids[i] * stride
            # Views, because an index that could be negative would keep the loop from vectorising.
            source, target = words[start : start + span], out[i]
            for j in range(span):
                target[j] = source[j]


@kernel
def copy_ordered_items(
    words: npt.NDArray[Any],
    ids: npt.NDArray[np.int64],
    stride: int,
    order: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
) -> None:
    """Copy some of the items, each to its own place.

    Args:
        words: As in `copy_items`.
        ids: As in `copy_items`, all of them.
        stride: As in `copy_items`.
        order: int64 (chosen,), which of them to copy, in this order.
        out: As in `copy_items`, for all of them.
    """
    span = out.shape[1]
    for k in range(order.size):
        i = order[k]
        start = ids[i] * stride
        source, target = words[start : start + span], out[i]
        for j in range(span):
            target[j] = source[j]


@kernel
def page_ranges(
    ids: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    layout: tuple[int, int, int, int],
    firsts: npt.NDArray[np.int64],
    page_counts: npt.NDArray[np.int64],
) -> int:
    """The distinct pages that items lie on, as sorted, disjoint ranges; neighbours are merged.

    Args:
        ids: int64, all items.
        order: int64 (chosen,), which of them, by increasing id.
        layout: Bytes before the payload, from one item to the next, of an item, and of a page.
        firsts: Filled: first page of each range; room for one entry a chosen item.
        page_counts: Filled: pages of each range; as large.

    Returns:
        The number of ranges.
    """
    offset, stride, span, page = layout
    ranges = 0
    end = -1
    for k in range(order.size):
        start = offset + ids[order[k]] * stride
        first = start // page
        last = (start + span - 1) // page
        if ranges > 0 and first <= end:
            if last >= end:
                page_counts[ranges - 1] += last + 1 - end
                end = last + 1
        else:
            firsts[ranges] = first
            page_counts[ranges] = last + 1 - first
            end = last + 1
            ranges += 1
    return ranges
