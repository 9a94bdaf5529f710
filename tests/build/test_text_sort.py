from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from overspill.build.ids.text_sort import HashCollisionError, SortedStrings, StringSorter
from texts import anything, as_strings, reference_hash


def texts_of(found: SortedStrings) -> list[str]:
    ends = np.cumsum(found.lengths)
    parts = zip(ends - found.lengths, ends, strict=True)
    return [found.data[begin:end].tobytes().decode() for begin, end in parts]


def sort(texts: list[str], hashes: list[int], sorter: StringSorter | None = None) -> SortedStrings:
    strings = as_strings(texts)
    sorter = sorter or StringSorter(len(texts))
    half = len(texts) // 2
    for part in (slice(0, half), slice(half, len(texts))):
        lengths = np.diff(strings.offsets).astype(np.int32)[part]
        start = int(strings.offsets[part.start])
        sorter.add(np.array(hashes, np.int64)[part], lengths, start)
    return sorter.sorted(strings.data, len(strings.data))


@given(anything)
@settings(max_examples=60, deadline=None)
def test_sorting_equals_a_dictionary(texts: list[str]) -> None:
    expected = {reference_hash(text.encode(), 0): text for text in texts}
    found = sort(texts, [reference_hash(text.encode(), 0) for text in texts])
    assert found.hashes.tolist() == sorted(expected)
    assert texts_of(found) == [expected[key] for key in sorted(expected)]


@pytest.mark.parametrize("spread", [1, 2**40])
def test_hashes_that_differ_in_their_last_bits_only(spread: int) -> None:
    """More alike than the keys of the sort can tell."""
    texts = [f"{n}" for n in range(300)]
    hashes = [(n // 3) * spread * 2**13 + (7 * n) % 3 for n in range(300)]
    found = sort(texts, hashes)
    assert texts_of(found) == [texts[i] for i in np.argsort(hashes, kind="stable")]


def test_a_collision_is_told() -> None:
    with pytest.raises(HashCollisionError):
        sort(["a", "b", "a"], [7, 7, 7])


def test_outputs_stay_valid_for_as_many_calls() -> None:
    sorter = StringSorter(8, outputs=3)
    found = [sort([f"{n}", f"{n}x"], [n, n + 1], sorter) for n in range(4)]
    assert [texts_of(one) for one in found[1:]] == [[f"{n}", f"{n}x"] for n in range(1, 4)]
    assert sorter.room == 8
