"""The journal of a build: what it made, listed before it was made, and how that is removed.

It is the marker of an unfinished build and locked for as long as the build runs. What is removed is
what is listed, and nothing else.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from overspill.errors import FormatError, OutputDirError
from overspill.linux.locks import open_locked
from overspill.storage.manifest import MANIFEST_NAME, UNFINISHED_NAME, read_manifest
from overspill.storage.records import require_inside

MARKER_NAME = UNFINISHED_NAME
SCRATCH = "scratch"  # where files that do not outlive the build go
NESTED = f"{SCRATCH}/whole/"  # where a build inside of this one goes
MAGIC = {"format": "overspill-build", "version": 1}


def is_unfinished_build(path: Path) -> bool:
    """Whether a directory holds the marker of an Overspill build."""
    try:
        with (path / MARKER_NAME).open("rb") as file:
            first = file.readline(1000)
    except OSError:
        return False
    # A cut line, or none: killed, or refused by the disk, while the marker was being made.
    if (json.dumps(MAGIC).encode() + b"\n").startswith(first):
        return True
    try:
        return bool(json.loads(first) == MAGIC)
    except (ValueError, RecursionError):
        return False


def remove_listed(path: Path) -> None:
    """Remove what an unfinished build's marker lists, in reverse order, and nothing else.

    Raises:
        FormatError: The list names something outside the directory.
    """
    remove_entries(path, listed_entries(path, ""))


def read_journal(path: Path) -> list[Any]:
    """What a marker says after its first line: files as strings, all else as objects."""
    lines = (path / MARKER_NAME).read_bytes().split(b"\n")[1:]
    found = []
    for line in lines[:-1]:  # what follows the last line feed was cut by a crash
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                require_inside(entry)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(
                f"{path / MARKER_NAME} is damaged",
                path=str(path),
                remedy="remove the unfinished build's directory, and begin again",
            ) from error
        found.append(entry)
    return found


def is_step(line: object) -> bool:
    """Whether a line says that a step is finished."""
    return isinstance(line, dict) and "step" in line


def listed_entries(path: Path, prefix: str) -> list[str]:
    """The files and directories that a marker lists, of those whose path begins so."""
    return [
        line for line in read_journal(path) if isinstance(line, str) and line.startswith(prefix)
    ]


def unfinished_bytes(path: Path) -> int:
    """Disk space that an unfinished build holds; 0 without one, or where it cannot be read."""
    total = 0
    files = (entry for entry in _listed_of_unfinished(path) if not entry.endswith("/"))
    for entry in files:
        with suppress(OSError):
            total += (path / entry).lstat().st_blocks * 512
    return total


def finished_steps(path: Path) -> int | None:
    """How many steps of an unfinished build are finished; None where there is no such build."""
    if not is_unfinished_build(path):
        return None
    try:
        return sum(is_step(line) for line in read_journal(path))
    except (OSError, FormatError):
        return 0


def _listed_of_unfinished(path: Path) -> list[str]:
    if not is_unfinished_build(path):
        return []
    try:
        return listed_entries(path, "")
    except (OSError, FormatError):
        return []


def remove_entries(path: Path, entries: list[str]) -> None:
    """Remove listed files, and listed directories where they are empty, the last first.

    Raises:
        FormatError: One lies behind a link.
    """
    for entry in reversed(entries):
        target = path / entry
        if target.parent.resolve() != (path.resolve() / entry).parent:
            raise FormatError(
                f"{target} lies behind a link",
                path=str(target),
                remedy="remove the link and, where nobody needs it, what it points to",
            )
        if entry.endswith("/"):
            if entry == NESTED:
                _remove_nested(target)
            if target.is_dir() and not any(target.iterdir()):
                target.rmdir()
        else:
            target.unlink(missing_ok=True)


def _remove_nested(path: Path) -> None:
    """Remove a build inside of this one, finished or not, by what it lists itself."""
    if (path / MANIFEST_NAME).is_file():
        listed = [record.path for record in read_manifest(path, check_files=False).files()]
        parents = {str(parent) + "/" for name in listed for parent in Path(name).parents}
        # The manifest last: whatever stops this, what is left is still listed.
        remove_entries(path, [MANIFEST_NAME, *sorted(parents - {"./"}), *listed])
    if (path / MARKER_NAME).is_file():
        fd = lock_marker(path / MARKER_NAME)
        try:
            remove_listed(path)
            (path / MARKER_NAME).unlink()
        finally:
            os.close(fd)


def lock_marker(marker: Path) -> int:
    """Open a marker, or make it, and lock it; the descriptor holds the lock.

    Raises:
        OutputDirError: Another build holds it.
    """
    fd = open_locked(marker, flags=os.O_APPEND)
    if fd is not None:
        return fd
    raise OutputDirError(
        f"another build is writing {marker.parent}",
        path=str(marker.parent),
        remedy="wait for it to end, or choose another directory",
    )
