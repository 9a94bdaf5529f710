"""A directory for compiled code that nobody else could have put code into."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def private_cache_directory(parent: Path | None = None) -> Path | None:
    """A cache directory that only this user can write, under `parent` or the temporary directory.

    Returns:
        The directory; None where it cannot be made, or where somebody else could have put code
        into it: numba loads machine code from its cache.
    """
    owner = os.geteuid()
    try:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        directory = parent / f"overspill-kernels-{owner}"
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return None
    private = directory.is_dir() and not directory.is_symlink()
    safe = private and found.st_uid == owner and not found.st_mode & 0o077
    return directory if safe else None
