"""Small JSON files that are there whole or not at all: manifests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from overspill.errors import DiskRefusedError
from overspill.storage.arrays import sync_directory


def publish_json(target: Path, document: dict[str, Any]) -> None:
    """Write a document durably under its name.

    Temporary name, fsync, rename, fsync of the directory: a crash leaves either no file or all of
    it.

    Raises:
        DiskRefusedError: The disk refused; no file is left.
    """
    partial = written = target.with_name(target.name + ".partial")
    text = json.dumps(document, indent=1).encode() + b"\n"
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
            f"the disk refused {target}: {error.strerror}", path=str(target), errno=error.errno
        ) from error
