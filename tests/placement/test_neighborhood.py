from __future__ import annotations

import pytest

from overspill.placement.neighborhood import GraphSize, bound_neighborhood

TO = ("n", "to", "n")
SMALL = GraphSize({"n": 100}, {TO: 1000})
BUYS, LIKED = ("user", "buys", "item"), ("item", "liked_by", "user")
SHOP = GraphSize({"user": 50, "item": 2000, "tag": 9}, {BUYS: 700, LIKED: 900})


@pytest.mark.parametrize(
    ("fan_outs", "replaced", "distinct", "expected"),
    [
        ([3, 2], False, True, (10 + 30 + 60, 90)),
        ([3, 200], False, True, (10 + 100, 1000)),  # no more nodes and edges than the graph has
        ([-1], False, True, (10 + 100, 1000)),
        ([-1], False, False, (10 + 100, 10_000)),  # a repeated seed draws its edges again
        ([-1, -1], False, True, (10 + 100, 1000)),
        ([0, 5], False, True, (10, 0)),
        ([5, 1000], True, True, (10 + 100, 50 + 50_000)),
    ],
)
def test_one_type(
    fan_outs: list[int], replaced: bool, distinct: bool, expected: tuple[int, int]
) -> None:
    bound = bound_neighborhood(
        {"n": 10}, {TO: fan_outs}, graph=SMALL, replace=replaced, distinct=distinct
    )
    assert (bound.num_nodes, bound.num_edges) == expected


def test_each_type_is_bounded_by_what_leads_to_it() -> None:
    fan_outs = {BUYS: [4, 3], LIKED: [5, 2]}
    bound = bound_neighborhood({"item": 6}, fan_outs, graph=SHOP, replace=False, distinct=True)
    # Items draw 24 users; these draw 48 items, and the second hop of items is empty.
    assert dict(bound.nodes) == {"user": 24, "item": 6 + 48, "tag": 0}
    assert dict(bound.edges) == {BUYS: 24, LIKED: 48}


def test_seeds_of_two_types() -> None:
    fan_outs = {BUYS: [4], LIKED: [-1]}
    bound = bound_neighborhood(
        {"item": 6, "user": 2}, fan_outs, graph=SHOP, replace=False, distinct=True
    )
    assert dict(bound.nodes) == {"user": 2 + 24, "item": 6 + 900, "tag": 0}
    assert dict(bound.edges) == {BUYS: 24, LIKED: 900}


def test_in_trees_every_node_may_come_again() -> None:
    bound = bound_neighborhood(
        {"n": 10}, {TO: [-1, -1]}, graph=SMALL, replace=False, distinct=False, trees=True
    )
    assert (bound.num_nodes, bound.num_edges) == (10 + 1000, 10_000)
    few = bound_neighborhood(
        {"n": 10}, {TO: [3, 90]}, graph=SMALL, replace=False, distinct=False, trees=True
    )
    assert (few.num_nodes, few.num_edges) == (10 + 1000, 30 + 2700)
    assert few.num_nodes <= bound.num_nodes
