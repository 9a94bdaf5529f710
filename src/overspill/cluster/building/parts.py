"""The parts of a build in stages on one machine: which are finished."""

from __future__ import annotations

from dataclasses import dataclass

from overspill.cluster.building.job import JobPlan, part_name
from overspill.errors import OutputDirError
from overspill.storage.manifest import MANIFEST_NAME, read_manifest


@dataclass(frozen=True)
class FinishedPart:
    """A part that is a dataset now.

    Attributes:
        index: Its number.
        identifier: Its manifest's.
        nodes: Its nodes, of all types.
        edges: Its edges, of all types.
    """

    index: int
    identifier: str
    nodes: int
    edges: int


def finished_part(plan: JobPlan, part: int) -> FinishedPart | None:
    """What a part's manifest says; None where there is none yet."""
    place = plan.part_directory(part)
    if not (place / MANIFEST_NAME).exists():
        return None
    manifest = read_manifest(place)
    record = manifest.partition
    if record is None or (record.partition, record.index) != (plan.identifier, part):
        raise OutputDirError(
            f"{place} holds another dataset",
            path=str(place),
            remedy="move it away, or choose another directory",
        )
    return FinishedPart(
        part,
        manifest.identifier,
        sum(node.count for node in manifest.node_types.values()),
        sum(edge.count for edge in manifest.edge_types.values()),
    )


def part_lock(part: int) -> str:
    """The file that whoever builds a part holds locked."""
    return f"{part_name(part)}.lock"


def array_file(part: int, name: str, array: str) -> str:
    """Where a part's node array is made before the part takes it."""
    # Names may hold dots: "b.c" of "a" is not "c" of "a.b".
    return f"{part_name(part)}:{name}:{array}.safetensors"
