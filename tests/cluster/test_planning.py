"""The model: tables worked out by hand, units, and that more never takes less."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from overspill.cluster.planning.disk import expected_pages, number_of_splits, part_bytes
from overspill.cluster.planning.neighborhood import expected_batch, expected_new, expected_picks
from overspill.cluster.planning.plan import Plan, plan
from overspill.cluster.planning.rates import ASSUMED, Rate, Rates
from overspill.cluster.planning.spans import Span
from overspill.cluster.planning.times import pages_of_row
from overspill.cluster.planning.traffic import owners_asked
from overspill.errors import InputError

GIB = 1 << 30
SMALL: dict[str, Any] = {
    "nodes": 1000,
    "edges": 10_000,
    "feature_bytes": 512,
    "machines": 4,
    "memory": "8GiB",
}
# A rate of one a second each: seconds are then bytes, edges and reads.
ONE = Rates(**{name: Rate(1.0, "given") for name in ASSUMED.to_json()})


def planned(**changes: Any) -> Plan:
    return plan(**{**SMALL, **changes})


def figures(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a plan's JSON, by its path."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield from figures(held, f"{path}/{name}")
    elif isinstance(value, list | tuple):
        for number, held in enumerate(value):
            yield from figures(held, f"{path}/{number}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


@pytest.mark.parametrize(
    ("nodes", "edges", "of_all", "expected"),
    [
        (10, 100, 100, 8 * 11 + 4 * 100 + 512 * 10 + 3 * 4096),
        (0, 0, 100, 8 + 3 * 4096),
        (10, 100, 2**31 - 1, 8 * 11 + 4 * 100 + 512 * 10 + 3 * 4096),
        (10, 100, 2**31, 8 * 11 + 8 * 100 + 512 * 10 + 3 * 4096),
    ],
)
def test_the_bytes_of_a_part(nodes: int, edges: int, of_all: int, expected: int) -> None:
    assert part_bytes(nodes, edges, nodes_of_all=of_all, feature_bytes=512) == expected


@pytest.mark.parametrize(
    ("fan_out", "degree", "expected"),
    [
        (-1, 7.5, 7.5),
        (0, 7.5, 0.0),
        (3, 0.0, 0.0),
        (1, 2.0, 1 - math.exp(-2)),  # one, unless there is none
        (2, 1.0, 2 - 3 * math.exp(-1)),  # P(D > 0) + P(D > 1)
        (10**6, 7.5, 7.5),
        (5, 10_000.0, 5.0),  # beyond what exp(-degree) can tell
    ],
)
def test_edges_that_a_node_gives(fan_out: int, degree: float, expected: float) -> None:
    assert expected_picks(fan_out, degree) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("drawn", "known", "nodes", "expected"),
    [
        (0, 3, 10, 0.0),
        (1, 3, 10, 0.7),
        (2, 0, 10, 1.9),  # 1 and then 9/10
        (5, 10, 10, 0.0),
        (9, 1, 1, 0.0),
    ],
)
def test_nodes_that_edges_find(drawn: int, known: int, nodes: int, expected: float) -> None:
    assert expected_new(drawn, known, nodes) == pytest.approx(expected)


@pytest.mark.parametrize("records", [0.5, 3.0, 700.0, 1024.0, 5000.0, 99_000.0, 101_000.0, 4e6])
def test_pages_that_a_random_number_of_records_takes(records: float) -> None:
    drawn = np.random.default_rng(0).poisson(records, 200_000)
    assert expected_pages(records, 512) == pytest.approx(np.ceil(drawn / 512).mean(), rel=0.01)


@pytest.mark.parametrize(
    ("edges", "machines", "splits"),
    [
        (0, 4, 0),
        (1000, 4, 1),  # no split is tiny
        (32 << 20, 4, 8),  # of 512 MiB, one for each of 8 processors
        (1 << 32, 4, 64),  # of 64 GiB, none of more than a GiB
    ],
)
def test_splits_of_the_input(edges: int, machines: int, splits: int) -> None:
    assert number_of_splits(planned(edges=edges, machines=machines).work, cores=2) == splits


@pytest.mark.parametrize(
    ("nodes", "owners", "expected"),
    [(0.5, 1, 0.5), (7, 1, 1), (7, 0, 0), (2, 2, 1.5), (1e6, 15, 15)],
)
def test_owners_that_are_asked(nodes: float, owners: int, expected: float) -> None:
    assert owners_asked(nodes, owners) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row_bytes", "pages"), [(0, 0), (512, 1), (4096, 1), (8192, 2), (6, 1 + 4 / 4096), (1024, 1)]
)
def test_pages_of_a_row(row_bytes: int, pages: float) -> None:
    # Of every 4096 rows of 6 bytes, the starts of which are even, so many cross into a next page.
    starts = [(row * row_bytes) % 4096 for row in range(4096)] if row_bytes else []
    touched = [(start + row_bytes - 1) // 4096 + 1 for start in starts]
    assert pages_of_row(row_bytes) == pytest.approx(pages)
    assert pages_of_row(row_bytes) == pytest.approx(sum(touched) / max(1, len(touched)))


def test_a_span_lies_between_its_longest_part_and_their_sum() -> None:
    span = Span(stage="build", disk=3.0, network=1.0, processor=2.0)
    assert (span.least, span.most, span.bottleneck) == (3.0, 6.0, "disk")
    assert (span.times(2).least, span.times(2).most) == (6.0, 12.0)
    told = span.to_json()
    assert told["least_seconds"] == 3.0 and told["network_seconds"] == 1.0


def test_one_machine_talks_to_nobody() -> None:
    flow = planned(machines=1).network
    assert (flow.build_bytes, flow.batch_bytes, flow.batch_requests, flow.batch_rounds) == (
        0,
        0,
        0,
        0,
    )
    assert planned(machines=1).epoch.network == 0


def test_what_is_local_is_not_asked_for() -> None:
    assert planned(local_share=1.0).network.batch_bytes == 0
    half, none = planned(local_share=0.5), planned(local_share=0.0)
    assert half.network.batch_bytes == pytest.approx(none.network.batch_bytes / 2)
    assert planned().network.batch_bytes == pytest.approx(0.75 * none.network.batch_bytes)


def test_rows_come_from_the_machine_that_has_their_files() -> None:
    flow = planned().network
    assert flow.build_rows_bytes == 1000 * 512 * 3 / 4
    assert planned(rows_everywhere=True).network.build_rows_bytes == 0
    shared = planned(shared_disk=True)
    assert shared.network.build_bytes == 0 == shared.disk.fetched_bytes
    assert planned().disk.fetched_bytes == flow.build_staged_bytes > 0
    assert shared.disk.input_bytes == 2500 * 16 + 250 * 512
    assert planned().disk.input_bytes == 2500 * 16 + 1000 * 512


def test_large_answers_come_in_pieces() -> None:
    # 2**16 nodes of the other machine, a fan-out of 32: two answers of 2**20 edges; then rows.
    held = planned(
        nodes=10**9,
        edges=10**12,
        machines=2,
        local_share=0.0,
        num_neighbors=[2, 32],
        batch_size=1 << 15,
        feature_bytes=1,
    )
    assert held.batch.hops[1].frontier == pytest.approx(1 << 16, rel=1e-3)
    assert held.batch.hops[1].edges == pytest.approx(1 << 21, rel=1e-3)
    assert held.network.batch_rounds == 2 and held.network.batch_requests == 3
    wide = planned(**{**held_options(held), "feature_bytes": 512})
    assert wide.network.batch_requests == 2 + math.ceil(wide.network.batch_row_bytes / (8 << 20))


def held_options(held: Plan) -> dict[str, Any]:
    work = held.work
    names = ("nodes", "edges", "machines", "local_share", "num_neighbors", "batch_size")
    return {name: getattr(work, name) for name in names}


@pytest.mark.parametrize("more", ["nodes", "edges", "feature_bytes", "seeds", "batch_size"])
def test_more_never_takes_less(more: str) -> None:
    base = {**SMALL, "seeds": 200, "batch_size": 50, "num_neighbors": [4, 4]}
    parts = ["disk", "memory", "network", "build", "epoch"]
    if more == "batch_size":  # of larger batches there are fewer, with fewer nodes in all
        parts = ["disk", "memory", "build"]
    for factor in (2, 4, 64):  # of other numbers of nodes, blocks are padded more or less
        grown = {**base, more: base[more] * factor}
        if more == "nodes":  # with as many edges each: batches may get smaller with the degree
            grown["edges"] = base["edges"] * factor
        before, after = plan(**base).to_json(), plan(**grown).to_json()
        for part in parts:
            least, most = dict(figures(before[part])), dict(figures(after[part]))
            for path, value in least.items():
                if path == "/cached_share":
                    assert most[path] <= value
                else:
                    assert most[path] >= value * (1 - 1e-12), (part, path)


def test_more_machines_never_hold_more() -> None:
    plans = [planned(nodes=10**6, edges=10**7, machines=count) for count in (1, 2, 3, 8, 64)]
    for one, other in itertools.pairwise(plans):
        assert other.disk.peak_bytes <= one.disk.peak_bytes
        assert other.disk.dataset_bytes <= one.disk.dataset_bytes
        assert other.memory.cached_share >= one.memory.cached_share
        assert other.network.batches <= one.network.batches
        assert other.network.batch_bytes > one.network.batch_bytes


@pytest.mark.parametrize(
    ("rate", "resource"),
    [
        ("disk_read", "disk"),
        ("network", "network"),
        ("cores", "processor"),
        ("split_edges", "processor"),
        ("build_edges", "processor"),
    ],
)
def test_a_faster_machine_builds_in_less_time(rate: str, resource: str) -> None:
    faster = ONE.having("measured", **{rate: 2.0})
    slow, fast = planned(rates=ONE), planned(rates=faster)
    total = [sum(getattr(span, resource) for span in one.build) for one in (slow, fast)]
    assert total[1] < total[0]
    for one, other in zip(slow.build, fast.build, strict=True):
        others = {name: value for name, value in one.parts.items() if name != resource}
        assert others == {name: other.parts[name] for name in others}


def test_seconds_are_amounts_over_rates() -> None:
    held = planned(rates=ONE, memory=1, local_share=0.0)  # nothing is cached
    _init, partition, rows, fetched, built = held.build
    share, disk, flow = 10_000 // 4, held.disk, held.network
    assert partition.disk == share * 16 + disk.staged_bytes
    assert partition.processor == share / (disk.splits / 4)  # one split: one machine stages it all
    assert rows.disk == 1000 * 512 + 250 * 512  # all read by the one that has them, its own written
    assert rows.network == flow.build_rows_bytes == rows.processor - 250 * 512
    assert fetched.disk == 2 * disk.fetched_bytes and fetched.network == disk.fetched_bytes
    assert built.disk == disk.staged_bytes + disk.dataset_bytes - 250 * 512
    assert built.processor == share
    assert held.epoch.network == flow.batches * flow.batch_bytes
    assert held.memory.cached_share == 0
    pages = held.epoch.disk / flow.batches
    assert pages > held.batch.nodes + sum(hop.frontier for hop in held.batch.hops)
    ten = planned(rates=ONE.having("given", random_reads=10.0), memory=1, local_share=0.0)
    assert ten.epoch.disk == pytest.approx(held.epoch.disk / 10)


def test_parts_beyond_machines_and_machines_beyond_parts() -> None:
    uneven = planned(parts=5)  # one machine has two
    assert uneven.disk.dataset_bytes == pytest.approx(
        planned(parts=4).disk.dataset_bytes * 1.6, rel=0.1
    )
    many = planned(parts=40).disk
    assert many.copies_bytes == pytest.approx(many.fetched_bytes / 10, rel=1e-3)
    assert many.peak_bytes == max(
        many.staged_bytes + many.reserved_bytes,
        many.staged_bytes + many.copies_bytes + many.dataset_bytes,
    )
    few = planned(parts=2)
    assert any("2 of 4 machines have no part" in line for line in few.findings())
    assert planned().findings() == []


def test_memory_that_does_not_do_is_told() -> None:
    found = planned(memory="1GiB")
    assert not found.memory.fits
    assert any("build wants" in line and "1.0 GiB" in line for line in found.findings())


def test_rates_tell_where_they_come_from() -> None:
    rates = ASSUMED.having("measured", disk_read=2e9, cores=8).having(
        "given", network=1e10, cores=None
    )
    assert rates.cores == Rate(8.0, "measured") and rates.network == Rate(1e10, "given")
    assert rates.disk_write == ASSUMED.disk_write
    sources = rates.by_source()
    assert sources["measured"] == ["cores", "disk_read"] and sources["given"] == ["network"]
    assert planned(rates=rates).to_json()["rates"]["network"] == {"value": 1e10, "source": "given"}


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1"])
def test_what_is_no_rate_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="network"):
        ASSUMED.having("given", network=value)
    with pytest.raises(InputError, match="one of: cores"):
        ASSUMED.having("given", speed=1.0)


@pytest.mark.parametrize("name", ["disk_read", "network", "transport"])
def test_a_rate_of_bytes_that_lacks_its_unit_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=3 is 3 B a second.*1.0 MiB.*3GB"):
        ASSUMED.having("given", **{name: 3})
    assert getattr(ASSUMED.having("given", **{name: 1 << 20}), name).value == 1 << 20
    assert ASSUMED.having("given", random_reads=3).random_reads.value == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", 0),
        ("nodes", 1.5),
        ("nodes", math.nan),
        ("nodes", 2**60),
        ("edges", -1),
        ("machines", 0),
        ("machines", True),
        ("memory", "much"),
        ("memory", 0),
        ("parts", 0),
        ("feature_bytes", -1),
        ("num_neighbors", []),
        ("num_neighbors", [-2]),
        ("batch_size", 0),
        ("seeds", 0),
        ("workers", 0),
        ("local_share", 1.1),
        ("build_memory", "-1"),
    ],
)
def test_what_cannot_be_planned_for_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        planned(**{name: value})


def test_counts_may_be_written_as_floats() -> None:
    held = plan(1e9, 1e10, feature_bytes=512, machines=16, memory="64GiB")
    assert repr(held) == "Plan(1,000,000,000 nodes, 10,000,000,000 edges, 16 machines)"
    nodes, edges = 62_500_000, 625_000_000
    part = 8 * (nodes + 1) + 4 * edges + 512 * nodes + 3 * 4096
    assert held.disk.dataset_bytes == part
    # Every other machine staged as much for it; copies are of one part at a time.
    assert held.disk.fetched_bytes == pytest.approx(held.disk.staged_bytes * 15 / 16, rel=1e-6)
    assert held.disk.staged_bytes == pytest.approx(8 * edges, rel=0.02)
    assert held.disk.peak_bytes == part + held.disk.staged_bytes + held.disk.fetched_bytes
    assert held.work.seeds == 10**7 and held.work.local_share == 1 / 16
    wide = plan(2**31, 1e10, feature_bytes=0, machines=1, memory="64GiB")
    assert wide.disk.dataset_bytes == 8 * (2**31 + 1) + 8 * 10**10 + 2 * 4096


def test_a_batch_has_no_more_nodes_than_the_graph() -> None:
    batch = expected_batch(replace(planned().work, seeds=10**6, batch_size=10**6))
    assert batch.nodes == pytest.approx(1000)
    assert batch.hops[0].frontier == 1000
