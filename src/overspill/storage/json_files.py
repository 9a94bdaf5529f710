"""Small JSON files that are there whole or not at all: manifests."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from overspill import __version__
from overspill.errors import DiskRefusedError, FormatError, sentence_of
from overspill.storage.arrays import open_regular, sync_directory
from overspill.storage.records import DAMAGED

Decoded = TypeVar("Decoded")


def publish_json(target: Path, document: dict[str, Any]) -> None:
    """Write a document durably under its name.

    Temporary name, fsync, rename, fsync of the directory: a crash leaves either no file or all of
    it. A float that is no finite number is text ("nan", "inf"): JSON has no such numbers.

    Raises:
        DiskRefusedError: The disk refused; no file is left.
    """
    partial = written = target.with_name(target.name + ".partial")
    text = json.dumps(_spelled(document), indent=1, allow_nan=False).encode() + b"\n"
    try:
        with partial.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written = partial.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        written.unlink(missing_ok=True)
        raise DiskRefusedError(
            f"the disk refused {target}: {error.strerror}",
            path=str(target),
            errno=error.errno,
            remedy="free space, or check that the directory may be written",
        ) from error


def read_document(
    path: Path,
    decode: Callable[[dict[str, Any]], Decoded],
    *,
    form: str,
    version: int,
    most_bytes: int = 64 << 20,
) -> Decoded:
    """Read what `publish_json` wrote, and make of it what it stands for.

    Args:
        path: The file.
        decode: Makes it of the document; a plain error where that is wrong.
        form: The format's name, under "format".
        version: Its version, under "version".
        most_bytes: No more than that is read; what is larger is damaged.

    Raises:
        OSError: It cannot be opened or read, or is no regular file: the caller knows what it means.
        FormatError: As `parse_document`, or `decode` did not understand it.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        text = file.read(most_bytes)
    held = parse_document(text, path, form=form, version=version)
    try:
        return decode(held)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise not_understood(path, error) from error


def parse_document(text: bytes, path: Path, *, form: str, version: int) -> dict[str, Any]:
    """The document that `publish_json` wrote, of the one format and version that can be read.

    Args:
        text: What the file holds.
        path: The file, for messages.
        form: The format's name, under "format".
        version: Its version, under "version".

    Raises:
        FormatError: It is no JSON, of another format, or of another version; which, and what to do.
    """
    try:
        held = json.loads(text, parse_constant=str)  # NaN, as older ones have it
        found, number = held["format"], held["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise not_understood(path, error) from error
    if found != form:
        raise not_understood(path, ValueError(f"its format is {found!r}, not {form!r}"))
    if type(number) is not int:
        raise not_understood(path, ValueError(f"its version is {number!r}"))
    if number != version:
        newer = number > version
        raise FormatError(
            f"{path} has version {number} of its format, {'newer' if newer else 'older'} than "
            f"version {version}, which this Overspill ({__version__}) reads",
            path=str(path),
            remedy="install a newer Overspill (pip install -U overspill)"
            if newer
            else "build it again, or open it with the Overspill that wrote it",
        )
    return dict(held)


def _spelled(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _spelled(held) for name, held in value.items()}
    return [_spelled(held) for held in value] if isinstance(value, list | tuple) else value


def not_understood(path: Path, error: Exception) -> FormatError:
    """The error of a document that was cut, changed, or is another program's."""
    return FormatError(
        f"{path} cannot be understood: {sentence_of(error)}",
        path=str(path),
        remedy=DAMAGED,
    )
