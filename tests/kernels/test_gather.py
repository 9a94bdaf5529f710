from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overspill.kernels.gather import copy_items, copy_ordered_items, first_outside, page_ranges


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize(("stride", "span"), [(1, 1), (1, 2), (3, 3), (64, 64), (5, 2)])
def test_items_are_copied_to_their_places(dtype: type, stride: int, span: int) -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 120, 40 * stride + span).astype(dtype)
    ids = rng.integers(0, 40, 90)
    expected = np.stack([words[i * stride : i * stride + span] for i in ids])
    out = np.zeros((90, span), dtype=dtype)
    copy_items(words, ids, stride, out)
    np.testing.assert_array_equal(out, expected)
    out[:] = 0
    order = rng.permutation(90)
    copy_ordered_items(words, ids, stride, order[:50], out)
    np.testing.assert_array_equal(out[order[:50]], expected[order[:50]])
    assert not out[order[50:]].any()


@given(
    ids=st.lists(st.integers(0, 300), max_size=60),
    offset=st.sampled_from([0, 4096, 100]),
    span=st.sampled_from([1, 7, 512, 4096, 5000, 9000]),
)
def test_page_ranges_cover_the_distinct_pages_and_no_other(
    ids: list[int], offset: int, span: int
) -> None:
    held = np.array(ids, dtype=np.int64)
    firsts, counts = np.zeros((2, len(ids)), dtype=np.int64)
    found = page_ranges(held, np.argsort(held), (offset, span, span, 4096), firsts, counts)
    asked = [
        p for f, n in zip(firsts[:found], counts[:found], strict=True) for p in range(f, f + n)
    ]
    wanted = {
        page
        for i in ids
        for page in range((offset + i * span) // 4096, (offset + i * span + span - 1) // 4096 + 1)
    }
    assert asked == sorted(wanted)
    assert all(firsts[1:found] > firsts[: max(found - 1, 0)] + counts[: max(found - 1, 0)])


def test_ids_outside_are_counted_and_the_first_is_named() -> None:
    assert first_outside(np.array([0, 4, 9]), 10) == (0, -1)
    assert first_outside(np.array([0, 10, -1, 9]), 10) == (2, 1)
    assert first_outside(np.empty(0, dtype=np.int64), 0) == (0, -1)
