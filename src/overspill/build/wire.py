"""Errors as JSON between the build's process and its parent: the same type, the same fields."""

from __future__ import annotations

from typing import Any

from overspill import errors
from overspill.errors import BuildFailedError, OverspillError

_FIELDS = (
    "path",
    "errno",
    "needed_bytes",
    "available_bytes",
    "remedy",
    "row",
    "column",
    "value",
)


def encode_error(error: OverspillError) -> dict[str, Any]:
    """The error's type, message and fields, as JSON holds them."""
    fields = {name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}
    return {"type": type(error).__name__, "message": error.message, "fields": fields}


def decode_error(event: dict[str, Any]) -> OverspillError:
    """The error that `encode_error` was given; unknown types become BuildFailedError."""
    kind = getattr(errors, str(event.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, OverspillError)):
        kind = BuildFailedError
    error = kind(str(event.get("message")))
    for name, value in dict(event.get("fields", {})).items():
        if name in _FIELDS:
            setattr(error, name, value)
    return error
