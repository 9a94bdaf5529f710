from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.radix import (
    LEVEL_BITS,
    LINE_EDGES,
    count_leaves,
    drain_lines,
    group_leaves,
    number_records,
    pack_records,
    partition_edges,
    partition_items,
    place_columns,
    place_numbered,
    sort_by_digit,
    start_rows,
    unpack_columns,
    unpack_records,
)

RNG = np.random.default_rng(11)
NO_NODES = np.zeros((0, 1 << LEVEL_BITS), np.int32)


def table() -> tuple[int, np.ndarray, np.ndarray]:
    """Rows 0..1023: leaf 0 below 512; then a node that has every row's own leaf up to 767."""
    nodes = np.zeros((1, 256), np.int32)
    nodes[0] = np.arange(1, 257)
    return 8, np.array([0, 0, -1, 257], np.int32), nodes


def naive_leaf(row: int) -> int:
    return 0 if row < 512 else 257 if row >= 768 else 1 + row - 512


def test_rows_are_counted_by_the_leaf_that_the_table_leads_to() -> None:
    rows = RNG.integers(0, 1024, 5000)
    counts = np.ones(258, np.int64)
    count_leaves(rows, table(), counts)
    wanted = np.bincount([naive_leaf(row) for row in rows.tolist()], minlength=258)
    assert np.array_equal(counts - 1, wanted)


def test_a_node_of_few_bits_takes_the_lowest() -> None:
    nodes = np.full((2, 256), -9, np.int32)
    nodes[0, :8] = [0, 1, 2, 3, 4, 5, 6, 7]
    counts = np.zeros(8, np.int64)
    count_leaves(np.arange(8), (3, np.array([-1], np.int32), nodes), counts)
    assert counts.tolist() == [1] * 8


@pytest.mark.parametrize(
    ("counts", "widths", "limits", "wanted"),
    [
        ([3, 3, 3, 3], [1, 1, 1, 1], (6, 9), [0, 0, 1, 1]),
        ([9, 1, 1, 9], [1, 1, 1, 1], (6, 9), [0, 1, 1, 2]),
        ([0, 0, 0, 0], [4, 4, 4, 4], (6, 9), [0, 0, 1, 1]),
        ([0, 7, 0], [1, 1, 1], (7, 9), [0, 0, 0]),
        ([7, 0], [1, 1], (6, 9), [0, 1]),
    ],
)
def test_leaves_are_joined_up_to_the_limits(
    counts: list[int], widths: list[int], limits: tuple[int, int], wanted: list[int]
) -> None:
    groups = np.full(len(counts), -1, np.int32)
    found = group_leaves(np.array(counts), np.array(widths), limits, groups)
    assert groups.tolist() == wanted and found == wanted[-1] + 1


@pytest.mark.parametrize("column_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("row_dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("count", [0, 1, LINE_EDGES, 3000])
def test_edges_are_partitioned_in_order_whatever_the_lines(
    count: int, row_dtype: type, column_dtype: type
) -> None:
    rows, columns = RNG.integers(0, 1024, count), RNG.integers(0, 2**31, count)
    shift, top, nodes = table()
    firsts = np.concatenate([[0], np.arange(512, 769)])
    leaves = np.array([naive_leaf(row) for row in rows.tolist()], np.int64)
    counts = np.bincount(leaves, minlength=258)
    starts = np.cumsum(counts) - counts
    places = firsts, starts, starts.copy()
    lines = np.empty((258, LINE_EDGES), column_dtype), np.empty((258, LINE_EDGES), row_dtype)
    out = np.full(count, -1, column_dtype), np.zeros(count, row_dtype)
    for part in (slice(0, count // 3), slice(count // 3, None)):  # lines outlive a call
        partition_edges((rows[part], columns[part]), (shift, top, nodes), places, lines, out)
    drain_lines(places, lines, out)
    order = np.argsort(leaves, kind="stable")
    assert np.array_equal(out[0], columns[order])
    assert np.array_equal(out[1], (rows - firsts[leaves])[order])
    assert np.array_equal(places[2], starts + counts)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("span", [1, 3])
def test_items_follow_their_rows(dtype: type, span: int) -> None:
    rows = RNG.integers(0, 1024, 500)
    items = RNG.integers(0, 256, (500, span)).astype(dtype)
    leaves = np.array([naive_leaf(row) for row in rows.tolist()])
    counts = np.bincount(leaves, minlength=258)
    nexts = np.cumsum(counts) - counts
    out = np.zeros_like(items)
    partition_items(rows, table(), nexts, items, out)
    assert np.array_equal(out, items[np.argsort(leaves, kind="stable")])


def bucket(columns_below: int, count: int = 700) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = RNG.integers(0, 50, count).astype(np.uint16)
    return rows, RNG.integers(0, columns_below, count), np.full(50, -1, np.int64)


def naive_ends(rows: np.ndarray) -> np.ndarray:
    return np.cumsum(np.bincount(rows, minlength=50))


def test_columns_are_placed_by_row_in_order() -> None:
    rows, columns, ends = bucket(9)
    start_rows(rows, ends)
    assert np.array_equal(ends, naive_ends(rows) - np.bincount(rows, minlength=50))
    out = np.empty(700, np.int32)
    place_columns(rows, columns, ends, out)
    assert np.array_equal(out, columns[np.argsort(rows, kind="stable")])
    assert np.array_equal(ends, naive_ends(rows))


@pytest.mark.parametrize("columns_below", [1, 9, 2**31, 2**32])
def test_packed_records_sort_by_row_and_column(columns_below: int) -> None:
    rows, columns, _ = bucket(columns_below)
    rows[0], columns[0] = 2**16 - 1, columns_below - 1
    packed, found = np.empty(700, np.uint64), np.empty(700, np.int64)
    pack_records(rows, columns, packed)
    packed.sort()
    unpack_columns(packed, found)
    assert np.array_equal(found, columns[np.lexsort((columns, rows))])


@pytest.mark.parametrize("columns_below", [1, 9, 2**31, 2**32])
def test_digit_by_digit_records_come_in_the_order_of_row_and_column(columns_below: int) -> None:
    rows, columns, ends = bucket(columns_below)
    numbered, other = np.empty(700, np.uint64), np.empty(700, np.uint64)
    number_records(columns, numbered)
    for shift in (32, 43, 54):
        sort_by_digit(numbered, shift, np.empty(1 << 11, np.int64), other)
        numbered[:] = other
    order = np.lexsort((columns, rows))
    start_rows(rows, ends)
    found, positions = np.empty(700, np.int64), np.empty(700, np.int64)
    place_numbered(numbered, rows, ends, found, positions)
    assert np.array_equal(found, columns[order]) and np.array_equal(positions, order)
    assert np.array_equal(ends, naive_ends(rows))
    unpack_records(numbered, found, positions)
    assert np.array_equal(positions, np.argsort(columns, kind="stable"))
    assert np.array_equal(found, np.sort(columns))
