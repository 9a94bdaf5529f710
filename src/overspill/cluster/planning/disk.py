"""What lies on a machine's disk: the parts, to the byte, and what their build needs beside them.

A build cuts the input into splits; of each split, every part gets a file of blocks by range of its
rows, whose last block a range fills a page in part. Where machines have disks of their own, what
others staged for a part is copied to its machine's disk until it is built; what was staged goes at
the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from overspill.build.parting.staged_edges import StageSizes
from overspill.build.passes.partition import block_payload_bytes
from overspill.build.passes.spool import most_reserved_bytes
from overspill.cluster.building.splitting import split_bytes
from overspill.cluster.planning.workload import NARROW_NODES, Workload

# Each array file starts with a header of a page.
HEADER_BYTES = 4096
_PAGE = 4096
_OFFSET_BYTES = 8
_ENTRY_BYTES = 24  # of the table of a file's blocks
_ENDS = 2  # of an edge
# With so many records in a range, half of its last page is empty, whatever their number.
_MANY = 1e5


@dataclass(frozen=True, kw_only=True)
class DiskUse:
    """Bytes on the disk of the machine that has the most; of a shared disk, a machine's share.

    Attributes:
        input_bytes: Edge files, its share, and node arrays: there before.
        staged_bytes: Edges of its splits, on their way to their parts.
        reserved_bytes: What the files of splits under way are reserved ahead of their writers.
        fetched_bytes: What other machines staged for its parts, one part after another.
        copies_bytes: Copies of it at a time: those of a part.
        dataset_bytes: Array files of its parts.
        splits: Splits of the whole input.
        all_staged_bytes: What is staged of all of them, on all machines.
    """

    input_bytes: int
    staged_bytes: int
    reserved_bytes: int
    fetched_bytes: int
    copies_bytes: int
    dataset_bytes: int
    splits: int
    all_staged_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most that a build has there at a time, without the input."""
        finished = self.staged_bytes + self.copies_bytes + self.dataset_bytes
        return max(self.staged_bytes + self.reserved_bytes, finished)


def disk_use(work: Workload, *, cores: float) -> DiskUse:
    """Bytes a machine.

    Args:
        work: What is planned for.
        cores: Processors a machine: as many splits are staged at a time.
    """
    of_part = -(-work.nodes // work.parts), -(-work.edges // work.parts)
    part = part_bytes(*of_part, nodes_of_all=work.nodes, feature_bytes=work.feature_bytes)
    splits = number_of_splits(work, cores=cores)
    mine = -(-splits // work.machines)
    staged = staged_split_bytes(work, edges=work.edges / splits) if splits else 0
    remote = 0.0 if work.shared_disk else 1 - 1 / work.machines
    return DiskUse(
        input_bytes=_input_bytes(work),
        staged_bytes=math.ceil(mine * staged),
        reserved_bytes=_reserved_bytes(work, staged, at_a_time=min(mine, math.ceil(cores))),
        fetched_bytes=math.ceil(splits * staged * work.load * remote),
        copies_bytes=math.ceil(splits * staged / work.parts * remote),
        dataset_bytes=work.parts_a_machine * part,
        splits=splits,
        all_staged_bytes=math.ceil(splits * staged),
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


def number_of_splits(work: Workload, *, cores: float) -> int:
    """Splits of edge files that can be read in part, as .npy and Parquet can."""
    total = work.edges * work.input_edge_bytes
    return -(-total // split_bytes(total, max(1, math.floor(work.machines * cores))))


def staged_split_bytes(work: Workload, *, edges: float) -> float:
    """Bytes of all files that are staged of a split: expected, of targets drawn at random."""
    sizes = StageSizes.of(work.parts)
    rows = -(-work.nodes // work.parts)
    of_range = 1 << sizes.shift(rows)
    full, rest = divmod(rows, of_range)
    record = _ENDS * work.id_bytes
    block = block_payload_bytes(sizes.block_bytes, _ENDS)
    payload = blocks = 0.0
    for ranges, held in ((full, of_range), (bool(rest), rest)):
        each = edges / work.parts * held / rows
        payload += ranges * _PAGE * expected_pages(each, _PAGE // record)
        blocks += ranges * expected_pages(each, block // record)
    return work.parts * (payload + _PAGE * math.ceil(_ENTRY_BYTES * blocks / _PAGE))


def expected_pages(records: float, a_page: int) -> float:
    """Pages, the last filled in part, that a Poisson number of records takes, expected.

    The sum of P(number > j pages) over j: of none by Poisson's own, of others by its normal limit.
    """
    if records > _MANY:
        return records / a_page + 0.5
    pages = -math.expm1(-records)
    spread = math.sqrt(2 * records)
    for full in range(1, int((records + 12 * spread) / a_page) + 1):
        pages += 0.5 * math.erfc((full * a_page + 0.5 - records) / spread)
    return pages


def _reserved_bytes(work: Workload, staged: float, *, at_a_time: int) -> int:
    of_file = math.ceil(staged / work.parts)
    return at_a_time * work.parts * (most_reserved_bytes(of_file) - of_file)


def _input_bytes(work: Workload) -> int:
    """Node arrays are a file each, on one machine or on all; edges are spread evenly."""
    edges = -(-work.edges // work.machines) * work.input_edge_bytes
    rows = work.nodes * work.feature_bytes
    return edges + (-(-rows // work.machines) if work.shared_disk else rows)
