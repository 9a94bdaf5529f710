"""What lies on a machine's disk: the parts, to the byte, and what their build needs beside them."""

from __future__ import annotations

from dataclasses import dataclass

from overspill.cluster.planning.workload import NARROW_NODES, Workload

# Each array file starts with a header of a page.
HEADER_BYTES = 4096
_OFFSET_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """Bytes on the disk of the machine that has the most.

    Attributes:
        input_bytes: Its share of the input files, which are there before.
        staged_bytes: Edges on their way to their owners; removed at the end.
        dataset_bytes: Its parts.
    """

    input_bytes: int
    staged_bytes: int
    dataset_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most that a build has there at a time, without the input."""
        return self.staged_bytes + self.dataset_bytes


def disk_use(work: Workload) -> DiskUse:
    """Bytes a machine; on a shared disk too, as if each machine had its share of it."""
    of_part = -(-work.nodes // work.parts), -(-work.edges // work.parts)
    part = part_bytes(*of_part, nodes_of_all=work.nodes, feature_bytes=work.feature_bytes)
    each = -(-work.edges // work.machines)
    rows = -(-work.nodes // work.machines)
    return DiskUse(
        input_bytes=each * work.input_edge_bytes + rows * work.feature_bytes,
        staged_bytes=each * 2 * work.id_bytes,
        dataset_bytes=work.parts_a_machine * part,
    )


def part_bytes(
    nodes: int, edges: int, *, nodes_of_all: int, feature_bytes: int, arrays: int = 1
) -> int:
    """Bytes of the array files of a part.

    Args:
        nodes: Its nodes.
        edges: Their in-edges.
        nodes_of_all: Nodes of the whole graph, which tell how wide an id is.
        feature_bytes: Bytes of all node arrays, a node.
        arrays: How many node arrays there are; none where `feature_bytes` is 0.
    """
    id_bytes = 4 if nodes_of_all <= NARROW_NODES else 8
    files = 2 + (arrays if feature_bytes else 0)
    payload = _OFFSET_BYTES * (nodes + 1) + id_bytes * edges + feature_bytes * nodes
    return payload + HEADER_BYTES * files
