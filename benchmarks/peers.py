"""Other libraries that do the same work; each may be missing."""

from __future__ import annotations

import importlib
from types import ModuleType


def peer(name: str) -> ModuleType | None:
    """The module of a peer, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A peer that is there but lacks something of its own is broken, not missing.
        if error.name != name:
            raise
        return None
