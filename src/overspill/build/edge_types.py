"""The edge types of a build: read, translated, partitioned, built into rows, arrays moved along.

Each layout reads the input once: compressed by target for "csc", by source for "csr". What becomes
of self loops and of undirected graphs: `edge_policies`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from overspill.build.array_inputs import ArrayInput, store_edge_array
from overspill.build.context import BuildContext
from overspill.build.edge_policies import Edges, with_policies
from overspill.build.inputs import EdgeInputs, out_of_range
from overspill.build.node_types import NodeType, no_nodes
from overspill.build.passes.assemble import RowAssembler, RowFiles, RowOptions
from overspill.build.passes.partition import UNBOUNDED, RangePartitioner
from overspill.build.passes.spool import Blocks
from overspill.build.readers.edges import EdgeChunk, EdgeReader, Strings
from overspill.build.remedies import REPORT
from overspill.build.spec import BuildSpec, Duplicates, EdgeSpec
from overspill.errors import DiskRefusedError, FormatError, InputError
from overspill.linux.mounts import free_disk_bytes
from overspill.storage.records import FileRecord
from overspill.storage.type_records import EdgeTypeRecord

Ids = npt.NDArray[np.int64]


def row_options(spec: BuildSpec, edge: EdgeSpec) -> RowOptions:
    """What becomes of the edges of a type; its arrays find their places by edge ids."""
    return RowOptions(
        edge_ids=spec.edge_ids or bool(edge.arrays),
        sort_within_row=spec.sort_within_row,
        duplicates=spec.duplicates,
    )


def degree_options(spec: BuildSpec) -> RowOptions:
    """What becomes of edges that are built to be counted: those that will go do not count."""
    duplicates: Duplicates = "keep" if spec.duplicates == "keep" else "drop"
    return RowOptions(sort_within_row=False, duplicates=duplicates)


class EdgeType:
    """One edge type of a build.

    Args:
        context: The build.
        inputs: Its edge files.
        source: The node type that its edges leave.
        target: The node type that they enter.
    """

    def __init__(
        self, context: BuildContext, inputs: EdgeInputs, source: NodeType, target: NodeType
    ) -> None:
        self.inputs, self._context = inputs, context
        self.source, self.target = source, target
        self.notes: dict[str, int] = {}
        self._layouts: dict[str, RowFiles] = {}
        self._arrays: dict[str, dict[str, FileRecord]] = {}
        self._rows_read = 0
        self._largest = -1

    @property
    def prefix(self) -> str:
        """Where the type's files go: a directory a part of its name, so that no two types share."""
        return "edges/" + "/".join(self.inputs.spec.type)

    @property
    def edges(self) -> int:
        """Number of edges in the dataset, once a layout has been built."""
        return next(iter(self._layouts.values())).edges

    def build(self, layout: str) -> None:
        """Build a layout from the input, as a step."""
        held = self._context.step(
            f"{layout} of {'/'.join(self.inputs.spec.type)}",
            lambda: self._built(
                layout, f"{self.prefix}/{layout}", row_options(self._context.spec, self.inputs.spec)
            ),
        )
        self._layouts[layout] = _rows_from(held["rows"])
        self._rows_read = held["rows_read"]
        self.notes = held["notes"]
        self.source.note_largest(held["counts"][0] - 1)
        self.target.note_largest(held["counts"][1] - 1)

    def degrees(self) -> FileRecord:
        """Row pointers by target in the order that nodes have now, in scratch space, as a step."""
        held = self._context.step(
            f"degrees of {'/'.join(self.inputs.spec.type)}",
            lambda: self._built(
                "csc", f"scratch/degrees/{self.prefix}", degree_options(self._context.spec)
            ),
        )
        self.source.note_largest(held["counts"][0] - 1)
        self.target.note_largest(held["counts"][1] - 1)
        return _rows_from(held["rows"]).indptr

    def drop_degrees(self) -> None:
        """Remove what `degrees` left in scratch space, once nodes have their new numbers."""
        self._context.directory.remove_scratch("degrees")

    def _built(self, layout: str, prefix: str, options: RowOptions) -> dict[str, Any]:
        context, ends = self._context, (self.source, self.target)
        if layout == "csr":
            ends = self.target, self.source
        counts = [end.count for end in ends]
        notes = {"self_loops": 0}
        partitioner = RangePartitioner(
            context.directory.file("scratch/edges.spool"),
            context.plan,
            id_limits=(_limit(counts[0]), _limit(counts[1])),
            last_target=1 if counts[1] is None else counts[1],
            edge_ids=options.edge_ids,
            hubs="by source" if options.sort_within_row else "whole",
        )
        with partitioner:
            rows_read = self._partition(partitioner, options, notes, swapped=layout == "csr")
            blocks = partitioner.finish()
            if self._takes_edges_as_they_come:
                notes["self_loops"] = partitioner.loops
            self._settle(ends, partitioner)
            rows = self._assemble(blocks, ends, rows_read, prefix=prefix, options=options)
        if rows.duplicates is not None:
            notes["duplicates"] = rows.duplicates
        return {
            "rows": _to_json(rows),
            "rows_read": rows_read,
            "notes": notes,
            "counts": [self.source.known_count, self.target.known_count],
        }

    def _settle(self, ends: tuple[NodeType, NodeType], partitioner: RangePartitioner) -> None:
        """Derive from the edges how many nodes there are, where nothing else said so."""
        largest = partitioner.largest_source, partitioner.largest_target
        if self.source is self.target:
            largest = (max(*largest, self._largest),) * 2
        for end, last in zip(ends, largest, strict=True):
            if end.count is None and last < 0:
                raise no_nodes(end.name, (self.inputs,))
            if end.count is None:
                require_disk_for_rows(self._context.directory.path, last)
            end.note_largest(last)

    def _assemble(
        self,
        blocks: Blocks,
        ends: tuple[NodeType, NodeType],
        rows_read: int,
        *,
        prefix: str,
        options: RowOptions,
    ) -> RowFiles:
        context = self._context
        context.progress.begin("build rows", blocks.edges, "edges")
        assembler = RowAssembler(
            context.directory,
            context.plan,
            num_rows=ends[1].known_count,
            num_columns=ends[0].known_count,
            num_edges=rows_read,
            options=options,
            on_progress=context.progress.reach,
        )
        return assembler.write(blocks, prefix=prefix)

    # Pass 1.

    def _partition(
        self,
        partitioner: RangePartitioner,
        options: RowOptions,
        notes: dict[str, int],
        *,
        swapped: bool,
    ) -> int:
        progress, first = self._context.progress, 0
        progress.begin("partition", self.inputs.nbytes, "B")
        for reader, chunk, done in self.inputs.chunks(self._context.plan.chunk_edges):
            sources, targets = self._translated(chunk)
            count = len(sources)
            if not self._takes_loops(sources):
                raise self._out_of_range(reader, chunk, sources, targets)
            rows = np.arange(first, first + count) if options.edge_ids else None
            edges = self._with_policies(Edges(sources, targets, rows), notes)
            columns = (edges.targets, edges.sources) if swapped else (edges.sources, edges.targets)
            if partitioner.add(*columns, edges.rows) < len(columns[0]):
                raise self._out_of_range(reader, chunk, sources, targets)
            first += count
            progress.reach(done)
        return first

    def _translated(self, chunk: EdgeChunk) -> tuple[Ids, Ids]:
        raw = chunk.sources, chunk.targets
        alike = self.source is self.target and not isinstance(raw[0], Strings)
        if alike and self.source.translates:
            # One sort for both ends.
            both = self.source.translate(np.concatenate(cast("Any", raw)))
            return both[: len(raw[0])], both[len(raw[0]) :]
        return self.source.translate(raw[0]), self.target.translate(raw[1])

    def _takes_loops(self, sources: Ids) -> bool:
        """Whether ids are in range, of self loops that will go too: they name nodes as well."""
        if self.source is not self.target or self._context.spec.self_loops == "keep":
            return True
        self._largest = max(self._largest, int(sources.max(initial=-1)))
        return int(sources.min(initial=0)) >= 0 and self._largest < _limit(self.source.count)

    @property
    def _takes_edges_as_they_come(self) -> bool:
        """Whether no policy touches them: their self loops are counted as they are partitioned."""
        spec = self._context.spec
        alike = self.source is self.target
        return alike and spec.self_loops == "keep" and not spec.to_undirected

    def _with_policies(self, edges: Edges, notes: dict[str, int]) -> Edges:
        if self.source is not self.target or self._takes_edges_as_they_come:
            return edges
        spec = self._context.spec
        edges, found = with_policies(
            edges, drop_loops=spec.self_loops == "drop", both_ways=spec.to_undirected
        )
        notes["self_loops"] += found
        return edges

    def _out_of_range(
        self, reader: EdgeReader, chunk: EdgeChunk, sources: Ids, targets: Ids
    ) -> InputError:
        counts = self.source.count, self.target.count
        wrong = [
            (ids < 0) | (ids >= _limit(count))
            for ids, count in zip((sources, targets), counts, strict=True)
        ]
        place = int(np.argmax(wrong[0] | wrong[1]))
        end = 0 if wrong[0][place] else 1
        return out_of_range(reader, chunk, place, end, counts[end])

    # Arrays.

    def build_arrays(self, layout: str) -> None:
        """Move every edge array into the order of a layout, each as a step."""
        name = "/".join(self.inputs.spec.type)
        files = self._layouts[layout]
        for array in self.inputs.arrays:
            held = self._context.step(
                f"{layout} array {array.name} of {name}",
                partial(self._moved, layout, files, array),
            )
            record = FileRecord.from_json(held["record"])
            self._arrays.setdefault(layout, {})[array.name] = record
            self.notes |= held["notes"]

    def _moved(self, layout: str, files: RowFiles, array: ArrayInput) -> dict[str, Any]:
        if files.edge_ids is None:
            raise FormatError("edge arrays need edge ids", remedy=REPORT)
        context = self._context
        context.progress.begin("move edge arrays", files.edges * array.row_bytes, "B")
        path = f"{self.prefix}/{layout}.arrays/{array.name}.safetensors"
        return store_edge_array(
            array, files.edge_ids, context, path=path, rows_read=self._rows_read
        )

    def record(self) -> EdgeTypeRecord:
        """What the manifest says of this type."""
        return EdgeTypeRecord(
            *self.inputs.spec.type,
            self.edges,
            {layout: files.records for layout, files in self._layouts.items()},
            self._arrays,
            self.notes,
        )


