"""Sizes as people write them ("2GiB") and as programs count them (bytes)."""

from __future__ import annotations

import re

_FACTORS = {
    "": 1,
    "b": 1,
    **{f"{p}{s}": 1024**i for i, p in enumerate("kmgtp", 1) for s in ("", "ib")},
    **{f"{p}b": 1000**i for i, p in enumerate("kmgtp", 1)},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Turn "2GiB", "512 MB", "1.5g" or a plain number into bytes.

    K, M, G, T and P alone, and with "iB", are powers of 1024, as in Kubernetes' Ki and systemd's K;
    with "B" alone they are powers of 1000.

    Args:
        text: The size; an int passes through.

    Returns:
        The number of bytes, rounded down.

    Raises:
        ValueError: The text is not a size, or is negative.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"a size cannot be negative: {text}")
        return text
    match = _SIZE.fullmatch(text)
    suffix = match.group(2).lower() if match else None
    if suffix in ("ki", "mi", "gi", "ti", "pi"):  # Kubernetes' spelling
        suffix += "b"
    if match is None or suffix not in _FACTORS:
        raise ValueError(f'not a size: {text!r} (write it like "2GiB", "512MiB" or 1073741824)')
    number = match.group(1)
    factor = _FACTORS[suffix]
    return int(number) * factor if "." not in number else int(float(number) * factor)


def format_bytes(nbytes: int) -> str:
    """Write a number of bytes for people, in powers of 1024 with one decimal ("61.0 MiB")."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
