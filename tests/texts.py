"""Strings for tests, and the naive way to do what is done with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from overspill.build.readers.edges import Strings

TRICKY = ["", "7", "007", "7\0", "\0", "\0\0", "ab", "ab\0cdefgh", "é", "e\u0301", "日本", "x" * 70]
# A few letters, so that there are duplicates and common beginnings.
anything = st.lists(
    st.one_of(st.sampled_from(TRICKY), st.text(max_size=12), st.text("ab", max_size=9)), max_size=60
)


def as_strings(texts: Sequence[str], *, before: str = "") -> Strings:
    """With `before`, the first does not begin at the start of the data."""
    held = [text.encode() for text in texts]
    offsets = np.cumsum([len(before.encode()), *map(len, held)], dtype=np.int64)
    return Strings(offsets, np.frombuffer(before.encode() + b"".join(held), np.uint8))


def reference_hash(text: bytes, salt: int) -> int:
    """The hash as the kernel's header tells it, in plain integers; as int64."""
    mask = (1 << 64) - 1

    def scrambled(state: int) -> int:
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & mask
        return state ^ (state >> 31)

    golden = 0x9E3779B97F4A7C15
    state = scrambled((salt + 1) * golden & mask)
    state = scrambled(state ^ (len(text) * golden & mask))
    words = [text[at : at + 8] for at in range(0, len(text) - 7, 8)]
    if len(text) % 8:
        words.append(text[-8:])
    for word in words:
        state = scrambled(state ^ int.from_bytes(word, "little"))
    return state - (1 << 64) if state >> 63 else state


def numbers(count: int, *, first: int = 0) -> list[str]:
    """Distinct strings of 1 to 20 bytes."""
    return [f"{'node' * (n % 4)}{n}" for n in range(first, first + count)]
