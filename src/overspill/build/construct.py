"""The build itself, as its own process runs it: ids, edges, arrays, the manifest.

Every part is a step whose result is journalled, so that a build that was killed can be resumed.
Bottleneck: the device: edges are read once a layout, written to the spool and read back, written as
rows. Memory: the plan's, whatever the number of edges and nodes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from overspill import __version__
from overspill.build.context import BuildContext
from overspill.build.directory import BuildDirectory
from overspill.build.edge_types import EdgeType, require_disk_for_rows, scanned_counts
from overspill.build.forecast import Forecast, forecast_build
from overspill.build.inputs import Inputs
from overspill.build.journal import unfinished_bytes
from overspill.build.moving.permute import RowOutput, invert_permutation
from overspill.build.node_types import NodeType, no_nodes
from overspill.build.plan import BuildPlan
from overspill.build.progress import Event, Progress
from overspill.build.readers.source import SourceFile
from overspill.build.renumber import store_degree_order
from overspill.build.sending.incoming import Arrived, take_in
from overspill.build.spec import STREAM_PREFIX, BuildSpec
from overspill.errors import OutputDirError
from overspill.linux.mounts import filesystem_type, is_memory_backed
from overspill.storage.manifest import Manifest, check_file
from overspill.storage.records import FileRecord

# What the spec says of this machine and of one run rather than of the dataset.
_NO_OPTIONS = ("out", "streams", "resume", "threads", "memory_limit_bytes", "part")


@dataclass(frozen=True)
class BuildSummary:
    """What a build did.

    Attributes:
        nodes: Number of nodes of all types.
        edges: Number of edges of all types.
        seconds: Total time.
        phase_seconds: Time of each phase.
        edges_per_second: Edges over total time.
        projected_bytes: Peak anonymous memory that was planned.
        allowed_bytes: What the process was allowed to hold.
        notes: Type -> what was counted: duplicates, self loops, numbers that are not finite.
    """

    nodes: int
    edges: int
    seconds: float
    phase_seconds: dict[str, float]
    edges_per_second: float
    projected_bytes: int
    allowed_bytes: int
    notes: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, manifest: Manifest, plan: BuildPlan, *, started: float, progress: Progress
    ) -> BuildSummary:
        """What a build did that made this manifest, and began at `started` (time.monotonic)."""
        seconds = time.monotonic() - started
        edges = sum(edge.count for edge in manifest.edge_types.values())
        return cls(
            sum(node.count for node in manifest.node_types.values()),
            edges,
            seconds,
            progress.seconds,
            edges / max(seconds, 1e-9),
            plan.projected_bytes,
            plan.allowed_bytes,
            _notes(manifest),
        )


def construct(
    spec: BuildSpec,
    plan: BuildPlan,
    *,
    inputs: Inputs | None,
    send: Callable[[Event], None],
    pipe: int = -1,
) -> BuildSummary:
    """Build a dataset in this process.

    Args:
        spec: What to build.
        plan: Sizes of all buffers.
        inputs: The opened inputs of `spec`; None where some of them come through the pipe.
        send: Receives progress events.
        pipe: Descriptor through which the caller sends what `spec` names as streams.

    Raises:
        InputError: An input is wrong; names file, row, column and value.
        OutputDirError: The output directory holds something else, or lies in memory.
        DiskRefusedError: The disk refused; nothing is left behind.
        UnavailableError: The file system cannot be asked for its room.
        StaleFileError: A file of the build was removed or changed by something else.
    """
    started = time.monotonic()
    progress = Progress(send)
    _require_no_memory(spec.out)
    if inputs is not None:
        require_possible(spec, inputs, plan, held_bytes=unfinished_bytes(Path(spec.out)))
    claim = BuildDirectory(spec.out, fingerprint=fingerprint_of(spec), resume=_resumes(spec))
    with claim as directory, _taken_in(spec, directory, pipe, progress) as arrived:
        if inputs is None:
            inputs = Inputs.open(arrived.spec, arrived.edges)
            require_possible(arrived.spec, inputs, plan)
        build = _Build(BuildContext(arrived.spec, plan, directory, progress), inputs, arrived)
        manifest = build.run(options_of(spec))
    progress.end()
    return BuildSummary.of(manifest, plan, started=started, progress=progress)


def _resumes(spec: BuildSpec) -> bool:
    # What is sent from memory cannot be told from what was sent before.
    return spec.resume and not spec.streams


def _taken_in(spec: BuildSpec, directory: BuildDirectory, pipe: int, progress: Progress) -> Arrived:
    if spec.streams:
        progress.begin("take in", 0, "B")
    return take_in(spec, directory, pipe, on_progress=lambda done, _: progress.reach(done))


def fingerprint_of(spec: BuildSpec) -> str:
    """Tells builds apart that differ in options or in their input files, not in their memory."""
    paths = [path for edge in spec.edges for path in edge.paths]
    parts = [*(edge.arrays for edge in spec.edges), *(node.arrays for node in spec.nodes.values())]
    paths += [path for arrays in parts for array in arrays.values() for path in array.paths]
    files = [
        # Not the device: its number may be another after a reboot.
        [asdict(replace(source.identity, device=0)), source.modified_ns]
        for source in (
            SourceFile.check(path) for path in paths if not path.startswith(STREAM_PREFIX)
        )
    ]
    told = {"options": options_of(spec), "files": files, "version": __version__}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


class _Build:
    def __init__(self, context: BuildContext, inputs: Inputs, arrived: Arrived) -> None:
        self._context, self._inputs, self._arrived = context, inputs, arrived
        self._nodes = {name: NodeType(context, node) for name, node in inputs.nodes.items()}
        self._edges = [
            EdgeType(context, edge, self._nodes[edge.spec.type[0]], self._nodes[edge.spec.type[2]])
            for edge in inputs.edges
        ]

    def run(self, options: dict[str, Any]) -> Manifest:
        for node in self._nodes.values():
            node.store_ids(self._inputs.edges)
        self._count_nodes()
        if self._context.spec.order == "degree":
            self._renumber()
        for edge in self._edges:
            for layout in self._context.spec.layouts:
                edge.build(layout)
                edge.build_arrays(layout)
        for node in self._nodes.values():
            node.store_arrays()
        self._context.progress.begin("publish", 1, "steps")
        manifest = self._manifest(options)
        for record in manifest.files():  # steps may have been finished days ago
            check_file(self._context.directory.path, record)
        self._arrived.remove()
        self._context.directory.publish(manifest)
        return manifest

    def _count_nodes(self) -> None:
        """Find how many nodes each type has, where the first partitioning will not tell."""
        unknown = [node for node in self._nodes.values() if node.count is None]
        ends = {end.name for edge in self._edges for end in (edge.source, edge.target)}
        for node in unknown:
            if node.name not in ends:
                raise no_nodes(node.name, self._inputs.edges)
        if not unknown or len(self._edges) == 1:
            return
        held = self._context.step("numbers of nodes", self._scanned)
        for name, count in held.items():
            if not count:
                raise no_nodes(name, self._inputs.edges)
            require_disk_for_rows(self._context.directory.path, count - 1)
            self._nodes[name].count = count

    def _scanned(self) -> dict[str, int]:
        counts = scanned_counts(self._context, self._inputs.edges, self._nodes)
        return {node.name: count for node, count in counts}

    def _renumber(self) -> None:
        entering: dict[str, list[FileRecord]] = {}
        for edge in self._edges:
            entering.setdefault(edge.target.name, []).append(edge.degrees())
        for name, indptrs in entering.items():
            node = self._nodes[name]
            held = self._context.step(f"order of {name}", partial(self._ordered, node, indptrs))
            node.renumber(*(FileRecord.from_json(record) for record in held))
        for edge in self._edges:
            edge.drop_degrees()

    def _ordered(self, node: NodeType, indptrs: list[FileRecord]) -> list[Any]:
        context, count = self._context, node.known_count
        context.progress.begin("renumber nodes", 8 * count, "B")
        path = f"{node.prefix}/renumbered.safetensors"
        renumbered = store_degree_order(context, indptrs, count, path=path)
        output = RowOutput(
            context.directory,
            context.plan,
            f"{node.prefix}/original.safetensors",
            renumbered.dtype,
            (count,),
        )
        original = invert_permutation(
            context.pieces(renumbered), output, on_progress=context.progress.advance
        )
        return [renumbered.to_json(), original.to_json()]

    def _manifest(self, options: dict[str, Any]) -> Manifest:
        nodes = {name: node.record() for name, node in self._nodes.items()}
        edges = {record.key: record for record in (edge.record() for edge in self._edges)}
        names = self._arrived.names
        sources = [
            {"path": names.get(path, path), "nbytes": nbytes}
            for path, nbytes in self._inputs.sources()
        ]
        files = [
            *(node.files() for node in nodes.values()),
            *(edge.files() for edge in edges.values()),
        ]
        told = [record.to_json() for part in files for record in part]
        identifier = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
        return Manifest(
            identifier,
            nodes,
            edges,
            options=options,
            sources=sources,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            overspill_version=__version__,
        )


def _notes(manifest: Manifest) -> dict[str, dict[str, int]]:
    """What was counted, by type; what was counted as none is left out."""
    parts = {name: node.notes for name, node in manifest.node_types.items()}
    parts |= {":".join(key): edge.notes for key, edge in manifest.edge_types.items()}
    found = {
        name: {note: count for note, count in notes.items() if count}
        for name, notes in parts.items()
    }
    return {name: notes for name, notes in found.items() if notes}


def _require_no_memory(out: str) -> None:
    if is_memory_backed(out):
        raise OutputDirError(
            f"{out} lies on {filesystem_type(out)}, which is memory: the dataset would fill it",
            path=out,
            remedy="choose a directory on a disk",
        )


def require_possible(
    spec: BuildSpec, inputs: Inputs, plan: BuildPlan, *, held_bytes: int = 0
) -> Forecast:
    """Refuse at once, as far as sizes are known, what would be refused after hours.

    Args:
        spec: The build.
        inputs: Its opened inputs.
        plan: Sizes of all buffers.
        held_bytes: Disk space that an unfinished build in the same place gives back.

    Raises:
        InputError: An edge array has not one row an edge.
        OutputDirError: The output directory lies in memory.
        DiskRefusedError: The disk has no room.
    """
    _require_no_memory(spec.out)
    inputs.require_edge_rows()
    forecast = forecast_build(spec, inputs, plan, held_bytes=held_bytes)
    forecast.require_disk(spec.out)
    return forecast


def options_of(spec: BuildSpec) -> dict[str, Any]:
    """What a manifest says of the options of a build."""
    return {name: value for name, value in asdict(spec).items() if name not in _NO_OPTIONS}
