from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overspill.kernels.open_blocks import FREE, FULL
from overspill.kernels.rows import DROPPED, place_rows, stage_rows, take_rows

CAPACITY, RANGES, SHIFT = 2, 4, 1


class Pool:
    """Four ranges of two positions, blocks of two rows; positions first, then rows from byte 8."""

    def __init__(self, word: np.dtype[Any], span: int, *, spare: int) -> None:
        block = 8 + -(-CAPACITY * span * word.itemsize // 8) * 8
        self.data = np.full((RANGES + spare) * block, 0xEE, np.uint8)
        self.views = self.data.view(np.uint32), self.data.view(word)
        self.geometry = CAPACITY, block // 4, block // word.itemsize, 8 // word.itemsize
        self.span = span
        self.tables = (
            np.arange(RANGES),
            np.zeros(RANGES, np.int64),
            np.concatenate([np.arange(RANGES, RANGES + spare), np.zeros(RANGES, np.int64)]),
            np.zeros(RANGES + spare, np.int64),
            np.zeros(RANGES + spare, np.int64),
        )
        self.state = np.array([spare, 0, 0])

    def stage(self, positions: np.ndarray, rows: np.ndarray, start: int = 0) -> int:
        given = positions, rows, start
        return stage_rows(
            given, (SHIFT, RANGES << SHIFT), self.views, self.geometry, self.tables, self.state
        )

    def block(self, number: int, rows: int) -> list[tuple[int, list[int]]]:
        _, ids, words, first = self.geometry
        found = []
        for at in range(rows):
            word = number * words + first + at * self.span
            row = self.views[1][word : word + self.span]
            found.append((int(self.views[0][number * ids + at]), row.tolist()))
        return found

    def of_range(self, index: int) -> list[tuple[int, list[int]]]:
        opened, fill, _, full, ranges = self.tables
        found = []
        for place in range(self.state[FULL]):
            if ranges[place] == index:
                found += self.block(int(full[place]), CAPACITY)
        return found + self.block(int(opened[index]), int(fill[index]))


@pytest.mark.parametrize("span", [0, 1, 2, 9])
@pytest.mark.parametrize("word", [np.uint8, np.uint32, np.uint64])
def test_each_row_lands_in_its_range_in_order(word: type, span: int) -> None:
    rng = np.random.default_rng(span)
    positions = rng.integers(-1, 8, 20)
    rows = rng.integers(0, 255, (20, span)).astype(word)
    pool = Pool(np.dtype(word), span, spare=20)
    assert pool.stage(positions, rows) == 20
    assert pool.state[DROPPED] == np.count_nonzero(positions == -1) > 0
    for index in range(RANGES):
        mine = np.flatnonzero((positions >= 0) & (positions >> SHIFT == index))
        wanted = [(int(positions[i]) % 2, rows[i].tolist()) for i in mine]
        assert pool.of_range(index) == wanted


def test_it_stops_when_the_last_free_block_is_taken() -> None:
    pool = Pool(np.dtype(np.uint64), 1, spare=3)
    rows = np.arange(20, dtype=np.uint64).reshape(20, 1)
    assert pool.stage(np.zeros(20, np.int64), rows) == 6
    assert pool.state[FREE] == 0 and pool.state[FULL] == 3


@pytest.mark.parametrize("position", [-2, 8, 2**40, -(2**63)])
def test_it_stops_before_a_position_out_of_range(position: int) -> None:
    pool = Pool(np.dtype(np.uint8), 3, spare=3)
    assert pool.stage(np.array([1, -1, position, 1]), np.zeros((4, 3), np.uint8)) == 2
    assert pool.state[DROPPED] == 1 and len(pool.of_range(0)) == 1


@pytest.mark.parametrize("span", [0, 1, 5])
@pytest.mark.parametrize("word", [np.uint8, np.uint32, np.uint64])
def test_staged_rows_are_placed(word: type, span: int) -> None:
    pool = Pool(np.dtype(word), span, spare=1)
    # Two whole blocks and a half one, as they lie behind one another.
    _, ids, words, first = pool.geometry
    rows = np.random.default_rng(1).integers(0, 255, (5, span)).astype(word)
    positions = [3, 0, 4, 1, 6]
    for number, position in enumerate(positions):
        block, at = divmod(number, CAPACITY)
        pool.views[0][block * ids + at] = position
        word_at = block * words + first + at * span
        pool.views[1][word_at : word_at + span] = rows[number]
    seen, out = np.zeros(8, np.uint8), np.full((8, span), 7, word)
    assert place_rows(pool.views, pool.geometry, 5, seen, out) == -1
    assert np.flatnonzero(seen).tolist() == sorted(positions)
    assert np.array_equal(out[positions], rows)
    assert np.all(out[[2, 5, 7]] == 7)
    again = out.copy()
    assert place_rows(pool.views, pool.geometry, 5, seen, out) == 3
    assert np.array_equal(out, again)


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("span", [0, 1, 5])
def test_rows_are_taken_by_number(index_type: type, span: int) -> None:
    rows = np.arange(4 * span, dtype=np.uint32).reshape(4, span)
    index = np.array([13, 10, 13, 12], index_type)
    out = np.full((4, span), 99, np.uint32)
    take_rows(rows, index, 10, out)
    assert np.array_equal(out, rows[[3, 0, 3, 2]])
