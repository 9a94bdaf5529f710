from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.route import add_lengths, count_words, hash_nodes, route_words
from parted import splitmix64


@pytest.mark.parametrize("num_parts", [1, 3, 256, 257])
@pytest.mark.parametrize("first", [0, 2**31 - 2, 2**61])
def test_the_hash_is_the_published_one(num_parts: int, first: int) -> None:
    parts = np.empty(50, np.uint32)
    hash_nodes(first, num_parts, parts)
    assert parts.tolist() == [splitmix64(first + place) % num_parts for place in range(50)]


def test_lengths_add_up() -> None:
    totals = np.array([10, 0])
    add_lengths(np.array([1, 0, 1], np.uint32), np.array([3, 0, 4]), totals)
    assert totals.tolist() == [10, 7]


@pytest.mark.parametrize("word", [np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("group", [(0, 5), (1, 2), (4, 1)])
def test_words_go_to_their_parts_in_order(word: type, piece: int, group: tuple[int, int]) -> None:
    """Pieces of any size, cut anywhere, with runs of nothing at every place."""
    rng = np.random.default_rng(3)
    parts = rng.integers(0, 5, 60).astype(np.uint32)
    lengths = rng.integers(0, 9, 60) * rng.integers(0, 2, 60)
    lengths[-3:] = 0
    words = rng.integers(0, 200, lengths.sum()).astype(word)
    first, size = group
    found: list[list[int]] = [[] for _ in range(size)]
    start = (0, 0)
    for at in range(0, words.size, piece):
        held = words[at : at + piece]
        counts, out = np.zeros(size, np.int64), np.empty(piece, word)
        assert count_words((parts, lengths), start, held.size, first, counts) == held.size
        places = np.cumsum(counts) - counts
        ends = np.cumsum(counts)
        start = route_words((parts, lengths), start, held, first, places, out)
        assert places.tolist() == ends.tolist()
        for part in range(size):
            found[part] += out[ends[part] - counts[part] : ends[part]].tolist()
    assert start == (60, 0), "what has no words is passed by with the piece before"
    owners = np.repeat(parts, lengths)
    assert found == [words[owners == first + part].tolist() for part in range(size)]


def test_runs_that_end_before_the_piece() -> None:
    runs = np.array([0, 0], np.uint32), np.array([2, 1])
    counts = np.zeros(1, np.int64)
    assert count_words(runs, (0, 1), 10, 0, counts) == 2
    assert counts.tolist() == [2]
