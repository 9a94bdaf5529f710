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
    ReadingCost,
    RowsOfType,
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
    reading=ReadingCost(block_items=1 << 20, item_bytes=48, id_bytes=0, fixed_bytes=12 << 20),
    node_rows=(RowsOfType(100_000, 512),),
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
    assert "prefetch_factor 4 would take" in plan.reason and "of it in /dev/shm" in plan.reason
    alone = replace(demand, workers=0)
    told = plan_loader(replace(alone, prefetch_factor=4), room_for(alone)).reason
    assert "would take" in told and "/dev/shm" not in told
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


def test_rows_of_types_are_counted_at_their_worst() -> None:
    rows = (RowsOfType(10, 100), RowsOfType(1000, 8), RowsOfType(40, 16))
    mixed = replace(DEMAND, node_rows=rows, nodes=60, edge_rows=(RowsOfType(500, 4),), edges=200)
    assert mixed.row_bytes == 10 * 100 + 40 * 16 + 10 * 8 + 200 * 4
    assert replace(mixed, both_ways=True).row_bytes == mixed.row_bytes + 200 * 4
    assert replace(mixed, nodes=5).row_bytes == 5 * 100 + 800


def test_what_a_batch_holds_beside_its_rows() -> None:
    bare = replace(DEMAND, node_rows=())
    assert bare.batch_bytes == 100_000 * 8 + 150_000 * 24 + 512 * 8
    assert replace(bare, trees=True).batch_bytes == bare.batch_bytes + 100_000 * 8
    assert replace(bare, both_ways=True).batch_bytes == bare.batch_bytes + 150_000 * 24
    assert replace(bare, seed_bytes=100).batch_bytes == bare.batch_bytes + 512 * 92


@pytest.mark.parametrize("harder", ["trees", "ranked", "both_ways"])
def test_harder_sampling_takes_more(harder: str) -> None:
    assert replace(DEMAND, **{harder: True}).sampler_bytes > DEMAND.sampler_bytes + (6 << 20)
    assert replace(DEMAND, id_bytes=8).sampler_bytes > DEMAND.sampler_bytes


def test_a_second_group_is_read_meanwhile_where_it_fits() -> None:
    batch = DEMAND.row_bytes
    one = replace(DEMAND, lookahead=16, read_together_bytes=16 * batch)
    two = replace(one, groups=2)
    assert two.group_bytes == 2 * one.group_bytes
    assert two.extra_bytes - one.extra_bytes == DEMAND.workers * (
        one.group_bytes + DEMAND.sampler_bytes
    )
    plan = plan_loader(two, room_for(two))
    assert (plan.groups, plan.read_together_bytes) == (2, 16 * batch)
    assert plan_loader(two, room_for(replace(one, read_together_bytes=batch))).groups == 1


def test_two_groups_share_the_room_down_to_an_eighth_of_their_buffers() -> None:
    batch = DEMAND.row_bytes
    two = replace(DEMAND, lookahead=16, read_together_bytes=16 * batch, groups=2)
    plan = plan_loader(two, room_for(two, -1))
    assert (plan.groups, plan.read_together_bytes) == (2, 8 * batch)
    least = replace(two, read_together_bytes=2 * batch)
    plan = plan_loader(two, room_for(least))
    assert (plan.groups, plan.read_together_bytes) == (2, 2 * batch)
    plan = plan_loader(two, room_for(least, -1))
    assert (plan.groups, plan.prefetch_factor) == (1, DEMAND.prefetch_factor)
    assert plan.read_together_bytes >= 2 * batch


def test_the_buffer_for_reading_together_shrinks_before_the_prefetch() -> None:
    batch = DEMAND.row_bytes
    together = replace(DEMAND, lookahead=16, read_together_bytes=16 * batch)
    assert plan_loader(together, ROOM).read_together_bytes == 16 * batch
    quarter = replace(together, read_together_bytes=4 * batch)
    plan = plan_loader(together, room_for(quarter))
    assert (plan.prefetch_factor, plan.read_together_bytes) == (4, 4 * batch)
    least = replace(together, read_together_bytes=batch)
    assert plan_loader(together, room_for(least)).read_together_bytes == batch
    plan = plan_loader(together, room_for(least, -1))
    assert plan.prefetch_factor == 3 and plan.read_together_bytes >= batch
    assert together.group_bytes == 16 * (batch + DEMAND.sample_bytes + 512 * 8)
    assert DEMAND.group_bytes == 0


