from __future__ import annotations

import pytest

from overspill.errors import UnavailableError
from overspill.graph import cache_use
from overspill.graph.cache_use import CacheUse
from overspill.placement.page_cache import retry_bytes, trial_bytes

ROOM = 1 << 20
LARGE, SMALL = 8 * ROOM, ROOM // 4


def after_a_trial(use: CacheUse, share: float) -> bool:
    assert not use.passes_by()
    use.note(1000, 1000 * share)
    use.note_read(trial_bytes(ROOM))
    return use.passes_by()


def test_a_large_file_whose_pages_are_not_found_again_is_read_past_the_cache() -> None:
    assert after_a_trial(CacheUse(LARGE, lambda: ROOM), 0.1)


@pytest.mark.parametrize(("file_bytes", "share"), [(LARGE, 0.5), (SMALL, 0.0), (4 * ROOM, 0.0)])
def test_others_stay_in_it(file_bytes: int, share: float) -> None:
    use = CacheUse(file_bytes, lambda: ROOM)
    assert not after_a_trial(use, share)
    assert not after_a_trial(use, share)


def test_shares_are_of_one_trial_alone() -> None:
    use = CacheUse(LARGE, lambda: ROOM)
    assert not after_a_trial(use, 0.9)
    use.note(1000, 0)
    use.note_read(trial_bytes(ROOM))
    assert use.passes_by()


def test_access_may_change_so_that_it_is_tried_again() -> None:
    use = CacheUse(LARGE, lambda: ROOM)
    assert after_a_trial(use, 0.0)
    use.note_read(retry_bytes(ROOM) - 1)
    assert use.passes_by()
    use.note_read(1)
    assert not use.passes_by()
    use.note(1000, 900)
    use.note_read(trial_bytes(ROOM))
    assert not use.passes_by()


def test_where_the_room_is_unknown_nothing_is_passed_by() -> None:
    use = CacheUse(LARGE, lambda: None)
    for _ in range(3):
        use.note_read(2 * LARGE)
        assert not use.passes_by() and not use.wants_whole() and not use.fits()


def test_a_file_that_fits_is_wanted_whole_once() -> None:
    use = CacheUse(SMALL, lambda: ROOM)
    use.note_read(SMALL // 4 - 1)
    assert not use.wants_whole()
    use.note_read(1)
    assert use.wants_whole() and not use.wants_whole()
    use.note_read(SMALL // 4)  # it was driven out
    assert use.wants_whole()


def test_a_file_that_does_not_fit_is_not() -> None:
    use = CacheUse(LARGE, lambda: ROOM)
    use.note_read(LARGE)
    assert not use.wants_whole() and not use.fits()
    assert CacheUse(SMALL, lambda: ROOM).fits()


def test_the_room_is_measured_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [10.0], [0]

    def measure() -> int:
        asked[0] += 1
        if asked[0] == 2:
            raise UnavailableError("no /proc")
        return ROOM

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(cache_use, "available_memory_bytes", measure)
    room = cache_use._Room()
    assert [room(), room()] == [ROOM, ROOM] and asked == [1]
    now[0] += 1.5
    assert room() is None and room() is None and asked == [2]
