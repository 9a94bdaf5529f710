"""``overspill verify``: read a dataset, or a partition, and compare its checksums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from overspill.storage.manifest import Manifest
    from overspill.storage.partition_manifest import PartitionManifest


def verify(
    dataset: Annotated[str, typer.Argument(help="The directory of a dataset, or of its parts.")],
) -> None:
    """Read every file of a dataset once and compare its checksum; exit 1 when one differs."""
    from overspill.cli.progress import PhaseBars
    from overspill.storage.checksums import verify_checksums

    places = _places(Path(dataset))
    sizes = {place: sum(one.nbytes for one in held.files()) for place, held in places.items()}
    problems, before = [], 0
    with PhaseBars() as bars:

        def tell(done: int, _total: int) -> None:
            bars.update("verify", before + done, sum(sizes.values()), "B")

        for place, manifest in places.items():
            problems += verify_checksums(place, manifest, progress=tell)
            before += sizes[place]
    for problem in problems:
        typer.echo(f"overspill: {problem.path}: {problem.reason}", err=True)
    if problems:
        typer.echo("  what to do: build the dataset again, or copy the file anew", err=True)
        raise typer.Exit(1)
    files = sum(len(manifest.files()) for manifest in places.values())
    parts = f" in {len(places) - 1} parts" if len(places) > 1 else ""
    typer.echo(f"{dataset}: {files} files{parts} as recorded")


def _places(path: Path) -> dict[Path, Manifest | PartitionManifest]:
    """The dataset; or the partition and each part."""
    from overspill.storage.manifest import read_manifest
    from overspill.storage.partition_manifest import PARTITION_NAME, read_partition

    if not (path / PARTITION_NAME).exists():
        return {path: read_manifest(path, check_files=False)}
    partition = read_partition(path, check_files=False)
    parts = [path / part.path for part in partition.parts]
    return {path: partition, **{part: read_manifest(part, check_files=False) for part in parts}}
