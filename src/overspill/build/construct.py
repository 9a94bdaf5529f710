"""The build itself, as its own process runs it: inputs, plan, the two passes, the manifest.

Bottleneck: the device: edges are read once, written to the spool and read back, written as rows.
Memory: the plan's, whatever the number of edges and nodes. Limits: one node and one edge type.
"""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill import __version__
from overspill.build.assemble import RowAssembler
from overspill.build.directory import BuildDirectory
from overspill.build.features import copy_features
from overspill.build.ids import IdTranslator, store_distinct_ids
from overspill.build.inputs import Inputs, out_of_range
from overspill.build.partition import UNBOUNDED, RangePartitioner
from overspill.build.plan import BuildPlan
from overspill.build.progress import Event, Progress
from overspill.build.readers import RawIds, Strings
from overspill.build.spec import EDGE_TYPE, NODE_TYPE, BuildSpec
from overspill.errors import DiskRefusedError, FormatError, InputError, OutputDirError
from overspill.linux.mounts import filesystem_type, free_disk_bytes, is_memory_backed
from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord
from overspill.storage.records import FileRecord

# What the spec says of this machine and of one run rather than of the dataset.
_NO_OPTIONS = ("out", "streams", "resume", "threads")
_NODE_PREFIX = f"nodes/{NODE_TYPE}"
_EDGE_PREFIX = f"edges/{'__'.join(EDGE_TYPE)}"


@dataclass(frozen=True)
class BuildSummary:
    """What a build did.

    Attributes:
        nodes: Number of nodes.
        edges: Number of edges.
        seconds: Total time.
        phase_seconds: Time of each phase.
        edges_per_second: Edges over total time.
        projected_bytes: Peak anonymous memory that was planned.
        allowed_bytes: What the process was allowed to hold.
    """

    nodes: int
    edges: int
    seconds: float
    phase_seconds: dict[str, float]
    edges_per_second: float
    projected_bytes: int
    allowed_bytes: int


def construct(
    spec: BuildSpec, plan: BuildPlan, *, inputs: Inputs, send: Callable[[Event], None]
) -> BuildSummary:
    """Build a dataset in this process.

    Args:
        spec: What to build.
        plan: Sizes of all buffers.
        inputs: The opened inputs of `spec`.
        send: Receives progress events.

    Raises:
        InputError: An input is wrong; names file, row, column and value.
        OutputDirError: The output directory holds something else, or lies in memory.
        DiskRefusedError: The disk refused; nothing is left behind.
        UnavailableError: The file system cannot be asked for its room.
    """
    started = time.monotonic()
    progress = Progress(send)
    _require_no_memory(spec.out)
    _require_disk(spec.out, inputs, plan)
    with BuildDirectory(spec.out) as directory:
        build = _Build(spec, plan, inputs, directory, progress)
        nodes, edges = build.run()
    progress.end()
    seconds = time.monotonic() - started
    return BuildSummary(
        nodes,
        edges,
        seconds,
        progress.seconds,
        edges / max(seconds, 1e-9),
        plan.projected_bytes,
        plan.allowed_bytes,
    )


