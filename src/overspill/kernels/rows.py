"""Move rows of any width into staged blocks, and from blocks to their places.

Bottleneck: memory bandwidth; one cache miss a narrow row. Rows come as the widest words that their
size allows. A block holds the positions of its rows (uint32, relative to its range), then the rows;
a pool of blocks is one flat array of bytes, seen as positions and as words at the same time.
Limits: positions in a range fit 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel
from overspill.kernels.open_blocks import FREE, FULL

Ids = npt.NDArray[np.int64]
DROPPED = 2  # place in the state array, behind those of `open_blocks`
# (rows a block, uint32s a block, words a block, words before a block's first row)
Geometry = tuple[int, int, int, int]


@kernel
def stage_rows(
    given: tuple[Ids, npt.NDArray[Any], int],
    ranges: tuple[int, int],
    pool: tuple[npt.NDArray[np.uint32], npt.NDArray[Any]],
    geometry: Geometry,
    tables: tuple[Ids, Ids, Ids, Ids, Ids],
    state: Ids,
) -> int:
    """Append rows to the blocks of their positions' ranges until rows or free blocks run out.

    Args:
        given: Positions; rows as words (n, span); the first row to take.
        ranges: A position belongs to range ``position >> first``; positions are below the second.
            Others stop the loop, but -1 drops the row.
        pool: The blocks, as uint32 and as words.
        geometry: How a block is laid out.
        tables: A range's open block and its fill; a stack of free blocks; the full blocks and
            their ranges. The stack holds one block at least on entry.
        state: Free blocks, full blocks, dropped rows; updated.

    Returns:
        The first row not taken: stopped by its position, or because the stack is empty.
    """
    positions, rows, start = given
    shift, count = ranges
    within = (1 << shift) - 1
    staged, words = pool
    capacity, block_ids, block_words, first_word = geometry
    opened, fill, free, full_blocks, full_ranges = tables
    span = rows.shape[1]
    number = start
    while number < positions.shape[0]:
        position = positions[number]
        if position < 0 or position >= count:
            if position != -1:
                break
            state[DROPPED] += 1
            number += 1
            continue
        index = position >> shift
        block, at = opened[index], fill[index]
        staged[block * block_ids + at] = position & within
        # Unsigned: an index that could be negative would keep the loop from vectorising.
        word = np.uint64(block * block_words + first_word + at * span)
        for j in range(np.uint64(span)):
            words[word + j] = rows[number, j]
        number += 1
        fill[index] = at + 1
        if at + 1 == capacity:  # as `replace_block`, a call of which takes 4% of this loop's speed
            full_blocks[state[FULL]] = block
            full_ranges[state[FULL]] = index
            state[FULL] += 1
            state[FREE] -= 1
            opened[index] = free[state[FREE]]
            fill[index] = 0
            if state[FREE] == 0:
                break
    return number


@kernel
def place_rows(
    blocks: tuple[npt.NDArray[np.uint32], npt.NDArray[Any]],
    geometry: Geometry,
    count: int,
    seen: npt.NDArray[np.uint8],
    out: npt.NDArray[Any],
) -> int:
    """Put the rows of consecutive blocks, all full but the last, where they belong.

    Args:
        blocks: The blocks, as uint32 and as words.
        geometry: How a block is laid out.
        count: Rows in them.
        seen: (rows,): whether a row has been placed; updated.
        out: (rows, span) words.

    Returns:
        The first position that was taken already (its row is left alone), or -1.
    """
    staged, words = blocks
    capacity, block_ids, block_words, first_word = geometry
    span = out.shape[1]
    left, block = count, 0
    while left > 0:
        for at in range(min(left, capacity)):
            position = np.int64(staged[block * block_ids + at])
            if seen[position]:
                return int(position)
            seen[position] = 1
            word = np.uint64(block * block_words + first_word + at * span)
            for j in range(np.uint64(span)):
                out[position, j] = words[word + j]
        left -= capacity
        block += 1
    return -1


@kernel
def take_rows(
    rows: npt.NDArray[Any], index: npt.NDArray[Any], first: int, out: npt.NDArray[Any]
) -> None:
    """Copy the rows that an index names.

    Args:
        rows: (k, span) words, the rows from number `first` on.
        index: Numbers of rows among them.
        first: The number of the first of them.
        out: (index.size, span) words.
    """
    for number in range(index.size):
        row = np.uint64(np.int64(index[number]) - first)
        for j in range(np.uint64(rows.shape[1])):
            out[number, j] = rows[row, j]
