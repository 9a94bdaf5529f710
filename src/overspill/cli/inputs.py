"""How the texts of ``overspill build`` name types, files, columns and keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer

_EDGE_TYPE = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+)=(.+)", re.DOTALL)
_EDGE_ARRAY = re.compile(r"(?:([\w-]+):([\w-]+):([\w-]+)\.)?([\w.-]+)=(.+)", re.DOTALL)
_NODE_ARRAY = re.compile(r"(?:([\w-]+)\.)?([\w-]+)=(.+)", re.DOTALL)


def edges_by_type(
    texts: list[str], *, option: str = "--edges"
) -> list[str] | dict[tuple[str, str, str], list[str]]:
    """Understand repeated [SOURCE:RELATION:TARGET=]FILE options."""
    typed: dict[tuple[str, str, str], list[str]] = {}
    plain: list[str] = []
    for text in texts:
        found = _EDGE_TYPE.fullmatch(text)
        if found is None:
            plain.append(text)
        else:
            typed.setdefault((found[1], found[2], found[3]), []).append(found[4])
    if plain and typed:
        raise typer.BadParameter(
            f"{plain[0]!r} names no edge type and others do", param_hint=option
        )
    return typed or plain


def id_columns(
    texts: list[str],
) -> tuple[str, ...] | dict[tuple[str, str, str], tuple[str, ...]] | None:
    """Understand repeated [SOURCE:RELATION:TARGET=]FROM,TO options."""
    held = edges_by_type(texts, option="--columns")
    if isinstance(held, list):
        if len(held) > 1:
            raise typer.BadParameter("give one pair, or one for each type", param_hint="--columns")
        return tuple(held[0].split(",")) if held else None
    for kind, pairs in held.items():
        if len(pairs) > 1:
            raise typer.BadParameter(f"{':'.join(kind)} is given twice", param_hint="--columns")
    return {kind: tuple(pairs[0].split(",")) for kind, pairs in held.items()}


def arrays_by_type(texts: list[str], fills: dict[str, Any], *, option: str) -> dict[Any, Any]:
    """Understand repeated [TYPE.]NAME=FILE[::COLUMNS[@KEY]] options."""
    from overspill.build import Columns

    edges = option == "--edge-features"
    held: dict[Any, Any] = {}
    unused = set(fills)
    for text in texts:
        found = (_EDGE_ARRAY if edges else _NODE_ARRAY).fullmatch(text)
        if found is None:
            raise typer.BadParameter(f"{text!r} is not NAME=FILE", param_hint=option)
        *kind, name, value = found.groups()
        place = held
        if kind[0] is not None:
            place = held.setdefault(tuple(kind) if edges else kind[0], {})
        if name in place:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        path, separator, rest = value.partition("::")
        full = name if kind[0] is None else f"{kind[0]}.{name}"
        if not separator:
            place[name] = path
            continue
        columns, _, key = rest.partition("@")
        names = columns.split(",")
        unused.discard(full)
        place[name] = Columns(
            names[0] if len(names) == 1 else names,
            of=path or None,
            key=key or None,
            fill=fills.get(full),
        )
    if unused:
        raise typer.BadParameter(
            f"{min(unused)!r} is no array of columns in {option}", param_hint="--fill"
        )
    if len({isinstance(value, dict) for value in held.values()}) > 1:
        raise typer.BadParameter("some arrays name a type and some do not", param_hint=option)
    return held


def fills(texts: list[str]) -> dict[str, float | int]:
    """Understand repeated [TYPE.]NAME=NUMBER options."""
    held: dict[str, float | int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            if number in ("true", "false"):
                held[name] = number == "true"
            else:
                held[name] = int(number) if re.fullmatch(r"-?\d+", number) else float(number)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not NAME=NUMBER", param_hint="--fill") from error
    return held


def by_node_type(texts: list[str], *, option: str, convert: Callable[[str], Any]) -> Any:
    """Understand repeated [TYPE=]VALUE options: one value, a mapping, or None of none."""
    typed: dict[str, Any] = {}
    plain: list[Any] = []
    for text in texts:
        name, separator, value = text.rpartition("=")
        try:
            converted = convert(value)
        except ValueError as error:
            raise typer.BadParameter(f"{value!r} is not a number", param_hint=option) from error
        if separator:
            typed[name] = converted
        else:
            plain.append(converted)
    if len(plain) > 1 or (plain and typed):
        raise typer.BadParameter("give one value, or one for each TYPE", param_hint=option)
    return plain[0] if plain else typed or None
