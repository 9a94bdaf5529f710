"""The spill directory that a verb is about: given, or the one in the settings."""

from __future__ import annotations

from pathlib import Path

from overspill.errors import SettingsError
from overspill.settings import current_settings


def spill_place(directory: Path | None, verb: str) -> Path:
    """The directory given at the prompt, else OVERSPILL_DIR; SettingsError where there is none."""
    place = directory or current_settings().spill_dir
    if place is None:
        raise SettingsError(
            "no spill directory is given", remedy=f"overspill {verb} DIR, or set OVERSPILL_DIR"
        )
    return place
