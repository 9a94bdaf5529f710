from __future__ import annotations

import pytest

from overspill.build.plan import RESERVE_BYTES, BuildPlan, plan_build
from overspill.errors import NoRoomError

MIB = 1 << 20


def plan(available: int, limit: int | None = None, base: int = 60 * MIB) -> BuildPlan:
    return plan_build(base_bytes=base, available_bytes=available, limit_bytes=limit)


@pytest.mark.parametrize("limit_mib", [120, 150, 200, 300, 500, 1000, 5000])
def test_the_projection_stays_within_the_limit(limit_mib: int) -> None:
    made = plan(1 << 40, limit_mib * MIB)
    assert made.projected_bytes <= made.allowed_bytes == limit_mib * MIB
    assert made.projected_bytes >= 60 * MIB + made.buffer_bytes()


def test_more_memory_never_makes_smaller_buffers_and_ends_somewhere() -> None:
    sizes = [plan(1 << 40, limit * MIB).buffer_bytes() for limit in range(120, 2000, 20)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] == sizes[-30]


def test_the_room_left_binds_without_a_limit() -> None:
    made = plan(200 * MIB)
    assert made.allowed_bytes == 60 * MIB + 200 * MIB - RESERVE_BYTES
    assert made.projected_bytes <= made.allowed_bytes


def test_the_tighter_of_both_binds() -> None:
    assert plan(200 * MIB, 5000 * MIB).allowed_bytes == plan(200 * MIB).allowed_bytes
    assert plan(1 << 40, 150 * MIB).allowed_bytes == 150 * MIB


def test_a_limit_that_is_too_small_names_the_smallest_that_works() -> None:
    with pytest.raises(NoRoomError) as caught:
        plan(1 << 40, 64 * MIB)
    error = caught.value
    assert error.available_bytes == 64 * MIB and error.needed_bytes is not None
    assert "memory_limit" in (error.remedy or "")
    made = plan(1 << 40, error.needed_bytes)
    assert made.projected_bytes == error.needed_bytes
    with pytest.raises(NoRoomError):
        plan(1 << 40, error.needed_bytes - 1)


def test_too_little_room_names_how_much_works() -> None:
    with pytest.raises(NoRoomError) as caught:
        plan(20 * MIB)
    error = caught.value
    assert error.needed_bytes is not None and error.available_bytes == 80 * MIB
    plan(error.needed_bytes - 60 * MIB)
    with pytest.raises(NoRoomError):
        plan(error.needed_bytes - 60 * MIB - 1)


@pytest.mark.parametrize("limit_mib", [130, 400, 2000])
def test_threads_share_the_same_memory(limit_mib: int) -> None:
    sizes = []
    for threads in (1, 2, 8, 100):
        made = plan_build(
            base_bytes=60 * MIB,
            available_bytes=1 << 40,
            limit_bytes=limit_mib * MIB,
            threads=threads,
        )
        assert made.threads == min(threads, 16)
        # What is streamed goes through buckets block by block.
        assert made.bucket_bytes >= 8 * made.block_bytes and made.bucket_bytes % 4096 == 0
        sizes.append(made.buckets * made.bucket_bytes)
    assert max(sizes) <= 1.02 * min(sizes)


def test_threads_are_the_usable_processors_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overspill.build.plan.usable_cpus", lambda: 3)
    assert plan(1 << 40).threads == 3


def test_what_readers_hold_is_counted_beyond_what_always_is() -> None:
    def projected(reading: int) -> int:
        return plan_build(
            base_bytes=60 * MIB, available_bytes=1 << 40, limit_bytes=None, reading_bytes=reading
        ).projected_bytes

    assert projected(10 * MIB) == projected(0)
    assert projected(216 * MIB) == projected(0) + 200 * MIB
