"""``overspill verify``: read a dataset, or a partition: its checksums, and where it leads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from overspill.cli.json_output import say_json
from overspill.cli.lines import counted, glued, harmless, say
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.storage.manifest import Manifest
    from overspill.storage.partition_manifest import PartitionManifest


def verify(
    dataset: Annotated[str, typer.Argument(help="The directory of a dataset, or of its parts.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Read every file of a dataset once and compare its checksum.

    Row pointers and ids of nodes that would lead out of the dataset are found on the way.

    Exit status 1 where a file is missing, cannot be read, differs, or leads out of the dataset.

    --json gives an object with path, files, parts, size_bytes, seconds and problems (path, reason).
    """
    from overspill.cli.progress import PhaseBars, format_duration
    from overspill.storage.checksums import verify_checksums
    from overspill.storage.index_bounds import bounds_of
    from overspill.storage.manifest import Manifest

    started = time.monotonic()
    places = _places(Path(dataset))
    sizes = {place: sum(one.nbytes for one in held.files()) for place, held in places.items()}
    total = sum(sizes.values())
    problems, before = [], 0
    with PhaseBars() as bars:

        def tell(done: int, _total: int) -> None:
            bars.update("verify", before + done, total, "B")

        for place, manifest in places.items():
            bounds = bounds_of(manifest) if isinstance(manifest, Manifest) else None
            problems += verify_checksums(place, manifest, bounds=bounds, progress=tell)
            before += sizes[place]
    seconds = time.monotonic() - started
    files = sum(len(manifest.files()) for manifest in places.values())
    if as_json:
        told = [{"path": one.path, "reason": one.reason} for one in problems]
        found = {"path": dataset, "files": files, "parts": len(places) - 1, "size_bytes": total}
        say_json({**found, "seconds": seconds, "problems": told})
    for problem in problems:
        say(harmless(f"overspill: {problem.path}: {problem.reason}"), err=True, indent=2)
    if problems:
        say("  what to do: build the dataset again, or copy anew what differs", err=True)
        raise typer.Exit(1)
    if not as_json:
        parts = f" in {counted(len(places) - 1, 'part')}" if len(places) > 1 else ""
        size = glued(f"{format_bytes(total)} in {format_duration(seconds)}")
        say(f"{harmless(dataset)}: {glued(counted(files, 'file'))}{parts} as recorded, {size}")


def _places(path: Path) -> dict[Path, Manifest | PartitionManifest]:
    """The dataset; or the partition and each part."""
    from overspill.cli.holdings import is_partition
    from overspill.storage.manifest import read_manifest
    from overspill.storage.partition_manifest import read_partition

    if not is_partition(path):
        return {path: read_manifest(path, check_files=False)}
    partition = read_partition(path, check_files=False)
    parts = [path / part.path for part in partition.parts]
    return {path: partition, **{part: read_manifest(part, check_files=False) for part in parts}}
