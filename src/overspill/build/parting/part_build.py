"""The build of one part, of what was staged for it: rows, arrays, the part's manifest.

Bottleneck: the device: what is staged is read once and written as rows. Every file is a step, so
that a build that was killed goes on. Memory: the plan's.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill import __version__
from overspill.build.construct import BuildSummary
from overspill.build.context import BuildContext
from overspill.build.directory import BuildDirectory
from overspill.build.edge_types import row_options
from overspill.build.ids.numbers import IdTranslator
from overspill.build.moving.permute import RowOutput, gather_rows
from overspill.build.part_spec import PartEdgeSpec, PartNodeSpec, PartSpec, ReadyArray, StagedRows
from overspill.build.parting.split_owners import NODES_A_PIECE, HashOwners
from overspill.build.parting.staged_edges import StageSizes
from overspill.build.parting.staged_rows import StagedRowSource
from overspill.build.parting.staged_store import StagedStore
from overspill.build.passes.assemble import RowAssembler, RowFiles
from overspill.build.plan import BuildPlan
from overspill.build.progress import Event, Progress
from overspill.build.remedies import REPORT
from overspill.build.spec import BuildSpec, EdgeName, EdgeSpec
from overspill.errors import DiskRefusedError, FormatError
from overspill.kernels.route import hash_nodes
from overspill.storage.manifest import Manifest, check_file
from overspill.storage.part_records import PartNodes, PartRecord
from overspill.storage.records import FileRecord
from overspill.storage.type_records import EdgeTypeRecord, NodeTypeRecord

Ids = npt.NDArray[np.int64]
_NARROW_NODES = BuildPlan.narrow_nodes
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def construct_part(
    spec: BuildSpec, part: PartSpec, plan: BuildPlan, *, send: Callable[[Event], None]
) -> BuildSummary:
    """Build one part in this process, or go on with it where an earlier process was killed.

    Args:
        spec: The options, and the directory.
        part: Which part, and what was staged for it.
        plan: Sizes of all buffers.
        send: Receives progress events.

    Raises:
        OutputDirError: The directory holds something else.
        DiskRefusedError: The disk refused; nothing is left behind.
        StaleFileError: What was staged is gone, or was changed.
    """
    started, progress = time.monotonic(), Progress(send)
    claim = BuildDirectory(spec.out, fingerprint=f"{part.partition} {part.index}", resume=True)
    with claim as directory:
        manifest = _PartBuild(BuildContext(spec, plan, directory, progress), part).run()
        progress.begin("publish", 1, "steps")
        for record in manifest.files():  # steps may have been finished days ago
            check_file(directory.path, record)
        directory.publish(manifest)
    progress.end()
    return BuildSummary.of(manifest, plan, started=started, progress=progress)


class OwnedRows:
    """Which rows of all are of the nodes that a part of scattered ones has; see `RowChoice`.

    Args:
        num_parts: How many parts there are.
        part: Which one.
        count: Its nodes.
    """

    def __init__(self, num_parts: int, part: int, count: int) -> None:
        self.count, self._num_parts, self._part = count, num_parts, part

    def of(self, first: int, ends: Ids) -> Ids:
        """The ends of its rows, of those from `first` on."""
        parts = np.empty(len(ends), np.uint32)
        hash_nodes(first, self._num_parts, parts)
        return np.compress(parts == self._part, ends)


class _PartBuild:
    def __init__(self, context: BuildContext, part: PartSpec) -> None:
        self._context, self._part = context, part
        self._created = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self) -> Manifest:
        rows = {(edge.type, edge.layout): self._rows(edge) for edge in self._part.edges}
        arrays = {
            (edge.type, edge.layout): self._edge_arrays(edge, rows[edge.type, edge.layout])
            for edge in self._part.edges
        }
        nodes = {name: self._node_type(name, node) for name, node in self._part.nodes.items()}
        held = {name: self._part_nodes(name, node) for name, node in self._part.nodes.items()}
        edges = {key: self._edge_type(key, rows, arrays) for key in self._edge_names()}
        part = self._part
        record = PartRecord(part.partition, part.index, part.num_parts, part.method, held)
        manifest = Manifest(
            "", nodes, edges, part.options, list(part.sources), self._created, __version__, record
        )
        return self._identified(manifest)

    def _identified(self, manifest: Manifest) -> Manifest:
        told = [record.to_json() for record in manifest.files()]
        told.append({"partition": self._part.partition, "index": self._part.index})
        identifier = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
        return Manifest(**vars(manifest) | {"identifier": identifier})

    # Edges.

    def _edge_names(self) -> list[EdgeName]:
        return list(dict.fromkeys(edge.type for edge in self._part.edges))

    def _rows(self, edge: PartEdgeSpec) -> RowFiles:
        name = f"{edge.layout} of {'/'.join(edge.type)}"
        held = self._context.step(name, partial(self._assembled, edge))
        parts = {name: FileRecord.from_json(record) for name, record in held["parts"].items()}
        return RowFiles(
            parts["indptr"],
            parts["indices"],
            parts.get("edge_ids"),
            parts.get("counts"),
            held["edges"],
            None,
        )

    def _assembled(self, edge: PartEdgeSpec) -> dict[str, Any]:
        context, part = self._context, self._part
        row_name, column_name = edge.type[2], edge.type[0]
        if edge.layout == "csr":
            row_name, column_name = column_name, row_name
        nodes = part.nodes[row_name]
        scattered = nodes.first is None
        num_rows = nodes.global_count if scattered else nodes.count
        options = row_options(context.spec, self._edge_spec(edge.type))
        options = replace(options, edge_ids=options.edge_ids or bool(edge.arrays))
        sizes = StageSizes.of(part.num_parts)
        context.progress.begin("build rows", sum(file.edges for file in edge.files), "edges")
        assembler = RowAssembler(
            context.directory,
            context.plan,
            num_rows=num_rows,
            num_columns=part.nodes[column_name].global_count,
            num_edges=edge.rows_read,
            options=options,
            choice=OwnedRows(part.num_parts, part.index, nodes.count) if scattered else None,
            on_progress=context.progress.reach,
        )
        shift = sizes.shift(num_rows)
        with StagedStore(
            edge.files, shift=shift, edge_ids=options.edge_ids, wide=edge.wide
        ) as store:
            rows = assembler.write(store.blocks(), prefix=_prefix(edge.type, edge.layout))
        found = {
            "indptr": rows.indptr,
            "indices": rows.indices,
            "edge_ids": rows.edge_ids,
            "counts": rows.counts,
        }
        parts = {name: record.to_json() for name, record in found.items() if record is not None}
        return {"parts": parts, "edges": rows.edges}

    def _edge_spec(self, name: EdgeName) -> EdgeSpec:
        return next(edge for edge in self._context.spec.edges if edge.type == name)

    def _edge_arrays(self, edge: PartEdgeSpec, rows: RowFiles) -> dict[str, FileRecord]:
        found = {}
        for name, staged in edge.arrays.items():
            step = f"{edge.layout} array {name} of {'/'.join(edge.type)}"
            held = self._context.step(step, partial(self._gathered, edge, name, staged, rows))
            found[name] = FileRecord.from_json(held)
        return found

    def _gathered(
        self, edge: PartEdgeSpec, name: str, staged: StagedRows, rows: RowFiles
    ) -> dict[str, Any]:
        """The staged row of each edge: its id's place among the ids of those that were staged."""
        if rows.edge_ids is None or edge.edge_ids is None:
            raise FormatError("edge arrays need edge ids", remedy=REPORT)
        context, source = self._context, StagedRowSource(staged)
        count = rows.edge_ids.shape[0]
        path = f"{_prefix(edge.type, edge.layout)}.arrays/{name}.safetensors"
        output = RowOutput(
            context.directory, context.plan, path, staged.dtype, (count, *staged.row_shape)
        )
        context.progress.begin("move edge arrays", count * output.row_bytes, "B")
        ids = self._staged_ids(edge.edge_ids, f"scratch/{path}.rows")
        translator = IdTranslator(context.directory.path / ids.path, ids)
        wanted = (
            translator.translate(piece.astype(np.int64)) for piece in context.pieces(rows.edge_ids)
        )
        record = gather_rows(wanted, source, output, on_progress=context.progress.advance)
        return record.to_json()

    def _staged_ids(self, staged: StagedRows, path: str) -> FileRecord:
        source = StagedRowSource(staged)
        return self._written(
            path, "int64", source.count, source.pieces(self._context.plan.copy_bytes)
        )

    def _written(
        self, path: str, dtype: str, count: int, pieces: Iterator[npt.NDArray[Any]]
    ) -> FileRecord:
        with self._context.directory.array(path, dtype=dtype, shape=(count,)) as writer:
            for piece in pieces:
                writer.append(piece)
        return writer.result

    def _edge_type(
        self,
        key: EdgeName,
        rows: dict[tuple[EdgeName, str], RowFiles],
        arrays: dict[tuple[EdgeName, str], dict[str, FileRecord]],
    ) -> EdgeTypeRecord:
        layouts = {layout: held for (name, layout), held in rows.items() if name == key}
        moved = {layout: held for (name, layout), held in arrays.items() if name == key and held}
        counts = {layout: held.edges for layout, held in layouts.items()}
        return EdgeTypeRecord(
            *key,
            counts.get("csc", counts.get("csr", 0)),
            {layout: held.records for layout, held in layouts.items()},
            moved,
            out_count=counts["csr"] if len(counts) == 2 else None,
        )

    # Nodes.

    def _node_type(self, name: str, node: PartNodeSpec) -> NodeTypeRecord:
        arrays = {
            array: FileRecord.from_json(
                self._context.step(f"array {array} of {name}", partial(self._adopted, ready))
            )
            for array, ready in node.arrays.items()
        }
        return NodeTypeRecord(name, node.count, arrays)

    def _adopted(self, ready: ReadyArray) -> dict[str, Any]:
        """Give a file that is ready its place; it stays where it was too, should this be undone."""
        target = self._context.directory.file(ready.record.path)
        try:
            _link(Path(ready.path), target)
        except OSError as error:
            raise DiskRefusedError(
                f"{target} cannot be made of {ready.path}: {error.strerror}",
                path=str(target),
                errno=error.errno,
                remedy="build again, which makes it anew",
            ) from error
        return ready.record.to_json()

    def _part_nodes(self, name: str, node: PartNodeSpec) -> PartNodes:
        if node.first is not None:
            return PartNodes(node.global_count, node.first)
        held = self._context.step(f"nodes of {name}", partial(self._own_ids, name, node))
        return PartNodes(node.global_count, None, FileRecord.from_json(held))

    def _own_ids(self, name: str, node: PartNodeSpec) -> dict[str, Any]:
        dtype = "int32" if node.global_count <= _NARROW_NODES else "int64"
        path = f"nodes/{name}/global_ids.safetensors"
        pieces = (ids.astype(dtype) for ids in self._scattered(node.global_count))
        return self._written(path, dtype, node.count, pieces).to_json()

    def _scattered(self, count: int) -> Iterator[Ids]:
        first = 0
        for parts, _ in HashOwners(count, self._part.num_parts).runs(None, 1):
            yield first + np.flatnonzero(parts == self._part.index)
            first += NODES_A_PIECE


def _prefix(name: EdgeName, layout: str) -> str:
    return "/".join(("edges", *name, layout))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
