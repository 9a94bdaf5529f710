"""Options that several verbs share, and how their texts are understood."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from overspill.units import parse_bytes


def size(text: str) -> int:
    """Understand a size option such as "2GiB"."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def chosen(text: str, allowed: Sequence[str], *, option: str) -> str:
    """Refuse a value that is none of those there are."""
    if text not in allowed:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(allowed)}", param_hint=option)
    return text
