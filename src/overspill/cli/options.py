"""Options that several verbs share, and how their texts are understood."""

from __future__ import annotations

import typer

from overspill.units import parse_bytes


def size(text: str) -> int:
    """Understand a size option such as "2GiB"."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def named_paths(texts: list[str], *, option: str) -> dict[str, str]:
    """Understand repeated NAME=FILE options."""
    held: dict[str, str] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not (separator and name and path):
            raise typer.BadParameter(f"{text!r} is not NAME=FILE", param_hint=option)
        if name in held:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        held[name] = path
    return held
