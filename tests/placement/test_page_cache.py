from __future__ import annotations

import pytest

from overspill.placement.page_cache import (
    fits_cache,
    is_worth_caching,
    is_worth_reading_whole,
    retry_bytes,
    trial_bytes,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("file_bytes", "room_bytes", "found_share", "worth"),
    [
        (8 * GIB, GIB, 0.1, False),  # uniform rows of a file far larger than the cache
        (8 * GIB, GIB, 0.25, True),  # a few rows are wanted again and again
        (4 * GIB, GIB, 0.0, True),  # soon a quarter is there, whatever the access
        (4 * GIB + 4, GIB, 0.0, False),
        (GIB, 2 * GIB, 0.0, True),
        (GIB, 0, 0.0, False),
        (0, 0, 0.0, True),
    ],
)
def test_what_is_worth_caching(
    file_bytes: int, room_bytes: int, found_share: float, worth: bool
) -> None:
    assert is_worth_caching(file_bytes, room_bytes, found_share) is worth


def test_a_trial_is_short_beside_what_follows_it() -> None:
    assert 0 < trial_bytes(GIB) < GIB // 4
    assert retry_bytes(GIB) >= 16 * GIB


@pytest.mark.parametrize(
    ("file_bytes", "asked_bytes", "worth"),
    [
        (GIB, GIB // 4, True),
        (GIB, GIB // 4 - 1, False),
        (2 * GIB + 2, 2 * GIB, False),  # would take more than half of the room
    ],
)
def test_a_file_that_fits_is_read_whole_once_that_would_have_cost_as_much(
    file_bytes: int, asked_bytes: int, worth: bool
) -> None:
    assert is_worth_reading_whole(file_bytes, 4 * GIB, asked_bytes) is worth
    assert fits_cache(file_bytes, 4 * GIB) is (file_bytes <= 2 * GIB)
