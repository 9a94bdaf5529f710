"""Files as nobody should have written them: mutations of valid ones, as hypothesis strategies."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

# What a document may hold in place of anything else. Nested lists cost a parser its stack, long
# ones of large numbers a product its time.
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 31,
    1 << 63,
    10**400,
    0.5,
    float("inf"),
    float("nan"),
    "",
    ".",
    "..",
    "../outside",
    "a/../../outside",
    "/etc/passwd",
    "a\0b",
    "a\nb",
    "\ud800",
    "n" * 5000,
    [],
    {},
    [[]],
    {"": {}},
    [1 << 62] * 3000,
    [1] * 200,
    [0, 1 << 63],
]
_NESTED = "[" * 20_000
_PIECES = [b"", b"\0", b"\xff" * 9, b"\n", b",", b'"', b"-1", b"9" * 400, b"(" * 300, b"\xf0\x9f"]

Place = tuple[Any, ...]


def places(held: Any, at: Place = ()) -> Iterator[Place]:
    """The way to every value of a document."""
    yield at
    if isinstance(held, dict | list):
        for key, value in held.items() if isinstance(held, dict) else enumerate(held):
            yield from places(value, (*at, key))


def changed(held: Any, at: Place, change: Callable[[Any, Any], None]) -> Any:
    """A copy of a document, changed at a place other than the whole."""
    held = within = copy.deepcopy(held)
    for key in at[:-1]:
        within = within[key]
    change(within, at[-1])
    return held


@st.composite
def documents(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """JSON of the right outline with wrong parts; now and then, bytes that are no JSON."""
    if draw(st.integers(0, 9)) == 0:
        return draw(binaries(seeds))
    held = json.loads(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        # Of some places alone: those within what was changed are gone.
        at = draw(st.sampled_from([at for at in places(held) if at]))
        value = copy.deepcopy(draw(st.sampled_from(VALUES)))
        if draw(st.integers(0, 4)) == 0:
            held = changed(held, at, lambda within, key: within.pop(key))
        else:
            held = changed(held, at, lambda within, key, value=value: _put(within, key, value))
        if not held:
            break
    text = json.dumps(held).encode()
    return text.replace(b"null", _NESTED.encode(), 1) if draw(st.integers(0, 19)) == 0 else text


def _put(within: Any, key: Any, value: Any) -> None:
    within[key] = value


@st.composite
def binaries(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A valid file that was cut, overwritten, spliced with another one, or all of these."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(content)))
        last = min(len(content), first + draw(st.sampled_from([0, 1, 2, 8, 100, 1 << 20])))
        piece = draw(
            st.one_of(
                st.sampled_from(_PIECES),
                st.binary(max_size=9),
                # Lengths and offsets as formats hold them.
                st.integers(0, 2**64 - 1).map(lambda number: number.to_bytes(8, "little")),
                st.sampled_from([other[first : first + 64] for other in seeds]),
            )
        )
        content = content[:first] + piece + content[last:]
    return content
