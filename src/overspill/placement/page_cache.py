"""Whether random reads of a file should go through the page cache: policy alone.

Through the cache, pages of a file that it cannot hold cost five times the processor, and drive out
those of files that it could hold (measured: an epoch over uniform rows at 8 times the memory read
1.5 times its distinct pages from the device). Past it, a page that is wanted again is read again.
"""

from __future__ import annotations

# Uniform access finds room / file of its pages in the cache: what is below this is not worth it.
_WORTH_SHARE = 0.25
# So much of the room is read through the cache before what was found there says anything.
_TRIAL_SHARE = 1 / 16
# After so many times the room was read past the cache, access may have changed: try again.
_RETRIED_AFTER = 16
# Read at random, this share of a file's pages took the device as long as all of it in order would
# have. Around scattered pages the rest takes longer: 1.5 s of 2 GiB, where the quarter took 1.0.
_WHOLE_AFTER_SHARE = 0.25
_WHOLE_MOST_SHARE = 0.5


def trial_bytes(room_bytes: int) -> int:
    """How much to read through the cache before deciding whether that pays."""
    return int(room_bytes * _TRIAL_SHARE)


def is_worth_caching(file_bytes: int, room_bytes: int, found_share: float) -> bool:
    """Whether pages of a file should stay in the page cache.

    Args:
        file_bytes: The file's size.
        room_bytes: What the cache could hold.
        found_share: The part of what was asked for in the last trial that was there.
    """
    return room_bytes >= _WORTH_SHARE * file_bytes or found_share >= _WORTH_SHARE


def retry_bytes(room_bytes: int) -> int:
    """How much to read past the cache before another trial."""
    return room_bytes * _RETRIED_AFTER


def fits_cache(file_bytes: int, room_bytes: int) -> bool:
    """Whether the cache can hold all of a file beside others."""
    return file_bytes <= _WHOLE_MOST_SHARE * room_bytes


def is_worth_reading_whole(file_bytes: int, room_bytes: int, asked_bytes: int) -> bool:
    """Whether to bring all of a file into the cache, having read parts of it at random.

    By then the random reads have cost what reading all would have. Where most pages are wanted in
    the end it saves a third (2 GiB, each page once: 2.9 s for 4.2) to a half (at random, with
    repeats: 3.5 s for 6.4); where no more are wanted, four times the bytes were read, in 2.5 times
    the time. So it is for those alone who know that reading goes on.

    Args:
        file_bytes: The file's size.
        room_bytes: What the cache could hold.
        asked_bytes: What was read at random, and not found there, since the last time.
    """
    return fits_cache(file_bytes, room_bytes) and asked_bytes >= _WHOLE_AFTER_SHARE * file_bytes
