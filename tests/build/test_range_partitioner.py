from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naive import TINY
from overspill.build.passes import spool
from overspill.build.passes.partition import UNBOUNDED, RangePartitioner, block_payload_bytes
from overspill.build.passes.spool import Blocks
from overspill.errors import DiskRefusedError, StaleFileError
from overspill.linux.direct import aligned_bytes

PAGES = replace(TINY, block_bytes=3 << 12)  # whole pages, with ids or without


def edges_of(blocks: Blocks) -> dict[int, list[tuple[int, ...]]]:
    """The edges of each range, read as a bucket is; in their order within each target."""
    _, edges, rooms = blocks.by_range()
    memory = aligned_bytes(int(rooms.sum()))
    segments = blocks.start_read(memory, lambda act: act())
    assert [len(records) for _, records in segments] == edges.tolist()
    return {key: by_target([tuple(edge) for edge in part.tolist()]) for key, part in segments}


def by_target(edges: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return sorted(edges, key=lambda edge: edge[1])


def in_ranges(edges: np.ndarray, shift: int, base: int = 0) -> dict[int, list[tuple[int, ...]]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    for edge in edges.T.tolist():
        edge[1] += base
        found.setdefault(edge[1] - base >> shift, []).append(tuple(edge))
    return {key: by_target(some) for key, some in sorted(found.items())}


def random_edges(count: int, most: int, seed: int = 0, columns: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most, (columns, count))


def partition(path: Path, edges: np.ndarray, plan: Any = TINY, **options: Any) -> RangePartitioner:
    made = RangePartitioner(path, plan, edge_ids=len(edges) == 3, **options)
    assert made.add(*edges[:, :0]) == 0
    for start in range(0, edges.shape[1], 70):
        assert made.add(*edges[:, start : start + 70]) == edges[:, start : start + 70].shape[1]
    return made


@pytest.mark.parametrize("plan", [TINY, PAGES], ids=["part of a page", "pages"])
@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("limit", [UNBOUNDED, 2**40, 10**6], ids=["unknown", "wide", "narrow"])
@pytest.mark.parametrize("most", [1, 3, 100, 10**6])
def test_every_edge_is_kept_in_its_range_in_order(
    tmp_path: Path, plan: Any, columns: int, limit: int, most: int
) -> None:
    edges = random_edges(5000, most, columns=columns)
    last = most if limit < UNBOUNDED else 1
    with partition(
        tmp_path / "spool",
        edges,
        plan,
        id_limits=(limit, limit),
        last_target=last,
        hubs="whole",
    ) as partitioner:
        blocks = partitioner.finish()
        assert blocks.edges == 5000 and blocks.has_wide == (limit == 2**40)
        found, hubs = edges_of(blocks), {hub.first_range: hub.target for hub in blocks.hubs}
        assert partitioner.largest_source == edges[0].max()
        assert partitioner.largest_target == edges[1].max()
    wanted = in_ranges(edges, blocks.shift)
    for first, target in hubs.items():
        own = found.pop(first)
        assert own == [edge for edge in map(tuple, edges.T.tolist()) if edge[1] == target]
        key = target >> blocks.shift
        wanted[key] = [edge for edge in wanted[key] if edge[1] != target]
    assert found == {key: some for key, some in wanted.items() if some}
    assert list(tmp_path.iterdir()) == []


def test_targets_that_grow_widen_the_ranges(tmp_path: Path) -> None:
    edges = np.array([np.arange(40), [2**power for power in range(40)]])
    with partition(tmp_path / "spool", edges) as partitioner:
        blocks = partitioner.finish()
        assert blocks.shift == partitioner.shift == 38
        assert edges_of(blocks) == in_ranges(edges, 38)


@pytest.mark.parametrize("plan", [TINY, PAGES], ids=["part of a page", "pages"])
@pytest.mark.parametrize("value", [2**31 - 1, 2**31])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_an_id_beyond_31_bits_makes_later_blocks_wide(
    tmp_path: Path, plan: Any, column: int, value: int
) -> None:
    edges = np.stack([np.arange(60), np.arange(60)[::-1], np.arange(60)])
    edges[column, 30] = value
    with partition(tmp_path / "spool", edges, plan) as partitioner:
        blocks = partitioner.finish()
        assert blocks.has_wide and not blocks._wide.all()
        assert edges_of(blocks) == in_ranges(edges, blocks.shift)


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("value", [-1, 50, 2**31, 2**62, -(2**63), 2**63 - 1])
def test_an_id_out_of_range_is_not_taken(tmp_path: Path, column: int, value: int) -> None:
    edges = random_edges(60, 50)
    edges[column, 33] = value
    limits = (50, 70) if column == 0 else (70, 50)
    with RangePartitioner(
        tmp_path / "spool", TINY, id_limits=limits, last_target=50
    ) as partitioner:
        assert partitioner.add(*edges) == 33


@pytest.mark.parametrize("value", [-1, 2**62])
def test_an_edge_id_out_of_range_is_not_taken(tmp_path: Path, value: int) -> None:
    edges = random_edges(60, 50, columns=3)
    edges[2, 33] = value
    with RangePartitioner(tmp_path / "spool", TINY, edge_ids=True) as partitioner:
        assert partitioner.add(*edges) == 33
        with pytest.raises(ValueError, match="edge ids"):
            partitioner.add(*edges[:2])


@pytest.mark.parametrize("sort", [True, False])
def test_a_hub_in_the_first_edges_has_ranges_of_its_own(tmp_path: Path, sort: bool) -> None:
    plan = replace(TINY, ranges=16)
    edges = np.stack([np.arange(400) * 7 % 400, np.arange(400)])
    edges[1, ::2] = 333
    with RangePartitioner(
        tmp_path / "spool",
        plan,
        id_limits=(400, 400),
        last_target=400,
        hubs="by source" if sort else "whole",
    ) as partitioner:
        partitioner.add(*edges)
        blocks = partitioner.finish()
        (hub,) = blocks.hubs
        found = edges_of(blocks)
    assert (hub.target, hub.ranges, blocks.by_source) == (333, 8 if sort else 1, sort)
    own = [found.pop(key) for key in sorted(found) if key >= hub.first_range]
    assert len(own) == len([first for first in range(0, 400, 1 << hub.shift)][: hub.ranges])
    for place, some in enumerate(own):
        low, high = place << hub.shift, (place + 1) << hub.shift
        assert all(target == 333 and (low <= source < high) for source, target in some)
    assert sum(map(len, own)) == np.count_nonzero(edges[1] == 333)
    assert all(target != 333 for some in found.values() for _, target in some)


def test_sources_beyond_those_expected_go_to_the_last_range(tmp_path: Path) -> None:
    with RangePartitioner(tmp_path / "spool", TINY, hubs="by source") as partitioner:
        assert partitioner.give_hub(5, 10, 17, 4)
        assert not partitioner.give_hub(5, 10, 17, 1)
        assert partitioner.add(np.array([10, 12, 17, 900]), np.full(4, 5)) == 4
        found = edges_of(partitioner.finish())
    assert [[source for source, _ in some] for some in found.values()] == [[10], [12], [17, 900]]


@pytest.mark.parametrize("plan", [TINY, PAGES], ids=["part of a page", "pages"])
def test_the_same_edges_give_the_same_spool(tmp_path: Path, plan: Any) -> None:
    tables, edges = [], random_edges(9000, 1000)
    for name in ("one", "two"):
        with partition(tmp_path / name, edges, plan) as partitioner:
            blocks = partitioner.finish()
            size = (tmp_path / name).stat().st_size
            assert size == 9000 * 8 if plan is TINY else size % 4096 == 0
            tables.append((blocks.ranges.tolist(), edges_of(blocks)))
    assert tables[0] == tables[1]


def test_a_spool_cut_meanwhile_is_an_error(tmp_path: Path) -> None:
    with partition(tmp_path / "spool", random_edges(100, 10)) as partitioner:
        blocks = partitioner.finish()
        with (tmp_path / "spool").open("r+b") as file:
            file.truncate(400)
        with pytest.raises(StaleFileError, match="cut"):
            blocks.read()


@pytest.mark.parametrize("block_bytes", [16, 24, 64, 4096, 12288, 32768, 65536])
@pytest.mark.parametrize("columns", [2, 3])
def test_blocks_hold_whole_records_of_either_width(block_bytes: int, columns: int) -> None:
    payload = block_payload_bytes(block_bytes, columns)
    assert payload % (8 * columns) == 0 and payload <= max(block_bytes, 24)
    if block_bytes >= 3 << 12:
        assert payload % 4096 == 0 and payload > block_bytes * 0.7


def test_without_direct_writes_the_cache_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = random_edges(9000, 1000)
    monkeypatch.setattr(spool, "set_direct", lambda fd, on: False)
    with partition(tmp_path / "spool", edges, PAGES) as partitioner:
        assert edges_of(partitioner.finish()) == in_ranges(edges, partitioner.shift)


def refuse(first: int, number: int) -> Any:
    """Stands for a vectored call: this file system takes no direct one, or writes short."""
    calls = []

    def act(fd: int, buffers: Any, offset: int) -> int:
        calls.append(fd)
        if len(calls) > first:
            raise OSError(number, "refused")
        return 4096 * 2

    return act


@pytest.mark.parametrize("number", [22, 28])
def test_direct_writes_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    edges = random_edges(9000, 1000)
    monkeypatch.setattr("os.pwritev", refuse(0, number))
    if number == 28:
        with pytest.raises(DiskRefusedError), RangePartitioner(tmp_path / "s", PAGES) as made:
            made.add(*edges)
            made.finish()
    else:
        with partition(tmp_path / "s", edges, PAGES) as made:
            assert edges_of(made.finish()) == in_ranges(edges, made.shift)
    assert list(tmp_path.iterdir()) == []


def test_ranges_may_start_elsewhere(tmp_path: Path) -> None:
    edges = random_edges(100, 40) + 1000
    with partition(tmp_path / "spool", edges, base=1000, last_target=1040) as partitioner:
        assert partitioner.add(np.array([5]), np.array([999])) == 0
        found = edges_of(partitioner.finish())
        assert found == in_ranges(edges - [[0], [1000]], partitioner.shift, base=1000)
