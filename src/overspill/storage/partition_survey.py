"""What a machine has of a partition: which parts can be opened, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from overspill.errors import FormatError, StaleFileError
from overspill.storage.manifest import Manifest, read_manifest
from overspill.storage.partition_manifest import PartitionManifest, read_partition


@dataclass(frozen=True)
class FoundParts:
    """What a machine has at a path.

    Attributes:
        partition: What it says it is; None where there is none.
        parts: Manifests of the parts that can be opened, by number.
        problems: Why others cannot, by number; None stands for the partition.
    """

    partition: PartitionManifest | None = None
    parts: dict[int, Manifest] = field(default_factory=dict)
    problems: dict[int | None, str] = field(default_factory=dict)


def find_parts(path: str) -> FoundParts:
    """What this machine has at a path; files are checked as where a dataset is opened."""
    directory = Path(path)
    try:
        # The books are for who looks up single nodes: the parts tell all that they do.
        partition = read_partition(directory, check_files=False)
    except (FormatError, StaleFileError) as error:
        return FoundParts(problems={None: str(error)})
    parts: dict[int, Manifest] = {}
    problems: dict[int | None, str] = {}
    for number, entry in enumerate(partition.parts):
        try:
            parts[number] = _part(directory / entry.path, partition, number)
        except (FormatError, StaleFileError) as error:
            problems[number] = str(error)
    return FoundParts(partition, parts, problems)


def _part(directory: Path, partition: PartitionManifest, number: int) -> Manifest:
    manifest = read_manifest(directory)
    held = manifest.partition
    if (
        manifest.identifier != partition.parts[number].identifier
        or held is None
        or (held.partition, held.index) != (partition.identifier, number)
    ):
        raise StaleFileError(
            f"{directory} is not part {number} of the partition",
            path=str(directory),
            remedy="put the part back that was there, or partition the dataset again",
        )
    return manifest
