"""Memory as a bar and a table, for notebooks; colours that are read on white and on black."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from overspill.units import format_bytes

_COLOURS = ("#d1495b", "#edae49", "#8d6a9f", "#4f9d69")
_Part = tuple[str, int | None, str]
_BAR = (
    "display:flex;width:100%;max-width:40em;height:1.2em;border:1px solid #888;"
    "border-radius:3px;overflow:hidden"
)
_SWATCH = "display:inline-block;width:.8em;height:.8em;margin-right:.4em"


def memory_html(
    whole_bytes: int | None,
    *,
    parts: Sequence[_Part],
    totals: Iterable[tuple[str, int | None]],
) -> str:
    """A bar of what memory is spent on, and the figures.

    Args:
        whole_bytes: What the whole bar stands for; None or 0 shows no bar.
        parts: Name, bytes and what can be done about each; what is not known (None) is left out.
        totals: Name and bytes of the rows below.
    """
    known = [
        (name, held, note, colour)
        for (name, held, note), colour in zip(parts, _COLOURS, strict=True)
        if held is not None
    ]
    bar = ""
    if whole_bytes:
        spans = "".join(
            f"<span title='{escape(name)}' style='background:{colour};"
            f"width:{min(100.0, 100 * held / whole_bytes):.2f}%'></span>"
            for name, held, _, colour in known
        )
        bar = f"<div style='{_BAR}'>{spans}</div>"
    rows = [
        _row(f"<span style='background:{colour};{_SWATCH}'></span>{escape(name)}", held, note)
        for name, held, note, colour in known
    ]
    rows += [_row(escape(name), held, "") for name, held in totals if held is not None]
    return f"<div><b>Memory</b>{bar}<table><tbody>{''.join(rows)}</tbody></table></div>"


def _row(name: str, nbytes: int, note: str) -> str:
    left = "style='text-align:left'"
    return (
        f"<tr><td {left}>{name}</td><td>{format_bytes(nbytes)}</td><td {left}>{escape(note)}</td>"
        "</tr>"
    )