class _Build:
    def __init__(
        self,
        spec: BuildSpec,
        plan: BuildPlan,
        inputs: Inputs,
        directory: BuildDirectory,
        progress: Progress,
    ) -> None:
        self._spec, self._plan, self._inputs = spec, plan, inputs
        self._directory, self._progress = directory, progress
        self._node, self._edge = inputs.nodes[NODE_TYPE], inputs.edges[0]
        self._nodes = self._node.count
        self._translator: IdTranslator | None = None

    def run(self) -> tuple[int, int]:
        ids = self._remap() if self._node.kind == "remap" else None
        edges, layouts = self._build_rows()
        arrays = self._copy_arrays()
        self._progress.begin("publish", 1, "steps")
        nodes = self._require_count()
        node = NodeTypeRecord(NODE_TYPE, nodes, arrays, ids)
        edge = EdgeTypeRecord(*EDGE_TYPE, edges, layouts)
        self._directory.publish(
            Manifest(
                uuid.uuid4().hex,
                {NODE_TYPE: node},
                {edge.key: edge},
                options=_options(self._spec),
                sources=self._sources(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                overspill_version=__version__,
            )
        )
        return nodes, edges

    def _remap(self) -> FileRecord:
        self._progress.begin("collect ids", self._edge.nbytes, "B")
        path = f"{_NODE_PREFIX}/ids.safetensors"
        record = store_distinct_ids(self._all_ids(), self._directory, path=path, plan=self._plan)
        if not record.shape[0] and self._node.count is None:
            raise self._no_nodes()
        self._node.require_count(record.shape[0], "the distinct ids of the edges")
        self._nodes = record.shape[0]
        self._translator = IdTranslator(self._directory.path / path, record)
        return record

    def _all_ids(self) -> Iterator[npt.NDArray[np.int64]]:
        for _, chunk, done in self._edge.chunks(self._plan.chunk_edges):
            yield _numbers(chunk.sources)
            yield _numbers(chunk.targets)
            self._progress.reach(done)

    def _build_rows(self) -> tuple[int, dict[str, dict[str, FileRecord]]]:
        known = self._nodes
        partitioner = RangePartitioner(
            self._directory.file("scratch/edges.spool"),
            self._plan,
            id_limits=(UNBOUNDED, UNBOUNDED) if known is None else (known, known),
            last_target=1 if known is None else known,
            hubs="by source",
        )
        with partitioner:
            self._partition(partitioner)
            blocks = partitioner.finish()
            nodes = self._count_nodes(partitioner.largest_id, blocks.edges)
            self._progress.begin("build rows", blocks.edges, "edges")
            assembler = RowAssembler(
                self._directory,
                self._plan,
                num_rows=nodes,
                num_columns=nodes,
                num_edges=blocks.edges,
                on_progress=self._progress.reach,
            )
            prefix = f"{_EDGE_PREFIX}/{self._spec.layouts[0]}"
            files = assembler.write(blocks, prefix=prefix)
            parts = {"indptr": files.indptr, "indices": files.indices}
        return blocks.edges, {self._spec.layouts[0]: parts}

    def _partition(self, partitioner: RangePartitioner) -> None:
        self._progress.begin("partition", self._edge.nbytes, "B")
        for reader, chunk, done in self._edge.chunks(self._plan.chunk_edges):
            sources, targets = _numbers(chunk.sources), _numbers(chunk.targets)
            if self._translator is not None:
                both = self._translator.translate(np.concatenate([sources, targets]))
                sources, targets = both[: len(sources)], both[len(sources) :]
            taken = partitioner.add(sources, targets)
            if taken < len(sources):
                raise out_of_range(reader, chunk, taken, (self._nodes, self._nodes))
            self._progress.reach(done)

    def _count_nodes(self, largest: int, edges: int) -> int:
        if self._nodes is None:
            if edges == 0:
                raise self._no_nodes()
            self._nodes = largest + 1
            self._require_disk_for_rows(largest)
        return self._nodes

    def _no_nodes(self) -> InputError:
        return InputError(
            "there are no edges, and nothing says how many nodes there are",
            path=self._edge.readers[0].path if self._edge.readers else None,
            remedy="give num_nodes or node features",
        )

    def _require_disk_for_rows(self, largest: int) -> None:
        needed, free = 8 * (largest + 2), free_disk_bytes(self._directory.path)
        if needed > free:
            raise DiskRefusedError(
                f"the largest id is {largest}, so that row pointers alone do not fit the disk",
                path=str(self._directory.path),
                errno=errno.ENOSPC,
                needed_bytes=needed,
                available_bytes=free,
                remedy="build with ids='remap' where ids are sparse",
            )

    def _require_count(self) -> int:
        if self._nodes is None:
            raise FormatError("the number of nodes was never found")
        return self._nodes

    def _copy_arrays(self) -> dict[str, FileRecord]:
        features = self._node.arrays
        total = sum(file.nbytes for file in features.values())
        if features:
            self._progress.begin("copy node arrays", total, "B")
        return {
            name: copy_features(
                file,
                self._directory,
                path=f"{_NODE_PREFIX}/arrays/{name}.safetensors",
                slice_bytes=self._plan.copy_bytes,
                on_progress=self._progress.advance,
            )
            for name, file in features.items()
        }

    def _sources(self) -> list[dict[str, Any]]:
        return [{"path": path, "nbytes": nbytes} for path, nbytes in self._inputs.sources()]


def _numbers(ids: RawIds) -> npt.NDArray[np.int64]:
    if isinstance(ids, Strings):
        raise InputError("ids that are text cannot be built yet")
    return ids


def _require_no_memory(out: str) -> None:
    if is_memory_backed(out):
        raise OutputDirError(
            f"{out} lies on {filesystem_type(out)}, which is memory: the dataset would fill it",
            path=out,
            remedy="choose a directory on a disk",
        )


def _require_disk(out: str, inputs: Inputs, plan: BuildPlan) -> None:
    """Refuse at once, as far as sizes are known, what the disk would refuse after hours."""
    needed, free = _least_disk_bytes(inputs, plan), free_disk_bytes(out)
    if needed > free:
        raise DiskRefusedError(
            "the dataset and the build's scratch space do not fit the disk",
            path=out,
            errno=errno.ENOSPC,
            needed_bytes=needed,
            available_bytes=free,
            remedy="free space on this disk, or choose a directory on another one",
        )


def _least_disk_bytes(inputs: Inputs, plan: BuildPlan) -> int:
    """The most that is on disk at one time, of what is certain before the edges are read.

    Not counted: edges of text files, runs and merges of remapped ids beyond one run of the distinct
    ones, and what overfull ranges and long rows take once more; they depend on the edges.
    """
    edges, node = inputs.edges[0].least_edges, inputs.nodes[NODE_TYPE]
    nodes = node.count or 0
    id_bytes = 8 if nodes > plan.narrow_nodes else 4
    ids = 8 * nodes if node.kind == "remap" else 0
    rows = ids + id_bytes * edges + 8 * (nodes + 1)
    features = sum(file.nbytes for file in node.arrays.values())
    # The distinct ids stand in runs, merged, and as an array; later the spool, two ids an edge,
    # stands beside the rows; node arrays are copied once it is gone.
    return max(3 * ids, rows + 2 * id_bytes * edges, rows + features)


def _options(spec: BuildSpec) -> dict[str, Any]:
    return {name: value for name, value in asdict(spec).items() if name not in _NO_OPTIONS}
