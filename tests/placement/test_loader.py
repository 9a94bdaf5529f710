from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overspill.errors import NoRoomError
from overspill.placement.loader import (
    FORKED_WORKER_BYTES,
    SPAWNED_WORKER_BYTES,
    LoaderDemand,
    LoaderRoom,
    bound_neighborhood,
    plan_loader,
)

MIB = 1 << 20
DEMAND = LoaderDemand(
    workers=2,
    spawned=False,
    prefetch_factor=4,
    pinned=False,
    nodes=100_000,
    edges=150_000,
    seeds=512,
    row_bytes=512,
)
ROOM = LoaderRoom(
    base_bytes=300 * MIB,
    available_bytes=8192 * MIB,
    limit_bytes=None,
    reserve_bytes=128 * MIB,
    shm_bytes=4096 * MIB,
)


def room_for(demand: LoaderDemand, spare: int = 0) -> LoaderRoom:
    limit = ROOM.base_bytes + ROOM.reserve_bytes + demand.extra_bytes + spare
    return replace(ROOM, limit_bytes=limit)


def test_what_fits_keeps_its_prefetch() -> None:
    plan = plan_loader(DEMAND, ROOM)
    assert plan.prefetch_factor == 4
    assert plan.projected_bytes == ROOM.base_bytes + DEMAND.extra_bytes <= plan.allowed_bytes
    assert (plan.nodes, plan.edges) == (100_000, 150_000)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_prefetch_is_lowered_to_the_last_byte(factor: int) -> None:
    demand = replace(DEMAND, prefetch_factor=factor)
    plan = plan_loader(DEMAND, room_for(demand))
    assert plan.prefetch_factor == factor
    assert plan.projected_bytes == plan.allowed_bytes
    assert "prefetch_factor 4 would take" in plan.reason
    if factor > 1:
        assert plan_loader(DEMAND, room_for(demand, -1)).prefetch_factor == factor - 1


def test_what_does_not_fit_is_refused_with_figures_and_remedy() -> None:
    least = replace(DEMAND, prefetch_factor=1)
    with pytest.raises(NoRoomError, match="num_workers=0") as caught:
        plan_loader(DEMAND, room_for(least, -1))
    needed, there = caught.value.needed_bytes, caught.value.available_bytes
    assert needed == ROOM.base_bytes + least.extra_bytes
    assert needed is not None and there == needed - 1
    remedied = replace(ROOM, limit_bytes=needed + ROOM.reserve_bytes)
    assert plan_loader(DEMAND, remedied).prefetch_factor == 1


def test_shared_memory_bounds_the_batches_in_flight() -> None:
    two = replace(DEMAND, prefetch_factor=2)
    assert plan_loader(DEMAND, replace(ROOM, shm_bytes=two.shm_bytes)).prefetch_factor == 2
    with pytest.raises(NoRoomError, match=r"/dev/shm.*shm-size"):
        plan_loader(DEMAND, replace(ROOM, shm_bytes=64 * MIB))
    alone = replace(DEMAND, workers=0)
    assert plan_loader(alone, replace(ROOM, shm_bytes=0)).prefetch_factor == 4
    assert plan_loader(DEMAND, replace(ROOM, shm_bytes=None)).prefetch_factor == 4


def test_the_tighter_of_limit_and_headroom_decides() -> None:
    assert replace(ROOM, limit_bytes=1000 * MIB).allowed_bytes == 872 * MIB
    tight = replace(ROOM, limit_bytes=1000 * MIB, available_bytes=500 * MIB)
    assert tight.allowed_bytes == 672 * MIB
    assert replace(ROOM, limit_bytes=MIB).allowed_bytes == 0


def test_workers_are_counted_with_what_they_start_with() -> None:
    forked = DEMAND.extra_bytes
    assert replace(DEMAND, spawned=True).extra_bytes - forked == 2 * (
        SPAWNED_WORKER_BYTES - FORKED_WORKER_BYTES
    )
    assert replace(DEMAND, pinned=True).extra_bytes - forked == DEMAND.batch_bytes


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
def test_the_bound_of_a_neighbourhood(
    fan_outs: list[int], replaced: bool, distinct: bool, expected: tuple[int, int]
) -> None:
    bound = bound_neighborhood(10, fan_outs, graph=(100, 1000), replace=replaced, distinct=distinct)
    assert bound == expected


@given(
    limit=st.integers(0, 4096),
    shm=st.integers(0, 4096),
    nodes=st.integers(0, 10**6),
    workers=st.integers(0, 8),
    prefetch=st.integers(1, 8),
)
def test_a_plan_never_exceeds_what_there_is(
    limit: int, shm: int, nodes: int, workers: int, prefetch: int
) -> None:
    room = replace(ROOM, limit_bytes=limit * MIB, shm_bytes=shm * MIB)
    demand = replace(DEMAND, nodes=nodes, workers=workers, prefetch_factor=prefetch)
    try:
        plan = plan_loader(demand, room)
    except NoRoomError as error:
        assert error.needed_bytes is not None and error.available_bytes is not None
        assert error.needed_bytes > error.available_bytes
        return
    assert plan.projected_bytes <= plan.allowed_bytes <= max(limit * MIB, 0)
    assert 1 <= plan.prefetch_factor <= prefetch
    chosen = replace(demand, prefetch_factor=plan.prefetch_factor)
    assert chosen.shm_bytes <= shm * MIB
