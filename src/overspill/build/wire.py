"""What the build's process and its parent agree on: its options, and errors as JSON.

An error arrives as the same type, with the same fields.
"""

from __future__ import annotations

from typing import Any

from overspill import errors
from overspill.errors import BuildFailedError, DiskRefusedError, NoRoomError, OverspillError

PLAN_ONLY_OPTION = "--plan-only"  # of the build's process: tell the plan, and end
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


def name_error(error: OSError | MemoryError, *, path: str) -> OverspillError:
    """What the system refused where no one expected it, as a leaf that names the place.

    Args:
        error: Any; one of Overspill's own is returned as it is.
        path: The build's directory, where the error names no file.
    """
    if isinstance(error, OverspillError):
        return error
    if isinstance(error, MemoryError):
        return NoRoomError(
            f"the system gave the build no memory: {error}".removesuffix(": "),
            path=path,
            remedy="set a lower memory_limit, or raise the limits of the process (ulimit -v)",
        )
    place = path if error.filename is None else str(error.filename)
    return DiskRefusedError(
        f"the system refused {place}: {error.strerror or error}",
        path=place,
        errno=error.errno,
        remedy="check that the path can be read and written",
    )


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
