from __future__ import annotations

import pytest

from overspill.placement.spill import Headroom, Request, place_in_file

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("memory", "min_bytes", "expected"),
    [
        (32 * GIB, None, 2 * GIB),  # exactly where the two defaults meet
        (64 * GIB, None, 2 * GIB),
        (GIB, None, 64 * MIB),
        (0, None, 0),
        (-5, None, 0),
        (None, None, 2 * GIB),  # what cannot be measured does not make everything spill
        (GIB, 1, 1),
        (GIB, 0, 0),
        (GIB, 4 * GIB, 4 * GIB),
    ],
)
def test_the_threshold_is_set_or_a_share_of_the_headroom(
    memory: int | None, min_bytes: int | None, expected: int
) -> None:
    headroom = Headroom(memory_bytes=memory, spill_dir="/spill", min_bytes=min_bytes)
    assert headroom.threshold_bytes == expected


@pytest.mark.parametrize(
    ("request_", "spill_dir", "home", "told"),
    [
        (Request(nbytes=100), "/spill", "disk", "reaches the spill threshold of 100 B"),
        (Request(nbytes=101), "/spill", "disk", "101 B"),
        (Request(nbytes=99), "/spill", "memory", "99 B is below the spill threshold of 100 B"),
        (Request(nbytes=100), None, "memory", "no spill directory"),
        (Request(nbytes=0), "/spill", "memory", "no bytes"),
        (Request(nbytes=100, obstacle="a qint8"), "/spill", "memory", "a qint8 cannot live"),
        (Request(nbytes=100, obstacle="a qint8"), None, "memory", "no spill directory"),
    ],
)
def test_a_file_or_the_first_reason_against_it(
    request_: Request, spill_dir: str | None, home: str, told: str
) -> None:
    headroom = Headroom(memory_bytes=GIB, spill_dir=spill_dir, min_bytes=100)
    placement = place_in_file(request_, headroom)
    assert placement.home == home
    assert told in placement.reason


def test_nothing_is_spilled_because_the_threshold_is_zero() -> None:
    headroom = Headroom(memory_bytes=GIB, spill_dir="/spill", min_bytes=0)
    assert place_in_file(Request(nbytes=0), headroom).home == "memory"
    assert place_in_file(Request(nbytes=1), headroom).home == "disk"
