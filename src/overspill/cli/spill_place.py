"""The spill directory that a verb is about: given, or the one in the settings."""

from __future__ import annotations

import shlex
from pathlib import Path

from overspill.errors import SettingsError, SpillDirError
from overspill.settings import current_settings


def spill_place(directory: Path | None, verb: str) -> Path:
    """The directory given at the prompt, else OVERSPILL_DIR; SettingsError where there is none."""
    place = directory or current_settings().spill_dir
    if place is None:
        raise SettingsError(
            "no spill directory is given", remedy=f"overspill {verb} DIR, or set OVERSPILL_DIR"
        )
    return place


def refuse_dataset(place: Path) -> None:
    """Refuse a directory without a run that is a dataset, whole or unfinished.

    Raises:
        SpillDirError: It is one, and no spill directory.
    """
    from overspill.build.journal import is_unfinished_build
    from overspill.storage.manifest import MANIFEST_NAME
    from overspill.storage.partition_manifest import PARTITION_NAME

    whole = any((place / name).is_file() for name in (MANIFEST_NAME, PARTITION_NAME))
    if whole or is_unfinished_build(place):
        told = "a dataset" if whole else "an unfinished build of a dataset"
        look = f"look at it with overspill info {shlex.quote(str(place))}, or " if whole else ""
        raise SpillDirError(
            f"{place} is {told}, no spill directory",
            path=str(place),
            remedy=f"{look}give the directory that OVERSPILL_DIR names",
        )
