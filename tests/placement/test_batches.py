from __future__ import annotations

import pytest

from overspill.placement.batches import SMALL_BYTES, SharedRoom, place_batch

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "free", "reserve", "home"),
    [
        (56 * MIB, 64 * MIB, 8 * MIB, "shm"),
        (56 * MIB + 1, 64 * MIB, 8 * MIB, "disk"),
        (128 * MIB, 64 * MIB, 0, "disk"),
        (SMALL_BYTES, SMALL_BYTES, 8 * MIB, "shm"),  # what the reserve is there for
        (SMALL_BYTES + 1, 8 * MIB, 8 * MIB, "disk"),
        (SMALL_BYTES, SMALL_BYTES - 1, 8 * MIB, "disk"),
        (1, 0, 0, "disk"),
        (1 << 50, None, 8 * MIB, "shm"),  # a mount that cannot be inspected does not block
    ],
)
def test_in_shared_memory_while_the_reserve_stays_free(
    nbytes: int, free: int | None, reserve: int, home: str
) -> None:
    assert place_batch(nbytes, SharedRoom(free_bytes=free, reserve_bytes=reserve)).home == home


@pytest.mark.parametrize(
    ("nbytes", "memory", "home"),
    [
        (8 * MIB, 8 * MIB, "shm"),
        (8 * MIB + 1, 8 * MIB, "disk"),
        (SMALL_BYTES, 0, "shm"),
        (8 * MIB, None, "shm"),
    ],
)
def test_in_shared_memory_while_there_is_memory_for_it(
    nbytes: int, memory: int | None, home: str
) -> None:
    room = SharedRoom(free_bytes=1 << 40, reserve_bytes=8 * MIB, memory_bytes=memory)
    placement = place_batch(nbytes, room)
    assert placement.home == home
    assert home == "shm" or "8.0 MiB of the memory" in placement.reason


def test_the_reason_names_every_figure() -> None:
    told = place_batch(128 * MIB, SharedRoom(free_bytes=64 * MIB, reserve_bytes=8 * MIB)).reason
    assert all(figure in told for figure in ("128.0 MiB", "64.0 MiB", "8.0 MiB", "/dev/shm"))
