from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.csr import (
    LONG_ROW,
    drop_repeats,
    drop_scattered_repeats,
    place_edges,
    place_keys,
    place_records,
    sort_rows,
    sort_rows_with_ids,
    split_keys,
    unpack_pairs,
)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("edges", [0, 1, 500])
def test_placing_equals_a_stable_sort(dtype: type, edges: int) -> None:
    rng = np.random.default_rng(edges)
    pairs = np.stack([rng.integers(0, 99, edges), rng.integers(40, 60, edges)], 1).astype(dtype)
    ends, indices = np.full(20, -5), np.full(edges, -5, np.int32)
    place_edges(pairs, 40, ends, indices)
    order = np.argsort(pairs[:, 1], kind="stable")
    assert np.array_equal(indices, pairs[order, 0])
    assert np.array_equal(ends, np.cumsum(np.bincount(pairs[:, 1] - 40, minlength=20)))


@pytest.mark.parametrize("spread", [1, 5, 10**6])
def test_rows_of_every_length_are_sorted(spread: int) -> None:
    lengths = [0, 1, 2, 24, 25, 300, 0, LONG_ROW, LONG_ROW + 1, 3]
    ends = np.cumsum(lengths)
    values = np.random.default_rng(4).integers(0, spread, ends[-1]).astype(np.int32)
    indices = values.copy()
    listed = np.zeros(len(values) // LONG_ROW + 1, np.int64)
    assert sort_rows(ends, indices, listed) == 1 and listed[0] == 8
    for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        part = slice(end - length, end)
        wanted = values[part] if row == 8 else np.sort(values[part])
        assert np.array_equal(indices[part], wanted), row


def test_room_for_long_rows_suffices_at_the_most() -> None:
    lengths = [LONG_ROW + 1] * 5
    ends = np.cumsum(lengths)
    listed = np.zeros(int(ends[-1]) // LONG_ROW + 1, np.int64)
    assert sort_rows(ends, np.zeros(ends[-1], np.int32), listed) == 5
    assert listed[:5].tolist() == [0, 1, 2, 3, 4]


def random_records(edges: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """(source, target, edge id) with targets in 20 rows from 40 on, and their stable order."""
    rng = np.random.default_rng(edges)
    largest = 2**31 - 1 if dtype is np.int32 else 2**61
    columns = rng.choice([0, 5, largest], edges), rng.integers(40, 60, edges)
    records = np.stack([*columns, rng.permutation(edges) + largest - edges], 1).astype(dtype)
    return records, np.argsort(records[:, 1], kind="stable")


@pytest.mark.parametrize("edges", [0, 1, 500])
def test_keys_hold_sources_above_edge_ids(edges: int) -> None:
    records, order = random_records(edges, np.int32)
    ends, keys = np.full(20, -5), np.empty(edges, np.int64)
    place_keys(records, 40, ends, keys)
    sources, ids = np.empty(edges, np.int32), np.empty(edges, np.int32)
    split_keys(keys, sources, ids)
    assert np.array_equal(sources, records[order, 0]) and np.array_equal(ids, records[order, 2])
    assert np.array_equal(ends, np.cumsum(np.bincount(records[:, 1] - 40, minlength=20)))
    both = np.lexsort((ids, sources))
    assert np.array_equal(np.argsort(keys, kind="stable"), both)


@pytest.mark.parametrize("edges", [0, 1, 300, 3000])
def test_wide_records_are_placed_and_their_short_rows_sorted(edges: int) -> None:
    records, order = random_records(edges, np.int64)
    ends, sources, ids = np.empty(20, np.int64), *np.empty((2, edges), np.int64)
    place_records(records, 40, ends, sources, ids)
    assert np.array_equal(sources, records[order, 0]) and np.array_equal(ids, records[order, 2])
    listed = np.empty(edges // 25 + 1, np.int64)
    found = listed[: sort_rows_with_ids(ends, sources, ids, listed)].tolist()
    starts = np.concatenate([[0], ends[:-1]])
    assert found == np.flatnonzero(ends - starts > 24).tolist()
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        pairs = list(zip(sources[start:end].tolist(), ids[start:end].tolist(), strict=True))
        assert pairs == sorted(pairs) or row in found


def naive_repeats(rows: list[list[int]]) -> tuple[list[list[int]], list[int], int]:
    """Rows without repeats, how many each stands for, how many were left out."""
    kept = [list(dict.fromkeys(row)) for row in rows]
    counts = [row.count(value) for row, short in zip(rows, kept, strict=True) for value in short]
    return kept, counts, sum(map(len, rows)) - sum(map(len, kept))


def random_rows(seed: int, *, sort: bool) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 6, rng.integers(0, 12)).tolist() for _ in range(50)]
    rows[7:9] = [[5] * 9, [5] * 4]  # the last of one row and the first of the next are equal
    return [sorted(row) for row in rows] if sort else rows


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("at", [0, 3])
def test_sorted_pairs_become_rows_in_place(at: int, drop: bool) -> None:
    rows = random_rows(at, sort=True)
    pairs = [number for row, held in enumerate(rows) for s in held for number in (s, row + 40)]
    ids = np.array([9] * 8 + pairs, np.int32)
    ends, counts = np.empty(50, np.int64), np.empty(len(ids), np.int64)
    kept, wanted, repeats = naive_repeats(rows)
    if not drop:
        kept, counts = rows, counts[:0]
    assert unpack_pairs(ids, (8, len(pairs) // 2, at), 40, ends, counts, drop) == repeats
    flat = [s for row in kept for s in row]
    assert ids[at : at + len(flat)].tolist() == flat
    assert ends.tolist() == (at + np.cumsum([len(row) for row in kept])).tolist()
    if drop:
        assert counts[at : at + len(flat)].tolist() == wanted


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("with_ids", [True, False])
def test_the_first_of_equal_sources_stays(dtype: type, sort: bool, with_ids: bool) -> None:
    rows = random_rows(3, sort=sort)
    factor = 1 if dtype is np.int32 else 2**55  # so that hashes see high bits alone
    sources = np.array([s for row in rows for s in row], dtype) * factor
    ends, ids = np.cumsum([len(row) for row in rows]), np.arange(len(sources)).astype(dtype)
    ids, counts = ids if with_ids else ids[:0], np.empty(len(sources), np.int64)
    kept, wanted, repeats = naive_repeats(rows)
    if sort:
        before = sources.copy(), ends.copy()
        assert drop_repeats(ends, sources, ids, counts, False) == repeats
        assert np.array_equal(before[0], sources) and np.array_equal(before[1], ends)
        assert drop_repeats(ends, sources, ids, counts, True) == repeats
    else:
        table = np.empty(32, np.int32)
        assert drop_scattered_repeats(ends, sources, ids, counts, table) == repeats
    total = sum(map(len, kept))
    assert (sources[:total] // factor).tolist() == [s for row in kept for s in row]
    assert ends.tolist() == np.cumsum([len(row) for row in kept]).tolist()
    assert counts[:total].tolist() == wanted
    if with_ids:
        flat = [(number, s) for number, row in enumerate(rows) for s in row]
        assert ids[:total].tolist() == [flat.index(edge) for edge in dict.fromkeys(flat)]
