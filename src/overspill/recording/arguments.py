"""What a recording is asked for, looked at before it begins: its end must not be what fails."""

from __future__ import annotations

from contextlib import suppress
from numbers import Real

from overspill.errors import InputError


def require_interval(interval: object) -> float:
    """Seconds between samples; InputError for what is no number between 0.001 and 3600."""
    told = 0.0
    with suppress(OverflowError):  # an integer of hundreds of digits
        told = float(interval) if isinstance(interval, Real) else told
    if isinstance(interval, bool) or not 0.001 <= told <= 3600:  # NaN is neither
        raise InputError(
            f"an interval of {interval!r} seconds", remedy="take a number between 0.001 and 3600"
        )
    return told


def require_title(title: object) -> str | None:
    """The title, or None; InputError for what is no text."""
    if title is not None and not isinstance(title, str):
        raise InputError(f"the title {title!r} is no text", remedy="pass a str, or None")
    return title
