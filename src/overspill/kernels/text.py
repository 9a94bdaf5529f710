"""Parse SNAP edge-list text: two integers a line, "#" lines and blank lines skipped.

Bottleneck: one branch a byte. The state machine takes any mix of spaces and tabs, and LF, CRLF
or CR as line ends. What follows the second integer is ignored, as signed and temporal SNAP graphs
carry more columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel

Ids = npt.NDArray[np.int64]
# Outcomes.
PARSED, NOT_AN_INTEGER, MISSING_COLUMN, TOO_LARGE = 0, 1, 2, 3
_LARGEST = np.uint64(2**63 - 1)
_TAB, _LF, _CR, _SPACE, _HASH, _MINUS, _ZERO, _NINE = 9, 10, 13, 32, 35, 45, 48, 57


@kernel
def _skip_blanks(text: npt.NDArray[np.uint8], at: int) -> int:
    while text[at] == _SPACE or text[at] == _TAB:
        at += 1
    return at


@kernel
def _ends_line(byte: int) -> bool:
    return byte in (_LF, _CR)


@kernel
def _parse_integer(text: npt.NDArray[np.uint8], at: int) -> tuple[int, Any]:
    """Parse one cell: where it ends, or minus what is wrong with it, and its value."""
    if _ends_line(text[at]):
        return -2, np.int64(0)
    negative = text[at] == _MINUS
    if negative:
        at += 1
    first = at
    while text[at] == _ZERO:  # padding does not count as digits
        at += 1
    digits, value = at, np.uint64(0)
    while _ZERO <= text[at] <= _NINE:
        if at - digits == 19:  # 19 digits always fit 64 bits without a sign, 20 may not
            return -3, np.int64(0)
        value = value * np.uint64(10) + np.uint64(text[at] - _ZERO)
        at += 1
    ends = text[at] == _SPACE or text[at] == _TAB or _ends_line(text[at])
    if at == first or not ends:
        return -1, np.int64(0)
    if value > _LARGEST + np.uint64(negative):
        return -3, np.int64(0)
    return at, -np.int64(value) if negative else np.int64(value)


@kernel
def parse_edges(text: npt.NDArray[np.uint8], sources: Ids, targets: Ids, state: Ids) -> int:
    """Parse whole lines until the text or the output ends, or a line is wrong.

    Args:
        text: Bytes that end with a line end; a line feed that follows it is not in the next text.
        sources: Filled with the first integer of each line.
        targets: Filled with the second.
        state: Filled: edges parsed, lines passed, bytes passed, the wrong column (0 or 1) and
            where its cell starts.

    Returns:
        `PARSED`, or what is wrong with the line after those passed.
    """
    edges = lines = place = 0
    outcome = 0
    while place < text.shape[0] and edges < sources.shape[0]:
        at = _skip_blanks(text, place)
        if not _ends_line(text[at]) and text[at] != _HASH:
            state[3], state[4] = 0, at
            at, sources[edges] = _parse_integer(text, at)
            if at >= 0:
                at = _skip_blanks(text, at)
                state[3], state[4] = 1, at
                at, targets[edges] = _parse_integer(text, at)
            if at < 0:
                outcome = -at
                break
            edges += 1
        while not _ends_line(text[at]):
            at += 1
        place = at + 1
        if text[at] == _CR and place < text.shape[0] and text[place] == _LF:
            place += 1
        lines += 1
    state[0], state[1], state[2] = edges, lines, place
    return outcome
