"""Finding and copying rows by id against a dict."""

from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.row_table import collect_ids, copy_held, enter_ids, list_missing

NONE = np.empty(0, np.int64)


def table_of(ids: np.ndarray, dtype: type = np.int32) -> np.ndarray:
    table = np.full((2 * ids.size + 1, 2), -1, dtype)
    enter_ids(table, ids)
    return table


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("held", [1, 7, 5000])
def test_held_rows_are_copied_and_the_others_listed(dtype: type, held: int) -> None:
    rng = np.random.default_rng(held)
    largest = 2**31 - 1 if dtype == np.int32 else 2**62
    known = np.unique(np.append(rng.integers(0, largest, held), largest - 1))
    rows = rng.integers(0, 2**32, (known.size, 3), dtype=np.uint32)
    ids = np.concatenate([rng.choice(known, 2000), rng.integers(0, largest, 500)])
    rng.shuffle(ids)
    places = rng.permutation(3000)[: ids.size]
    out = np.zeros((3000, 3), np.uint32)
    rest = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    missing = copy_held((table_of(known, dtype), rows), (ids, places), out, rest)
    expected, by_id = (
        np.zeros_like(out),
        {int(one): row for one, row in zip(known, rows, strict=True)},
    )
    left = []
    for one, place in zip(ids.tolist(), places.tolist(), strict=True):
        if one in by_id:
            expected[place] = by_id[one]
        else:
            left.append((one, place))
    assert np.array_equal(out, expected)
    assert list(zip(rest[0][:missing].tolist(), rest[1][:missing].tolist(), strict=True)) == left


def test_without_places_rows_go_in_order() -> None:
    rows = np.arange(6, dtype=np.uint8).reshape(3, 2)
    out = np.zeros((4, 2), np.uint8)
    rest = np.empty(4, np.int64), np.empty(4, np.int64)
    ids = np.array([30, 11, 10, 10])
    assert copy_held((table_of(np.array([10, 20, 30])), rows), (ids, NONE), out, rest) == 1
    assert out.tolist() == [[4, 5], [0, 0], [0, 1], [0, 1]]
    assert (rest[0][0], rest[1][0]) == (11, 1)


def test_without_a_table_the_first_rows_are_held() -> None:
    rows, none = np.array([[7], [8]], np.uint64), np.empty((0, 2), np.int32)
    ids, out = np.array([1, 2, 0, 9]), np.zeros((4, 1), np.uint64)
    rest = np.empty(4, np.int64), np.empty(4, np.int64)
    assert copy_held((none, rows), (ids, NONE), out, rest) == 2
    assert out[:, 0].tolist() == [8, 0, 7, 0]
    assert rest[0][:2].tolist() == [2, 9]
    assert list_missing(none, 2, ids, rest[0]) == 2
    assert rest[0][:2].tolist() == [2, 9]


def test_missing_ids_are_listed_in_order() -> None:
    known, rest = np.array([3, 5]), np.empty(5, np.int64)
    assert list_missing(table_of(known), 2, np.array([9, 3, 4, 5, 9]), rest) == 3
    assert rest[:3].tolist() == [9, 4, 9]


def test_distinct_ids_are_collected_in_order_of_discovery() -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 900, 500) for _ in range(3)]
    table, distinct = np.full((2001, 2), -1, np.int32), np.empty(1000, np.int64)
    found = 0
    for ids in lists:
        found = collect_ids(table, ids, distinct, found)
    assert distinct[:found].tolist() == list(dict.fromkeys(np.concatenate(lists).tolist()))


def test_collecting_stops_where_there_is_no_room() -> None:
    table, distinct = np.full((9, 2), -1, np.int64), np.empty(3, np.int64)
    assert collect_ids(table, np.array([1, 2, 1, 3, 3]), distinct, 0) == 3
    assert collect_ids(table, np.array([3, 2, 1]), distinct, 3) == 3
    assert collect_ids(table, np.array([1, 4]), distinct, 3) == -1


def test_what_finds_no_room_is_counted() -> None:
    table, rows = np.full((3, 2), -1), np.zeros((1, 1), np.uint8)
    enter_ids(table, np.array([7]))
    guard = np.full(8, 99)  # what lies behind lists without room
    rest = guard[:0], guard[4:5]
    wanted = np.array([1, 7, 2]), np.empty(0, np.int64)
    assert copy_held((table, rows), wanted, np.ones((3, 1), np.uint8), rest) == 2
    assert (guard == 99).all()
