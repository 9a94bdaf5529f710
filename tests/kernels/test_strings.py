from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overspill.kernels.strings import (
    COLLISION,
    UNSORTED,
    copy_strings,
    gather_distinct,
    hash_strings,
    match_strings,
    note_spans,
    sort_keys,
)
from texts import TRICKY, anything, as_strings, numbers, reference_hash


def hashes_of(texts: list[str], key: int = 0, before: str = "") -> np.ndarray:
    strings = as_strings(texts, before=before)
    hashes = np.empty(len(texts), np.int64)
    hash_strings(strings.offsets, strings.data, key, hashes)
    return hashes


@given(anything, st.integers(0, 9), st.sampled_from(["", "before"]))
@settings(max_examples=60, deadline=None)
def test_hashes_equal_a_plain_reference(texts: list[str], key: int, before: str) -> None:
    expected = [reference_hash(text.encode(), key) for text in texts]
    assert hashes_of(texts, key, before).tolist() == expected


def test_every_byte_counts() -> None:
    """Of strings of any length, each with one bit changed anywhere."""
    for length in (1, 7, 8, 9, 16, 23, 64):
        base = bytes(range(length))
        texts = {base} | {
            base[:at] + bytes([base[at] ^ 1 << bit]) + base[at + 1 :]
            for at in range(length)
            for bit in range(7)
        }
        assert len(set(hashes_of([text.decode() for text in texts]).tolist())) == 7 * length + 1


def test_lengths_and_keys_count() -> None:
    texts = [*TRICKY, *("\0" * n for n in range(3, 40))]
    found = np.concatenate([hashes_of(texts, key) for key in range(5)])
    assert len(np.unique(found)) == 5 * len(texts)


def test_hashes_of_numbers_are_spread_evenly() -> None:
    found = hashes_of(numbers(100_000))
    for shift in (0, 20, 56):  # the low, the middle and the top bits
        counts = np.bincount((found >> shift) & 255, minlength=256)
        # Mean 391, standard deviation 20.
        assert counts.min() > 280 and counts.max() < 510
    assert len(np.unique(found)) == 100_000


def noted(texts: list[str], hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    strings = as_strings(texts)
    notes = np.empty((len(texts), 2), np.int64)
    note_spans(hashes, np.diff(strings.offsets).astype(np.int32), 0, notes)
    return notes, strings.data


def gathered(texts: list[str], hashes: list[int], order: list[int]) -> object:
    notes, data = noted(texts, np.array(hashes))
    out = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int32), np.zeros_like(data)
    count, filled = gather_distinct(notes, np.array(order, np.uint64), 0xFF, data, out)
    if count < 0:
        return count
    texts = []
    for length in out[1][:count].tolist():
        start = sum(len(text) for text in texts)
        texts.append(out[2][start : start + length].tobytes().decode())
    assert sum(map(len, texts)) == filled
    return dict(zip(out[0][:count].tolist(), texts, strict=True))


def test_each_string_is_copied_once_in_the_order_of_the_hashes() -> None:
    found = gathered(["b", "", "ccc", "b", ""], [5, -9, 2, 5, -9], [4, 1, 2, 0 + 256, 3])
    assert found == {-9: "", 2: "ccc", 5: "b"}


@pytest.mark.parametrize("other", ["c", "bb", "", "a"])
def test_different_strings_that_share_a_hash_are_told(other: str) -> None:
    assert gathered(["b", other], [5, 5], [0, 1]) == COLLISION
    assert gathered([other, "b"], [5, 5], [0, 1]) == COLLISION


def test_hashes_that_do_not_rise_are_told() -> None:
    assert gathered(["b", "c"], [5, 6], [1, 0]) == UNSORTED


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 1000])
@pytest.mark.parametrize(
    ("lowest", "highest"), [(-(2**63), 2**63 - 1), (5, 5), (-3, 10**12), (2**62, 2**62 + 10**9)]
)
def test_keys_sort_as_hashes_do(count: int, lowest: int, highest: int) -> None:
    hashes = np.random.default_rng(count).integers(lowest, highest, count, endpoint=True)
    if count > 1 and highest > lowest:
        hashes[:2] = highest, lowest
    notes, _ = noted([""] * count, hashes)
    keys = np.empty(count, np.uint64)
    bits = sort_keys(notes, keys)
    assert 2**bits >= count
    places = np.sort(keys) & np.uint64((1 << bits) - 1)
    assert np.array_equal(hashes[places.astype(np.int64)], np.sort(hashes))


def test_chosen_strings_are_copied_one_after_another() -> None:
    strings = as_strings(["ab", "", "cde", "f"], before="zz")
    out = np.zeros(20, np.uint8)
    lengths = np.diff(strings.offsets)
    spans = strings.offsets[:-1], lengths
    assert copy_strings(strings.data, spans, np.array([3, 1, 2, 3]), out) == 5
    assert out.tobytes().rstrip(b"\0") == b"fcdef"


def test_strings_are_compared_pair_by_pair() -> None:
    ours, theirs = as_strings(["ab", "", "cde", "f"]), as_strings(["f", "", "cdf", "a"])
    equal = np.zeros(4, np.bool_)
    given = [(s.offsets[:-1], np.diff(s.offsets), s.data) for s in (ours, theirs)]
    match_strings(given[0], given[1], np.array([3, 1, 2, 0]), equal)
    assert equal.tolist() == [False, True, False, True]
