from __future__ import annotations

import numpy as np

from overspill.kernels.open_blocks import FREE, FULL, replace_block


def test_full_blocks_are_listed_and_replaced_until_none_is_free() -> None:
    opened, fill = np.array([0, 1, 2]), np.array([4, 1, 4])
    free, full_blocks, full_ranges = np.array([3, 4]), np.full(5, -1), np.full(5, -1)
    tables = (opened, fill, free, full_blocks, full_ranges)
    state = np.array([2, 0])
    assert replace_block(2, tables, state)
    assert opened.tolist() == [0, 1, 4] and fill.tolist() == [4, 1, 0]
    assert not replace_block(0, tables, state)
    assert opened.tolist() == [3, 1, 4] and fill.tolist() == [0, 1, 0]
    assert (state[FREE], state[FULL]) == (0, 2)
    assert full_blocks[:2].tolist() == [2, 0] and full_ranges[:2].tolist() == [2, 0]
