"""What a build is going to do and to take, told before it starts: passes, buckets, disk.

Two numbers of bytes: what is likely, and what is hardly less. The first is told, by the second a
build is refused that would come to its end hours later. They are the same but where edges have to
be read to be counted, or may become fewer on their way.
Limits: of the number of nodes that only the edges tell, row pointers and ids are not counted;
neither are what overfull ranges and long rows take once more, nor text of ids. `unknown` names what
is missing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from overspill.build.array_inputs import ArrayInput
from overspill.build.edge_types import degree_options, row_options
from overspill.build.inputs import EdgeInputs, Inputs
from overspill.build.passes.buckets import BucketShape, RowOptions
from overspill.build.passes.spool import most_reserved_bytes
from overspill.build.plan import BuildPlan
from overspill.build.readers.line_samples import EdgeEstimate, estimate_edges
from overspill.build.readers.source import SourceFile
from overspill.build.remedies import FREE_SPACE
from overspill.build.spec import STREAM_PREFIX, BuildSpec
from overspill.errors import DiskRefusedError
from overspill.linux.mounts import free_disk_bytes
from overspill.units import format_bytes

_SAMPLED_FILES = 8
_HEADER_BYTES = 4096  # of an array file
_BLOCK_BYTES = 4096  # to which blocks of a spool are padded
_POSITION_BYTES = 4


@dataclass(frozen=True)
class Pass:
    """One phase over the data of one type, as progress will name it.

    Attributes:
        phase: What progress calls it.
        of: The node or edge type, and the layout where there are several.
        amount: How much of `unit` it goes through; 0 where nothing tells.
        unit: "B" or "edges".
        buckets: Buckets that it sorts, about; 0 where it sorts none.
    """

    phase: str
    of: str
    amount: int
    unit: str
    buckets: int = 0


@dataclass(frozen=True)
class Forecast:
    """What a build is going to do and to take of the disk.

    Attributes:
        passes: In order.
        files: Number of input files.
        input_bytes: Their size.
        edges: Edges that are read, of all types.
        edges_known: Whether that is certain; else it is an estimate, of files that were sampled.
        disk_bytes: The most that is on disk at a time, the likely number.
        least_disk_bytes: What it hardly is less than.
        dataset_bytes: What stays of it.
        free_bytes: What the disk has, with what an unfinished build in its place holds.
        unknown: What the numbers leave out.
    """

    passes: tuple[Pass, ...]
    files: int
    input_bytes: int
    edges: int
    edges_known: bool
    disk_bytes: int
    least_disk_bytes: int
    dataset_bytes: int
    free_bytes: int
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The forecast as JSON holds it."""
        return asdict(self)

    def require_disk(self, out: str) -> None:
        """Refuse a build that its disk cannot hold.

        Raises:
            DiskRefusedError: It names what is needed at the least, and what there is.
        """
        if self.least_disk_bytes > self.free_bytes:
            raise DiskRefusedError(
                "the dataset and the build's scratch space do not fit the disk: they are likely to "
                f"take {format_bytes(self.disk_bytes)}, and hardly less than what is needed here",
                path=out,
                errno=errno.ENOSPC,
                needed_bytes=self.least_disk_bytes,
                available_bytes=self.free_bytes,
                remedy=FREE_SPACE,
            )


def forecast_build(
    spec: BuildSpec, inputs: Inputs, plan: BuildPlan, *, held_bytes: int = 0
) -> Forecast:
    """Tell what a build is going to do, from what is known before its edges are read.

    Reads 1 MiB of a text file, of eight files at most of each edge type.

    Args:
        spec: The build.
        inputs: Its opened inputs; of what comes from memory nothing is known.
        plan: The sizes of its buffers.
        held_bytes: Disk space that an unfinished build in the same place gives back, or has done.

    Raises:
        InputError: A file that is sampled cannot be read.
        UnavailableError: The file system does not tell its room.
    """
    read = [_edges_of(edge) for edge in inputs.edges]
    likely = [one.likely for one in read]
    peak, stays = _Disk(spec, inputs, plan, likely, certain=False).bytes()
    least, _ = _Disk(spec, inputs, plan, [one.least for one in read], certain=True).bytes()
    sources = inputs.sources()
    return Forecast(
        passes=tuple(_passes(spec, inputs, plan, likely)),
        files=len(sources),
        input_bytes=sum(nbytes for _, nbytes in sources),
        edges=sum(likely),
        edges_known=all(one.least == one.likely for one in read) and not spec.streams,
        disk_bytes=max(peak, least),
        least_disk_bytes=least,
        dataset_bytes=stays,
        free_bytes=free_disk_bytes(spec.out) + held_bytes,
        unknown=tuple(_unknown(spec, inputs)),
    )


