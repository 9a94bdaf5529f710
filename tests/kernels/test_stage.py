"""Edges are staged for the part that owns their target, in order; checked against plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from overspill.build.parting.split_owners import HashOwners, Owners, RangeOwners, equal_ranges
from overspill.build.parting.staged_edges import StageSizes, parts_table
from overspill.kernels.open_blocks import FREE, FULL
from overspill.kernels.stage import find_parts, stage_edges
from parted import splitmix64

OWNERS = [
    equal_ranges(1000, 3),
    equal_ranges(5, 8),
    RangeOwners(np.array([0, 0, 7, 7, 1000, 1000])),
    equal_ranges(1 << 40, 5),
    HashOwners(1000, 4),
]


def part_of(owners: Owners, node: int) -> int:
    if isinstance(owners, RangeOwners):
        return next(
            part
            for part in range(owners.num_parts)
            if owners.bounds[part] <= node < owners.bounds[part + 1]
        )
    return splitmix64(node) % owners.num_parts


@pytest.mark.parametrize("owners", OWNERS, ids=str)
def test_every_node_has_its_part(owners: Owners) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, owners.count, 200)
    ids[:2] = 0, owners.count - 1
    found = np.empty(200, np.int64)
    find_parts(ids, parts_table(owners, StageSizes.of(owners.num_parts)), found)
    assert found.tolist() == [part_of(owners, node) for node in ids.tolist()]


@pytest.mark.parametrize("owners", OWNERS, ids=str)
@pytest.mark.parametrize("with_ids", [False, True])
def test_edges_go_to_their_parts_ranges_in_order(owners: Owners, with_ids: bool) -> None:
    rng = np.random.default_rng(1)
    count, sizes = 500, StageSizes(8, 4096)
    edges = [rng.integers(0, owners.count, count) for _ in range(2)] + [np.arange(count)]
    opened = owners.num_parts * sizes.ranges
    pool = np.zeros((opened + 1, count, 3 if with_ids else 2), np.int64)
    fill = np.zeros(opened, np.int64)
    tables = np.arange(opened), fill, np.array([opened]), np.zeros(1), np.zeros(1)
    ids = edges[2] if with_ids else np.empty(0, np.int64)
    table = parts_table(owners, sizes)
    limits = owners.count, owners.count, count
    state = np.array([1, 0])
    taken = stage_edges(
        (edges[0], edges[1], ids, 0),
        limits,
        table,
        pool,
        tuple(held.astype(np.int64) if held is not fill else fill for held in tables),
        state,
    )
    assert taken == count and (state[FREE], state[FULL]) == (1, 0)
    found: dict[int, list[tuple[int, ...]]] = {}
    for source, target, number in zip(*(held.tolist() for held in edges), strict=True):
        part = part_of(owners, target)
        local = target
        if isinstance(owners, RangeOwners):
            local -= int(owners.bounds[part])
        rows = owners.nodes[part] if isinstance(owners, RangeOwners) else owners.count
        place = part * sizes.ranges + (local >> sizes.shift(rows))
        record = (source, local, number) if with_ids else (source, local)
        found.setdefault(place, []).append(record)
    for place in range(opened):
        held = [tuple(record) for record in pool[place, : fill[place]].tolist()]
        assert held == found.get(place, [])


@pytest.mark.parametrize("wrong", [(-1, 0), (0, -1), (10, 0), (0, 10)])
def test_an_id_that_is_no_nodes_stops_the_loop(wrong: tuple[int, int]) -> None:
    owners, sizes = equal_ranges(10, 2), StageSizes(1, 4096)
    sources, targets = (np.array([3, end, 4]) for end in wrong)
    pool = np.zeros((3, 8, 2), np.int32)
    tables = tuple(np.array(held) for held in ([0, 1], [0, 0], [2], [0], [0]))
    taken = stage_edges(
        (sources, targets, np.empty(0, np.int64), 0),
        (10, 10, 0),
        parts_table(owners, sizes),
        pool,
        tables,
        np.array([1, 0]),
    )
    assert taken == 1
