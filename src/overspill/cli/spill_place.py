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


def counted(number: int, what: str) -> str:
    """A count and its noun: "1 file", "1,200 files"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def harmless(text: str) -> str:
    """Text of unknown origin as a terminal may show it: what it would obey is written out."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