def _edges_of(edge: EdgeInputs) -> EdgeEstimate:
    """How many edges the files of a type hold."""
    known = edge.least_edges
    paths = [
        path
        for path, reader in zip(edge.spec.paths, edge.readers, strict=True)
        if reader.count is None and not path.startswith(STREAM_PREFIX)
    ]
    if not paths:
        return EdgeEstimate(known, known)
    files = [SourceFile.check(path) for path in paths]
    sampled = files[:: -(-len(files) // _SAMPLED_FILES)]
    found = [estimate_edges(file) for file in sampled]
    share = sum(file.nbytes for file in files) / max(1, sum(file.nbytes for file in sampled))
    return EdgeEstimate(
        known + int(share * sum(one.likely for one in found)),
        known + int(share * sum(one.least for one in found)),
    )


class _Disk:
    """Adds up what a build has on disk, step by step, and keeps the most."""

    def __init__(
        self, spec: BuildSpec, inputs: Inputs, plan: BuildPlan, edges: list[int], *, certain: bool
    ) -> None:
        self._spec, self._inputs, self._plan = spec, inputs, plan
        self._edges, self._certain = edges, certain
        self._counts = {name: node.count or 0 for name, node in inputs.nodes.items()}
        self._stays = self._peak = 0

    def bytes(self) -> tuple[int, int]:
        """The most at a time, and what stays."""
        for name, node in self._inputs.nodes.items():
            if node.kind == "remap":
                self._add_ids(name)
        if self._spec.order == "degree" and not self._certain:
            self._add_order()
        for edge, read in zip(self._inputs.edges, self._edges, strict=True):
            for layout in self._spec.layouts:
                self._add_layout(edge, read, layout)
        for node in self._inputs.nodes.values():
            for array in node.arrays:
                moves = array.keyed or self._spec.order == "degree"
                count = self._counts[node.name] or array.count or 0
                self._keep(self._array(array, count), beside=self._moved(array, count) * moves)
        return self._peak, self._stays

    def _keep(self, nbytes: int, *, beside: int = 0) -> None:
        """Count files that stay, and the scratch space in which they are made."""
        self._stays += nbytes
        self._peak = max(self._peak, self._stays + beside)

    def _file(self, payload_bytes: int) -> int:
        return payload_bytes + (0 if self._certain else _HEADER_BYTES)

    def _add_ids(self, name: str) -> None:
        """Sorted runs of all ids, their merge, and the ids that stay."""
        merged = 8 * self._counts[name]
        runs = merged
        if not self._certain:
            ends = sum(
                read * (edge.spec.type[0], edge.spec.type[2]).count(name)
                for edge, read in zip(self._inputs.edges, self._edges, strict=True)
            )
            runs = max(runs, 8 * ends)
            self._keep(0, beside=most_reserved_bytes(runs))
            self._keep(0, beside=runs + most_reserved_bytes(merged))
        self._keep(self._file(merged), beside=runs + merged)

    def _add_order(self) -> None:
        """Edges built to be counted, then the new numbers and the old ones."""
        held = 0
        for edge, read in zip(self._inputs.edges, self._edges, strict=True):
            rows = self._rows(edge, read, "csc", degree_options(self._spec))
            spool = self._spool(edge, read, edge_ids=False)
            self._keep(0, beside=held + most_reserved_bytes(spool))
            held += rows
            self._keep(0, beside=held + spool)
        for count in self._counts.values():
            numbers = self._id_bytes(count) * count
            moved = numbers + _POSITION_BYTES * count
            self._keep(2 * self._file(numbers), beside=held + moved)

    def _add_layout(self, edge: EdgeInputs, read: int, layout: str) -> None:
        options = row_options(self._spec, edge.spec)
        rows = self._rows(edge, read, layout, options)
        # The room of edges that turn out to repeat others is reserved until the rows are written.
        fewer = self._certain and options.drop
        kept = self._rows(edge, 0, layout, options) if fewer else rows
        spool = self._spool(edge, read, edge_ids=options.edge_ids)
        if not self._certain:
            self._keep(0, beside=most_reserved_bytes(spool))
        self._keep(kept, beside=spool + rows - kept)
        for array in edge.arrays:
            known = 0 if fewer else array.count or 0
            count = known if self._certain else self._run_through(max(read, known))
            self._keep(self._array(array, count), beside=self._moved(array, count))

    def _rows(self, edge: EdgeInputs, read: int, layout: str, options: RowOptions) -> int:
        edges, id_bytes = self._run_through(read), self._wide(edge)
        rows = self._counts[edge.spec.type[2 if layout == "csc" else 0]]
        parts = [8 * (rows + 1), id_bytes * edges]
        if options.edge_ids:
            parts.append(4 * edges)
        if options.duplicates == "count":
            parts.append(8 * edges)
        return sum(self._file(part) for part in parts)

    def _spool(self, edge: EdgeInputs, read: int, *, edge_ids: bool) -> int:
        padding = 0 if self._certain else 2 * self._plan.ranges * _BLOCK_BYTES
        return (2 + edge_ids) * self._wide(edge) * self._run_through(read) + min(
            padding, _BLOCK_BYTES * self._run_through(read)
        )

    def _run_through(self, read: int) -> int:
        """Edges of a layout of so many that are read; of loops nobody knows, nor are they two."""
        return 2 * read if self._spec.to_undirected and not self._certain else read

    def _wide(self, edge: EdgeInputs) -> int:
        ends = edge.spec.type[0], edge.spec.type[2]
        return self._id_bytes(max(self._counts[end] for end in ends))

    def _id_bytes(self, count: int) -> int:
        return 8 if count > self._plan.narrow_nodes else 4

    def _array(self, array: ArrayInput, count: int) -> int:
        return self._file(array.row_bytes * count)

    def _moved(self, array: ArrayInput, count: int) -> int:
        """Scratch space of rows that find their places out of core.

        The rows with their places; and who wants them, or, for messages, where each came from.
        """
        if self._certain:
            return 0
        return (array.row_bytes + _POSITION_BYTES) * count + most_reserved_bytes(8 * count)


def _passes(spec: BuildSpec, inputs: Inputs, plan: BuildPlan, edges: list[int]) -> Iterator[Pass]:
    """The phases of a build, in the order in which they come."""
    if spec.streams:
        yield Pass("take in", "what comes from memory", 0, "B")
    for name, node in inputs.nodes.items():
        if node.kind != "dense":
            touching = [edge for edge in inputs.edges if name in _ends(edge)]
            yield Pass("collect ids", name, sum(edge.nbytes for edge in touching), "B")
    uncounted = {
        name for name, node in inputs.nodes.items() if node.kind == "dense" and node.count is None
    }
    touched = [edge for edge in inputs.edges if uncounted & set(_ends(edge))]
    if len(inputs.edges) > 1 and touched:
        amount = sum(edge.nbytes for edge in touched)
        yield Pass("count nodes", ", ".join(sorted(uncounted)), amount, "B")
    both = list(zip(inputs.edges, edges, strict=True))
    if spec.order == "degree":
        for edge, read in both:
            yield from _layout_passes(spec, inputs, plan, edge, read, "degrees")
        for name in dict.fromkeys(edge.spec.type[2] for edge in inputs.edges):
            yield Pass("renumber nodes", name, 8 * (inputs.nodes[name].count or 0), "B")
    for edge, read in both:
        for layout in spec.layouts:
            yield from _layout_passes(spec, inputs, plan, edge, read, layout)
    for node in inputs.nodes.values():
        if node.arrays:
            amount = sum(array.nbytes for array in node.arrays)
            yield Pass("copy node arrays", node.name, amount, "B")


def _layout_passes(
    spec: BuildSpec, inputs: Inputs, plan: BuildPlan, edge: EdgeInputs, read: int, layout: str
) -> Iterator[Pass]:
    of = f"{':'.join(edge.spec.type)}, {layout}"
    options = degree_options(spec) if layout == "degrees" else row_options(spec, edge.spec)
    placed = read * (2 if spec.to_undirected else 1)
    rows = inputs.nodes[edge.spec.type[0 if layout == "csr" else 2]].count or 0
    wide = max(inputs.nodes[end].count or 0 for end in _ends(edge)) > plan.narrow_nodes
    records = placed * (2 + options.edge_ids) * (8 if wide else 4)
    cost = BucketShape(placed, rows, records, wide).cost_bytes(options)
    yield Pass("partition", of, edge.nbytes, "B")
    yield Pass("build rows", of, placed, "edges", -(-cost // plan.bucket_bytes))
    if layout != "degrees":
        for array in edge.arrays:
            yield Pass("move edge arrays", of, placed * array.row_bytes, "B")


def _ends(edge: EdgeInputs) -> tuple[str, str]:
    return edge.spec.type[0], edge.spec.type[2]


def _unknown(spec: BuildSpec, inputs: Inputs) -> Iterator[str]:
    """What the numbers leave out, for people."""
    if spec.streams:
        yield "what comes from memory"
    for node in inputs.nodes.values():
        if node.count is None:
            each = 8 if node.kind == "dense" else 24
            yield f"{each} bytes a node of type {node.name}, whose number only the edges tell"
        if node.kind == "text":
            yield f"the text of the ids of type {node.name}"
