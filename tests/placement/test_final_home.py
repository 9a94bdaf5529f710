from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from overspill.placement.final_home import (
    Demand,
    Rooms,
    best_offer,
    default_memory_reserve,
    default_shm_reserve,
    place_finally,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# 100 are wanted; everything holds them with room to spare.
AMPLE = Rooms(
    threshold_bytes=10,
    memory_bytes=1000,
    memory_reserve_bytes=50,
    shm_bytes=1000,
    shm_reserve_bytes=30,
    disk_bytes=1000,
)
NO_DISK = replace(AMPLE, disk_refusal="spilling is off")


@pytest.mark.parametrize(
    ("rooms", "in_order", "random"),
    [
        (AMPLE, "disk", "shm"),
        # the disk
        (replace(AMPLE, disk_bytes=100), "disk", "shm"),
        (replace(AMPLE, disk_bytes=99), "shm", "shm"),
        (replace(AMPLE, disk_bytes=-5), "shm", "shm"),
        (replace(AMPLE, disk_bytes=None), "disk", "shm"),
        (NO_DISK, "shm", "shm"),
        # /dev/shm: the bytes plus its reserve, either way
        (replace(AMPLE, shm_bytes=130), "disk", "shm"),
        (replace(AMPLE, shm_bytes=129), "disk", "disk"),
        (replace(NO_DISK, shm_bytes=130), "shm", "shm"),
        (replace(NO_DISK, shm_bytes=129), "none", "none"),
        (replace(NO_DISK, shm_bytes=None), "shm", "shm"),  # not inspectable: does not block
        (replace(NO_DISK, shm_refusal="gone"), "none", "none"),
        (replace(AMPLE, shm_refusal="gone"), "disk", "disk"),
        # memory: the bytes in order, a reserve beside them at random
        (replace(AMPLE, memory_bytes=150), "disk", "shm"),
        (replace(AMPLE, memory_bytes=149), "disk", "disk"),
        (replace(NO_DISK, memory_bytes=149), "shm", "none"),
        (replace(NO_DISK, memory_bytes=100), "shm", "none"),
        (replace(NO_DISK, memory_bytes=99), "none", "none"),
        (replace(NO_DISK, memory_bytes=None), "shm", "shm"),
        (replace(NO_DISK, memory_bytes=None, shm_bytes=None), "shm", "shm"),
        # the threshold: a plain tensor, but never one that memory cannot hold
        (replace(AMPLE, threshold_bytes=101), "memory", "memory"),
        (replace(AMPLE, threshold_bytes=100), "disk", "shm"),
        (replace(NO_DISK, threshold_bytes=101), "memory", "memory"),
        (replace(AMPLE, threshold_bytes=101, memory_bytes=99), "disk", "disk"),
        (replace(NO_DISK, threshold_bytes=101, memory_bytes=99), "none", "none"),
        (replace(AMPLE, threshold_bytes=101, memory_bytes=None), "memory", "memory"),
    ],
)
def test_the_home_of_a_hundred_bytes(rooms: Rooms, in_order: str, random: str) -> None:
    for random_access, home in ((False, in_order), (True, random)):
        placement = place_finally(Demand(nbytes=100, random_access=random_access), rooms)
        assert placement.home == home, placement
        assert placement.reason


@pytest.mark.parametrize(
    ("rooms", "in_order"),
    [
        ({"shm_bytes": MIB}, "memory"),
        ({"shm_bytes": MIB - 1}, "disk"),  # moved into /dev/shm by its first send, it would not fit
        ({"shm_bytes": MIB - 1, "disk_bytes": MIB - 1}, "memory"),
        ({"shm_bytes": MIB - 1, "disk_refusal": "spilling is off"}, "memory"),
        ({"shm_bytes": None}, "memory"),
    ],
)
def test_below_the_threshold_what_dev_shm_cannot_hold_goes_to_the_disk(
    rooms: dict[str, Any], in_order: str
) -> None:
    ample = Rooms(threshold_bytes=GIB, memory_bytes=GIB, shm_bytes=GIB, disk_bytes=GIB)
    placement = place_finally(Demand(nbytes=MIB), replace(ample, **rooms))
    assert placement.home == in_order
    assert ("/dev/shm has" in placement.reason) == (in_order == "disk")
    # Too small to matter, or scattered into: a plain tensor.
    for demand in (Demand(nbytes=MIB - 1), Demand(nbytes=MIB, random_access=True)):
        assert place_finally(demand, replace(ample, **rooms)).home == "memory"


def test_no_bytes_need_no_room() -> None:
    nothing = replace(NO_DISK, threshold_bytes=0, memory_bytes=0, shm_bytes=0)
    assert place_finally(Demand(nbytes=0), nothing).home == "memory"


def test_memory_that_comes_back_on_the_way_counts() -> None:
    rooms = replace(NO_DISK, memory_bytes=30)
    assert place_finally(Demand(nbytes=100), rooms).home == "none"
    assert place_finally(Demand(nbytes=100, freed_bytes=69), rooms).home == "none"
    assert place_finally(Demand(nbytes=100, freed_bytes=70), rooms).home == "shm"


@pytest.mark.parametrize(
    ("rooms", "random_access", "told"),
    [
        (AMPLE, False, "100 B, written in order, fits"),
        (AMPLE, True, "100 B, random access, fits"),
        (replace(AMPLE, shm_bytes=5), True, "/dev/shm has 5 B free, and 100 B were wanted"),
        (replace(AMPLE, shm_bytes=5), True, "beside a reserve of 30 B"),
        (replace(AMPLE, memory_bytes=7), True, "7 B of memory can still be had"),
        (replace(AMPLE, disk_bytes=9), False, "disk may give 9 B, and 100 B were wanted"),
        (replace(AMPLE, threshold_bytes=KIB), False, "100 B is below the threshold of 1.0 KiB"),
        (replace(NO_DISK, shm_bytes=5), False, "spilling is off; /dev/shm has 5 B free"),
        (replace(NO_DISK, shm_bytes=5), True, "were wanted beside a reserve of 30 B; spilling"),
    ],
)
def test_the_reason_has_the_numbers_that_decided(
    rooms: Rooms, random_access: bool, told: str
) -> None:
    placement = place_finally(Demand(nbytes=100, random_access=random_access), rooms)
    assert told in placement.reason


@pytest.mark.parametrize(
    ("limit", "memory", "shm"),
    [
        (0, 0, 0),
        (64 * MIB, 8 * MIB, 8 * MIB),
        (16 * GIB, 2 * GIB, 2 * GIB),
        (128 * GIB, 16 * GIB, 2 * GIB),
        (1024 * GIB, 16 * GIB, 2 * GIB),
    ],
)
def test_the_reserves_are_large_figures_or_fractions(limit: int, memory: int, shm: int) -> None:
    assert default_memory_reserve(limit) == memory
    assert default_shm_reserve(limit) == shm


@pytest.mark.parametrize(
    ("rooms", "offer"),
    [
        (AMPLE, 1000),
        (NO_DISK, 970),
        (replace(NO_DISK, memory_bytes=40), 40),
        (replace(NO_DISK, shm_bytes=5), 0),
        (replace(NO_DISK, shm_refusal="gone"), None),
        (replace(NO_DISK, shm_bytes=None, memory_bytes=None), None),
    ],
)
def test_the_best_offer_is_what_any_home_could_have_taken(rooms: Rooms, offer: int | None) -> None:
    assert best_offer(Demand(nbytes=100), rooms) == offer
    if offer:
        assert place_finally(Demand(nbytes=offer), rooms).home != "none"
        assert place_finally(Demand(nbytes=offer + 1), rooms).home == "none"
