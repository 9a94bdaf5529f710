"""A directory of the bench's own on the disk that is measured, gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overspill.cli.bench.leftovers import PREFIX, leftovers, marked_running
from overspill.cli.bench.sizes import Sizes
from overspill.cli.on_disk import require_disk, unwritable
from overspill.errors import DiskRefusedError
from overspill.settings import settings
from overspill.storage.spill_files import spare_bytes
from overspill.storage.workspace import leave_runs
from overspill.units import format_bytes


@contextmanager
def place_for(parent: Path, sizes: Sizes, *, smaller: Sizes | None = None) -> Iterator[Path]:
    """Make a directory for the bench's files, and spill into it for the span.

    Args:
        parent: An existing directory on the disk to measure.
        sizes: What will be moved.
        smaller: What would be moved with --quick, for the remedy.

    Yields:
        The new directory, absolute; removed with all that is in it, also after an error.

    Raises:
        SpillDirError: No directory, not writable, or memory in disguise.
        DiskRefusedError: Too little room beside the share of the disk that stays free.
        UnavailableError: The file system cannot be asked, or has no locks.
    """
    require_disk(parent, verb="bench")
    _require_room(parent, sizes.disk_bytes, smaller.disk_bytes if smaller else None)
    try:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent)
    except OSError as error:
        raise unwritable(parent, error, verb="bench") from error
    with made as name, marked_running(Path(name)), _spilling_into(Path(name).resolve()) as work:
        yield work


@contextmanager
def _spilling_into(work: Path) -> Iterator[Path]:
    with settings(
        spill_dir=work / "spill",
        min_bytes=1,
        disk_limit_bytes=None,
        memory_limit_bytes=None,
        spill_batches=False,
    ):
        try:
            yield work
        finally:
            leave_runs()


def _require_room(parent: Path, needed: int, quick: int | None) -> None:
    room = spare_bytes(parent)
    if needed <= room:
        return
    remedy = "free some space, or choose another disk with --dir"
    if quick is not None and quick <= room:
        remedy = f"overspill bench --quick, which takes {format_bytes(quick)}; or {remedy}"
    left = leftovers(parent)
    if left.sizes:
        remedy = (
            f"{left.command()}, which removes what killed benches left, {left.told()}; {remedy}"
        )
    raise DiskRefusedError(
        "the bench's files do not fit this disk, of which a twentieth stays free",
        path=str(parent.resolve()),
        needed_bytes=needed,
        available_bytes=max(0, room),
        remedy=remedy,
    )
