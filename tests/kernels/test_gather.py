from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overspill.kernels.gather import (
    copy_fetched,
    copy_items,
    copy_present,
    first_outside,
    next_window,
)

NONE = np.empty(0, dtype=np.int64)
PAGE, SHIFT = 4096, 12
SPANS = st.sampled_from([1, 7, 512, 4096, 5000, 9000])


def bits(present: np.ndarray) -> np.ndarray:
    return np.packbits(present, bitorder="little")


def pages_of(i: int, offset: int, stride: int, span: int) -> range:
    begin = offset + i * stride
    return range(begin // PAGE, (begin + span - 1) // PAGE + 1)


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
    size = words.itemsize
    layout = (0, stride * size, span * size, SHIFT)
    trusted = np.empty(0, dtype=np.uint8)
    for places in (NONE, rng.permutation(90)):
        out[:] = 0
        assert copy_present(words, (ids, places), layout, trusted, out, np.empty(90, int)) == 0
        np.testing.assert_array_equal(out[places] if places.size else out, expected)


@settings(deadline=None)  # the first example compiles
@given(
    ids=st.lists(st.integers(0, 30), max_size=40),
    offset=st.sampled_from([0, 4096]),
    span=SPANS,
    present=st.lists(st.booleans(), min_size=72, max_size=72),
)
def test_only_items_whose_pages_are_all_present_are_touched(
    ids: list[int], offset: int, span: int, present: list[bool]
) -> None:
    held = np.array(ids, dtype=np.int64)
    words = np.arange(31 * span, dtype=np.uint8)
    known = bits(np.array(present))
    layout = (offset, span, span, SHIFT)
    absent = [
        at
        for at, i in enumerate(ids)
        if not all(present[p] for p in pages_of(i, offset, span, span))
    ]
    out = np.full((len(ids), span), 255, dtype=np.uint8)
    missed = np.empty(len(ids), dtype=np.int64)
    found = copy_present(words, (held, NONE), layout, known, out, missed)
    assert missed[:found].tolist() == absent
    assert (out[absent] == 255).all()
    for at in set(range(len(ids))) - set(absent):
        np.testing.assert_array_equal(out[at], words[ids[at] * span : (ids[at] + 1) * span])


@settings(deadline=None)  # the first example compiles
@given(
    ids=st.lists(st.integers(0, 300), max_size=60).map(sorted),
    offset=st.sampled_from([0, 4096, 100]),
    span=SPANS,
    most=st.integers(1, 20),
)
def test_windows_cover_the_distinct_pages_and_no_other(
    ids: list[int], offset: int, span: int, most: int
) -> None:
    held = np.array(ids, dtype=np.int64)
    start = 0
    while start < len(ids):
        firsts, counts = np.zeros((2, most), dtype=np.int64)
        stop, found = next_window(held, start, (offset, span, span, SHIFT), most, (firsts, counts))
        assert stop > start
        asked = [
            p for f, n in zip(firsts[:found], counts[:found], strict=True) for p in range(f, f + n)
        ]
        wanted = {p for i in ids[start:stop] for p in pages_of(i, offset, span, span)}
        assert asked == sorted(wanted)
        assert all(firsts[1:found] > firsts[: found - 1] + counts[: found - 1])
        # An item that is larger than a window has one, with those that lie on its pages too.
        assert len(wanted) <= max(most, len(set(pages_of(ids[start], offset, span, span))))
        if stop < len(ids):
            more = wanted | set(pages_of(ids[stop], offset, span, span))
            assert len(more) > most
        start = stop


@settings(deadline=None)  # the first example compiles
@given(ids=st.lists(st.integers(0, 40), min_size=1, max_size=60).map(sorted), span=SPANS)
def test_items_are_copied_out_of_the_pages_that_were_read(ids: list[int], span: int) -> None:
    held = np.array(ids, dtype=np.int64)
    file = np.random.default_rng(span).integers(0, 255, 41 * span + 2 * PAGE).astype(np.uint8)
    layout = (PAGE, span, span, SHIFT)
    places = np.random.default_rng(1).permutation(len(ids))
    out = np.zeros((len(ids), span), dtype=np.uint8)
    start = 0
    while start < len(ids):
        firsts, counts = np.zeros((2, 8), dtype=np.int64)
        stop, found = next_window(held, start, layout, 8, (firsts, counts))
        ranges = firsts[:found], counts[:found]
        fetched = np.concatenate(
            [file[f * PAGE : (f + n) * PAGE] for f, n in zip(*ranges, strict=True)]
        )
        copy_fetched(fetched, (held[start:stop], places[start:stop]), layout, ranges, out)
        start = stop
    expected = np.stack([file[PAGE + i * span : PAGE + (i + 1) * span] for i in ids])
    np.testing.assert_array_equal(out[places], expected)


def test_ids_outside_are_counted_and_the_first_is_named() -> None:
    assert first_outside(np.array([0, 4, 9]), 10) == (0, -1)
    assert first_outside(np.array([0, 10, -1, 9]), 10) == (2, 1)
    assert first_outside(np.empty(0, dtype=np.int64), 0) == (0, -1)