def test_without_workers_batches_made_ahead_go_down_to_none() -> None:
    alone = replace(DEMAND, workers=0, prefetch_factor=3)
    assert alone.batches == 5 and alone.shm_bytes == 0
    none = replace(alone, prefetch_factor=0)
    assert plan_loader(alone, room_for(none)).prefetch_factor == 0
    with pytest.raises(NoRoomError):
        plan_loader(alone, room_for(none, -1))


def test_reading_is_counted_by_blocks_and_in_every_process() -> None:
    cost = ReadingCost(block_items=1000, item_bytes=32, id_bytes=16, fixed_bytes=500)
    assert cost.most_bytes(10) == 10 * 48 + 500
    assert cost.most_bytes(5000) == 1000 * 32 + 5000 * 16 + 500
    more = replace(DEMAND.reading, fixed_bytes=DEMAND.reading.fixed_bytes + 100, id_bytes=16)
    grown = replace(DEMAND, reading=more)
    # The edges of a hop are the most items here.
    assert grown.extra_bytes - DEMAND.extra_bytes == 2 * (100 + 16 * 150_000)
    many = replace(grown, nodes=200_000)
    assert many.sampler_bytes > replace(many, reading=DEMAND.reading).sampler_bytes + 16 * 200_000


def test_a_prefetch_without_end_is_lowered_at_once() -> None:
    demand = replace(DEMAND, prefetch_factor=10**9)
    plan = plan_loader(demand, ROOM)
    one_more = replace(DEMAND, prefetch_factor=plan.prefetch_factor + 1)
    assert 4 <= plan.prefetch_factor < 200 and plan.projected_bytes <= plan.allowed_bytes
    with pytest.raises(NoRoomError):
        plan_loader(replace(DEMAND, prefetch_factor=1), replace(room_for(DEMAND), limit_bytes=0))
    assert ROOM.base_bytes + one_more.extra_bytes > ROOM.allowed_bytes or (
        ROOM.shm_bytes is not None and one_more.shm_bytes > ROOM.shm_bytes
    )


def test_what_could_be_left_out_is_named() -> None:
    wishes = replace(DEMAND, lookahead=4, read_together_bytes=MIB, hot_bytes=100 * MIB)
    with pytest.raises(NoRoomError) as caught:
        plan_loader(wishes, replace(ROOM, limit_bytes=500 * MIB))
    assert "less hot_rows or lookahead, or none" in (caught.value.remedy or "")
    assert "100.0 MiB of hot rows and 200.0 MiB in use" in str(caught.value)
    packed = replace(DEMAND, workers=0, prefetch_factor=0, packs=True)
    with pytest.raises(NoRoomError, match="less pack, or none"):
        plan_loader(packed, room_for(replace(packed, packs=False)))
    with pytest.raises(NoRoomError) as bare:
        plan_loader(DEMAND, replace(ROOM, limit_bytes=500 * MIB))
    assert "or none" not in (bare.value.remedy or "")


def test_packing_is_planned_for_where_it_takes_the_most() -> None:
    packed = replace(DEMAND, workers=0, prefetch_factor=0, packs=True)
    assert packed.extra_bytes == packed.packing_bytes > replace(packed, packs=False).extra_bytes
    assert replace(DEMAND, packs=True, prefetch_factor=8).extra_bytes > DEMAND.extra_bytes


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
    rows = (RowsOfType(nodes, 512),)
    demand = replace(DEMAND, nodes=nodes, node_rows=rows, workers=workers, prefetch_factor=prefetch)
    try:
        plan = plan_loader(demand, room)
    except NoRoomError as error:
        assert error.needed_bytes is not None and error.available_bytes is not None
        assert error.needed_bytes > error.available_bytes
        return
    assert plan.projected_bytes <= plan.allowed_bytes <= max(limit * MIB, 0)
    assert (1 if workers else 0) <= plan.prefetch_factor <= prefetch
    chosen = replace(demand, prefetch_factor=plan.prefetch_factor)
    assert chosen.shm_bytes <= shm * MIB


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_worker_is_connected_for_itself(workers: int) -> None:
    demand = replace(DEMAND, workers=workers)
    connected = replace(demand, connection_bytes=90 * MIB)
    assert connected.extra_bytes - demand.extra_bytes == workers * 90 * MIB