def _to_json(rows: RowFiles) -> dict[str, Any]:
    parts = {name: record.to_json() for name, record in rows.records.items()}
    return {"parts": parts, "edges": rows.edges, "duplicates": rows.duplicates}


def _rows_from(held: dict[str, Any]) -> RowFiles:
    parts = {name: FileRecord.from_json(record) for name, record in held["parts"].items()}
    return RowFiles(
        parts["indptr"],
        parts["indices"],
        parts.get("edge_ids"),
        parts.get("counts"),
        held["edges"],
        held["duplicates"],
    )


def _limit(count: int | None) -> int:
    return UNBOUNDED if count is None else count


def scanned_counts(
    context: BuildContext, edges: tuple[EdgeInputs, ...], nodes: dict[str, NodeType]
) -> Iterator[tuple[NodeType, int]]:
    """The number of nodes of each dense type that only the edges of several types tell.

    Reads the edges of those types once.
    """
    unknown = {name for name, node in nodes.items() if node.count is None}
    largest = dict.fromkeys(unknown, -1)
    touched = [edge for edge in edges if unknown & {edge.spec.type[0], edge.spec.type[2]}]
    context.progress.begin("count nodes", sum(edge.nbytes for edge in touched), "B")
    before = 0
    for edge in touched:
        ends = edge.spec.type[0], edge.spec.type[2]
        for reader, chunk, done in edge.chunks(context.plan.chunk_edges):
            for place, ids in enumerate((chunk.sources, chunk.targets)):
                if (end := ends[place]) in unknown and len(ids) and not isinstance(ids, Strings):
                    if int(ids.min()) < 0 or int(ids.max()) >= UNBOUNDED:
                        wrong = (ids < 0) | (ids >= UNBOUNDED)
                        raise out_of_range(reader, chunk, int(np.argmax(wrong)), place, None)
                    largest[end] = max(largest[end], int(ids.max()))
            context.progress.reach(before + done)
        before += edge.nbytes
    for name, last in largest.items():
        yield nodes[name], last + 1


def require_disk_for_rows(directory: Path, largest: int) -> None:
    """Refuse a number of nodes, known from the largest id alone, whose row pointers do not fit.

    Raises:
        DiskRefusedError: It tells of remapped ids.
    """
    needed, free = 8 * (largest + 2), free_disk_bytes(directory)
    if needed > free:
        raise DiskRefusedError(
            f"the largest id is {largest}, so that row pointers alone do not fit the disk",
            path=str(directory),
            errno=errno.ENOSPC,
            needed_bytes=needed,
            available_bytes=free,
            remedy="build with ids='remap' where ids are sparse",
        )
