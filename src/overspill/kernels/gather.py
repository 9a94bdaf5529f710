"""Copy items from random places of an array, and plan which of its pages to read for them.

Bottleneck: one cache or TLB miss an item; copies run in the widest words that the items allow, by
unsigned indices, because one that could be negative would keep the loop from vectorising.
An item starts at ``id * stride`` and may reach into the next one (``span > stride``): two
consecutive entries of an indptr are one item. A layout is (bytes before the payload, from one item
to the next, of an item, binary logarithm of a page's).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]
Layout = tuple[int, int, int, int]
_LOOKED_AT = 256
_BYTE_SHIFT, _BIT = np.uint64(3), np.uint64(7)


@kernel
def first_outside(ids: Ids, count: int) -> tuple[int, int]:
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
def copy_items(words: npt.NDArray[Any], ids: Ids, stride: int, out: npt.NDArray[Any]) -> None:
    """Copy items in the order they are asked for.

    Args:
        words: The payload, one-dimensional.
        ids: int64 (items,), within the payload.
        stride: Words from one item to the next.
        out: (items, span) words, filled.
    """
    span = np.uint64(out.shape[1])
    if span == 1:
        for i in range(ids.size):
            out[i, 0] = words[np.uint64(ids[i] * stride)]
        return
    for i in range(ids.size):
        start = np.uint64(ids[i] * stride)
        for j in range(span):
            out[i, j] = words[start + j]


@kernel
def _copy_to(
    words: npt.NDArray[Any], ids: Ids, places: Ids, stride: int, out: npt.NDArray[Any]
) -> None:
    span = np.uint64(out.shape[1])
    for i in range(ids.size):
        start, row = np.uint64(ids[i] * stride), np.uint64(places[i])
        for j in range(span):
            out[row, j] = words[start + j]


@kernel
def _are_present(ids: Ids, layout: Layout, present: npt.NDArray[np.uint8]) -> bool:
    """Whether all pages of items are; without a branch, for they nearly always are."""
    offset, stride, nbytes, shift = layout
    seen = np.uint64(1)
    for i in range(ids.size):
        begin = offset + ids[i] * stride
        for page in range(
            np.uint64(begin >> shift), np.uint64(((begin + nbytes - 1) >> shift) + 1)
        ):
            seen &= present[page >> _BYTE_SHIFT] >> (page & _BIT)
    return bool(seen == 1)


@kernel
def _are_present_narrow(ids: Ids, layout: Layout, present: npt.NDArray[np.uint8]) -> bool:
    """The same for items of at most a page, which lie on their first page and their last."""
    offset, stride, nbytes, shift = layout
    seen = np.uint64(1)
    for i in range(ids.size):
        begin = offset + ids[i] * stride
        first, last = np.uint64(begin >> shift), np.uint64((begin + nbytes - 1) >> shift)
        seen &= present[first >> _BYTE_SHIFT] >> (first & _BIT)
        seen &= present[last >> _BYTE_SHIFT] >> (last & _BIT)
    return bool(seen == 1)


@kernel
def copy_present(
    words: npt.NDArray[Any],
    wanted: tuple[Ids, Ids],
    layout: Layout,
    present: npt.NDArray[np.uint8],
    out: npt.NDArray[Any],
    missed: Ids,
) -> int:
    """Copy the items all of whose pages are known to be present, and list the others.

    Args:
        words: The payload, one-dimensional.
        wanted: int64 (items,), within the payload; and the row of `out` that each goes to, empty
            where they go in order.
        layout: Of the items.
        present: A bit a page of the file, the lowest first; empty where all pages are present.
        out: (rows, span) words, filled in part.
        missed: Filled: positions of the items that were not copied; room for all.

    Returns:
        How many were not copied.
    """
    ids, places = wanted
    step, narrow = layout[1] // words.itemsize, layout[2] <= 1 << layout[3]
    count = 0
    # Looked at first, some at a time, the copy is a loop of its own: a test between two rows would
    # keep the processor from running ahead into the next one's cache miss.
    for first in range(0, ids.size, _LOOKED_AT):
        last = min(first + _LOOKED_AT, ids.size)
        some = ids[first:last]
        if (
            present.size == 0
            or (narrow and _are_present_narrow(some, layout, present))
            or (not narrow and _are_present(some, layout, present))
        ):
            if places.size:
                _copy_to(words, some, places[first:last], step, out)
            else:
                copy_items(words, some, step, out[first:last])
            continue
        for i in range(first, last):
            if _are_present(ids[i : i + 1], layout, present):
                row = places[i] if places.size else i
                copy_items(words, ids[i : i + 1], step, out[row : row + 1])
            else:
                missed[count] = i
                count += 1
    return count


@kernel
def next_window(
    ids: Ids, start: int, layout: Layout, most_pages: int, ranges: tuple[Ids, Ids]
) -> tuple[int, int]:
    """The distinct pages of the next items, as sorted, disjoint ranges; neighbours are merged.

    Args:
        ids: int64 (items,), increasing.
        start: The first item to look at.
        layout: Of the items.
        most_pages: Pages to stop at; an item that has more on its own is taken alone.
        ranges: Filled: first page and number of pages of each range; room for `most_pages` each.

    Returns:
        The first item that is not covered, and the number of ranges.
    """
    offset, stride, nbytes, shift = layout
    firsts, counts = ranges
    pages = found = 0
    end = -1
    number = start
    while number < ids.size:
        begin = offset + ids[number] * stride
        first = max(begin >> shift, end)
        last = (begin + nbytes - 1) >> shift
        more = last + 1 - first
        if more > 0:
            if pages > 0 and pages + more > most_pages:
                break
            if first == end:
                counts[found - 1] += more
            else:
                firsts[found], counts[found] = first, more
                found += 1
            pages += more
            end = last + 1
        number += 1
    return number, found


@kernel
def copy_fetched(
    fetched: npt.NDArray[Any],
    wanted: tuple[Ids, Ids],
    layout: Layout,
    ranges: tuple[Ids, Ids],
    out: npt.NDArray[Any],
) -> None:
    """Copy items from the pages that were read for them.

    Args:
        fetched: The pages of the ranges, one after the other, as words.
        wanted: int64 (items,), increasing; and the row of `out` that each goes to.
        layout: Of the items.
        ranges: As `next_window` gave them for these items.
        out: (rows, span) words, filled in part.
    """
    ids, places = wanted
    offset, stride, _, shift = layout
    firsts, counts = ranges
    span = np.uint64(out.shape[1])
    at = before = 0
    for i in range(ids.size):
        begin = offset + ids[i] * stride
        while begin >> shift >= firsts[at] + counts[at]:
            before += counts[at]
            at += 1
        within = begin - ((firsts[at] - before) << shift)
        start, row = np.uint64(within // fetched.itemsize), np.uint64(places[i])
        for j in range(span):
            out[row, j] = fetched[start + j]
