"""Text for people, as wide as their terminal: nothing is cut, and no number falls apart.

What goes to a file or a pipe is as wide as it needs to be, so that each line stays one.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

import typer

_GLUE = "\N{NO-BREAK SPACE}"  # textwrap breaks lines at plain spaces alone
_NARROWEST = 20


def columns_of(stream: TextIO | None) -> int | None:
    """How wide lines may be: COLUMNS, or the terminal's width; None for a file or a pipe."""
    own = 0
    if stream is not None:
        try:
            own = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            own = 0
    told = shutil.get_terminal_size((own, 24)).columns
    return max(_NARROWEST, told) if told > 0 else None


def say(text: str = "", *, err: bool = False, indent: int = 0) -> None:
    """Print one line, wrapped between words where the terminal is narrower.

    Args:
        text: The line; what may not be broken has `glued` spaces.
        err: Whether it goes to standard error.
        indent: Spaces before the lines that follow the first.
    """
    columns = columns_of(sys.stderr if err else sys.stdout)
    typer.echo(wrapped(text, columns, indent=indent), err=err)


def wrapped(text: str, columns: int | None, *, indent: int = 0) -> str:
    """Break a line between words; each line of several by itself."""
    if columns is None:
        return text.replace(_GLUE, " ")
    lines = [
        line
        for one in text.split("\n")
        for line in textwrap.wrap(
            one,
            columns,
            subsequent_indent=" " * (indent + len(one) - len(one.lstrip(" "))),
            break_long_words=False,  # a path is worth more whole
            break_on_hyphens=False,
            drop_whitespace=True,
        )
        or [""]
    ]
    return "\n".join(lines).replace(_GLUE, " ")


def glued(text: str) -> str:
    """Text that `wrapped` keeps on one line."""
    return text.replace(" ", _GLUE)


def table(rows: Sequence[Sequence[str]], columns: int | None, *, right: Sequence[int] = ()) -> str:
    """Rows as aligned columns; where they are too wide, the cells of each below its first one.

    Args:
        rows: Cells; a row of one cell is a heading, and as long as it likes.
        columns: How wide lines may be.
        right: Numbers of the columns that are aligned to the right.
    """
    count = max((len(row) for row in rows), default=0)
    widths = [
        max((len(row[place]) for row in rows if len(row) > max(1, place)), default=0)
        for place in range(count)
    ]
    if columns is not None and sum(widths) + 2 * (count - 1) > columns:
        return "\n".join(_stacked(row, columns) for row in rows)
    lines = []
    for row in rows:
        if len(row) == 1:
            lines.append(wrapped(row[0], columns, indent=2))
            continue
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join(cells).rstrip().replace(_GLUE, " "))
    return "\n".join(lines)


def _stacked(row: Sequence[str], columns: int) -> str:
    first = wrapped(row[0], columns, indent=2)
    rest = ", ".join(glued(cell) for cell in row[1:] if cell)
    if not rest:
        return first
    before = " " * (len(row[0]) - len(row[0].lstrip(" ")) + 2)
    return f"{first}\n{wrapped(before + rest, columns)}"


def counted(number: int, what: str) -> str:
    """A count and its noun: "1 file", "1,200 files"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def harmless(text: str) -> str:
    """Text of unknown origin as a terminal may show it: what it would obey is written out."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def harmless_lines(text: str) -> str:
    """As `harmless`, of lines that stay lines."""
    return "\n".join(map(harmless, text.split("\n")))
