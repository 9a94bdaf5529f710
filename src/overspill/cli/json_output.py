"""Output for programs: JSON that every parser takes, so without NaN and Infinity."""

from __future__ import annotations

import json
import math
from typing import Any

import typer


def say_json(document: dict[str, Any], *, indent: int | None = None) -> None:
    """Print an object; a float that is no finite number is null.

    Args:
        document: What JSON can hold; tuples become lists.
        indent: Spaces a level; None prints one line.
    """
    typer.echo(json.dumps(_finite(document), indent=indent, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(held) for name, held in value.items()}
    return [_finite(held) for held in value] if isinstance(value, list | tuple) else value
