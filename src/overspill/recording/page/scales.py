"""Axes: round steps for bytes, counts and times, and how their labels read."""

from __future__ import annotations

import math

from overspill.units import format_bytes

_DURATIONS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * n for n in (1, 2, 5, 10, 15, 30)),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86400 * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)


def byte_step(most: float, ticks: int = 4) -> int:
    """A power of two of bytes that divides a scale into at most so many parts."""
    return 1 << max(0, math.ceil(math.log2(max(most, 1) / ticks)))


def count_step(most: float, ticks: int = 4) -> float:
    """1, 2 or 5 times a power of ten."""
    least = max(most, 1) / ticks
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999)


def time_step(most_s: float, ticks: int = 8) -> float:
    """A step of seconds, minutes, hours or days."""
    return next((step for step in _DURATIONS if step * ticks >= most_s), _DURATIONS[-1])


def steps_up_to(most: float, step: float) -> list[float]:
    """0, step, 2 step, ... up to the most."""
    return [number * step for number in range(math.floor(most / step + 1e-9) + 1)]


def round_bytes(value: float) -> str:
    """Bytes on an axis: "512 MiB", without ".0"."""
    return format_bytes(int(value)).replace(".0 ", " ")


def short_count(value: float) -> str:
    """A count on an axis or in a tile: "950", "12.5 k", "3.2 M"."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= factor:
            scaled = value / (1e3 if letter == "k" else factor)
            return f"{scaled:.1f}".removesuffix(".0") + f" {letter}"
    return f"{value:,.0f}"


def elapsed(seconds: float) -> str:
    """A time since the start: "0.25 s", "42 s", "3:05 min", "2:05 h", "3 d 4 h"."""
    if seconds < 10:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    if whole < 86400:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    days, hours = whole // 86400, whole % 86400 // 3600
    return f"{days} d {hours} h" if hours else f"{days} d"
