from __future__ import annotations

import numpy as np
import pytest

from overspill.kernels.text import (
    MISSING_COLUMN,
    NOT_AN_INTEGER,
    PARSED,
    TOO_LARGE,
    parse_edges,
)


def parse(text: bytes, *, room: int = 10) -> tuple[int, list[tuple[int, int]], np.ndarray]:
    out, state = np.zeros((2, room), np.int64), np.zeros(5, np.int64)
    outcome = parse_edges(np.frombuffer(text, np.uint8), out[0], out[1], state)
    return outcome, list(zip(*out[:, : state[0]].tolist(), strict=True)), state


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        (b"1\t2\n", [(1, 2)]),
        (b"1 2\r\n3 4\r\n", [(1, 2), (3, 4)]),
        (b"# comment 7 8\n1\t2\n", [(1, 2)]),
        (b"  # indented\n\n \t\r\n  1 \t 2  \n", [(1, 2)]),
        (b"1 2 3 extra\n4 5\tx\n", [(1, 2), (4, 5)]),
        (b"-1 -0\n", [(-1, 0)]),
        (b"9223372036854775807 -9223372036854775808\n", [(2**63 - 1, -(2**63))]),
        (b"007 4873214862074861312\n", [(7, 4873214862074861312)]),
        (b"00000000000000000000000000000007 -0000000000000000000000000009\n", [(7, -9)]),
        (b"000 00\n", [(0, 0)]),
        (b"\n", []),
        (b"", []),
    ],
)
def test_lines_that_parse(text: bytes, edges: list[tuple[int, int]]) -> None:
    outcome, found, state = parse(text)
    assert outcome == PARSED and found == edges
    assert state[1] == text.count(b"\n") and state[2] == len(text)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("room", [1, 10])
def test_every_line_end(end: bytes, room: int) -> None:
    text = end.join([b"# a", b"1 2", b"", b"#", b"3 4", b"5 6 x", b""])
    found, lines = [], 0
    while text:
        outcome, edges, state = parse(text, room=room)
        assert outcome == PARSED
        found, lines, text = found + edges, lines + int(state[1]), text[int(state[2]) :]
    assert found == [(1, 2), (3, 4), (5, 6)] and lines == 6


@pytest.mark.parametrize(
    ("line", "outcome", "column", "at"),
    [
        (b"1\n", MISSING_COLUMN, 1, 1),
        (b"1 \r\n", MISSING_COLUMN, 1, 2),
        (b"1\r2\r\n", MISSING_COLUMN, 1, 1),
        (b"1 0009223372036854775808\n", TOO_LARGE, 1, 2),
        (b"a 1\n", NOT_AN_INTEGER, 0, 0),
        (b"1 2.5\n", NOT_AN_INTEGER, 1, 2),
        (b"1 -\n", NOT_AN_INTEGER, 1, 2),
        (b"1,2\n", NOT_AN_INTEGER, 0, 0),
        (b"1 +2\n", NOT_AN_INTEGER, 1, 2),
        (b"1 9223372036854775808\n", TOO_LARGE, 1, 2),
        (b"-9223372036854775809 1\n", TOO_LARGE, 0, 0),
        (b"1 99999999999999999999999\n", TOO_LARGE, 1, 2),
        (b"1 18446744073709551616\n", TOO_LARGE, 1, 2),
    ],
)
def test_wrong_lines_say_what_and_where(line: bytes, outcome: int, column: int, at: int) -> None:
    before = b"# a\n5 6\n"
    found, edges, state = parse(before + line + b"7 8\n")
    assert found == outcome and edges == [(5, 6)]
    assert state[1] == 2 and state[2] == len(before)
    assert (state[3], state[4]) == (column, len(before) + at)


def test_it_stops_when_the_output_is_full() -> None:
    _, edges, state = parse(b"1 2\n#\n3 4\n5 6\n", room=2)
    assert edges == [(1, 2), (3, 4)] and state[1] == 3 and state[2] == 10
