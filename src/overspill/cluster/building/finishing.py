"""The stage "finalise" on one machine: its parts built of what was staged, here and elsewhere.

Bottleneck: the device; of what was staged on other machines, the network. Parts are built one after
another, each by a process of its own with all processors and the memory that the machine may use.
A part that is finished is left as it is, and one that was interrupted goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from overspill.build.child import run_build
from overspill.build.construct import options_of
from overspill.build.part_spec import (
    PartEdgeSpec,
    PartNodeSpec,
    PartSpec,
    ReadyArray,
    StagedFile,
    StagedRows,
)
from overspill.build.parting.split_spec import SplitReport, edge_file, row_file
from overspill.build.spec import EdgeName, NodeSpec
from overspill.cluster.building.arrays import part_rows, ready_array
from overspill.cluster.building.claims import claimed
from overspill.cluster.building.fetching import fetch_file, streamed
from overspill.cluster.building.job import ArrayPlace, JobPlan, not_up
from overspill.cluster.building.parts import (
    FinishedPart,
    array_file,
    finished_part,
    part_lock,
)
from overspill.cluster.building.tasks import Send
from overspill.errors import OutputDirError
from overspill.storage.records import payload_bytes


@dataclass(frozen=True)
class Staged:
    """Where splits were staged.

    Attributes:
        machine: The number of the machine that builds.
        node_ids: Ray's names of the machines that are up, by number.
        splits: Of each split, the machine that has what was staged, and its report.
    """

    machine: int
    node_ids: dict[int, str]
    splits: dict[int, tuple[int, SplitReport]]


def finish_parts(
    plan: JobPlan,
    parts: tuple[int, ...],
    staged: Staged,
    limits: tuple[int | None, int],
    *,
    send: Send,
) -> list[FinishedPart]:
    """Build parts on this machine, one after another.

    Args:
        plan: The build.
        parts: Their numbers.
        staged: Where things are.
        limits: The memory that a part's process may take, and how many threads compute.
        send: Called with the edges of all that are done.

    Raises:
        OutputDirError: A part's directory holds something else, or another run builds the part.
        DiskRefusedError: The disk refused; the same stage goes on once there is room.
        StaleFileError: What was staged is gone, or was changed.
    """
    found, done = [], 0.0
    for part in parts:
        place = plan.part_directory(part)
        with claimed(plan.work / part_lock(part), f"building {place}"):
            held = finished_part(plan, part)
            if held is None:
                building = _Part(plan, part, staged)
                building.build(limits, partial(_add, send, done))
                held = finished_part(plan, part)
                building.drop_fetched()
        if held is None:
            raise OutputDirError(
                f"{place} was removed while it was built",
                path=str(place),
                remedy="leave it alone; the same call or command builds the part again",
            )
        found.append(held)
        done += held.edges
        send(done)
    return found


def _add(send: Send, before: float, edges: float) -> None:
    send(before + edges)


class _Part:
    def __init__(self, plan: JobPlan, part: int, staged: Staged) -> None:
        self._plan, self._part, self._staged = plan, part, staged
        self._fetched: list[Path] = []

    def build(self, limits: tuple[int | None, int], on_edges: Callable[[float], None]) -> None:
        """Fetch what is elsewhere, and run the part's own process."""
        plan, part = self._plan, self._part
        nodes = {name: self._nodes(name) for name in plan.nodes}
        spec = replace(
            plan.spec,
            out=str(plan.part_directory(part)),
            nodes={name: NodeSpec(count=node.count, ids="dense") for name, node in nodes.items()},
            edges=tuple(replace(edge, paths=(), arrays={}) for edge in plan.spec.edges),
            memory_limit_bytes=limits[0],
            threads=limits[1],
            part=PartSpec(
                partition=plan.identifier,
                index=part,
                num_parts=plan.num_parts,
                method=plan.method,
                nodes=nodes,
                edges=tuple(
                    self._edges(edge.type, layout)
                    for edge in plan.spec.edges
                    for layout in plan.spec.layouts
                ),
                options=options_of(plan.spec),
                sources=plan.sources,
            ),
        )

        def follow(event: dict[str, Any]) -> None:
            if event.get("phase") == "build rows":
                on_edges(event["done"])

        run_build(spec, on_event=follow)

    def _edges(self, name: EdgeName, layout: str) -> PartEdgeSpec:
        files: list[StagedFile] = []
        rows_read, wide = 0, False
        reports = [
            (split.spec.number, self._staged.splits[split.spec.number][1])
            for split in self._plan.splits
            if split.spec.edge.type == name
        ]
        for number, report in reports:
            rows_read, wide = rows_read + report.rows, wide or report.wide
            file = report.files[layout][self._part]
            if file is not None:
                path = self._local(number, edge_file(layout, self._part), file.nbytes)
                files.append(replace(file, path=str(path)))
        arrays = {
            array: self._rows(reports, layout, array)
            for array in next(edge for edge in self._plan.spec.edges if edge.type == name).arrays
        }
        return PartEdgeSpec(
            type=name,
            layout=layout,
            files=tuple(files),
            rows_read=rows_read,
            wide=wide,
            arrays=arrays,
            edge_ids=self._rows(reports, layout, "") if arrays else None,
        )

    def _rows(self, reports: list[tuple[int, SplitReport]], layout: str, name: str) -> StagedRows:
        dtype, shape = "int64", cast("tuple[int, ...]", ())
        paths: list[str] = []
        counts: list[int] = []
        for number, report in reports:
            if name:
                dtype, shape = report.arrays[name].dtype, report.arrays[name].row_shape
            count = report.array_rows[layout][self._part]
            if count:
                nbytes = payload_bytes(dtype, (count, *shape))
                path = self._local(number, row_file(layout, self._part, name), nbytes)
                paths.append(str(path))
                counts.append(count)
        return StagedRows(dtype=dtype, row_shape=shape, paths=tuple(paths), counts=tuple(counts))

    def _local(self, split: int, name: str, nbytes: int) -> Path:
        """The place of a staged file on this machine, fetched where it is not there."""
        plan, (machine, _) = self._plan, self._staged.splits[split]
        path = plan.split_directory(split) / name
        if plan.disks[machine] != plan.disks[self._staged.machine]:
            if machine not in self._staged.node_ids:
                raise not_up(plan, machine, f"it has what was staged of split {split}")
            self._fetched.append(path)
            fetch_file(path, nbytes, self._staged.node_ids[machine])
        return path

    def drop_fetched(self) -> None:
        """Give back the disk space of copies that are not needed any more."""
        for path in self._fetched:
            path.unlink(missing_ok=True)

    def _nodes(self, name: str) -> PartNodeSpec:
        owners = self._plan.nodes[name]
        first = None if owners.bounds is None else owners.bounds[self._part]
        count = owners.owners().nodes[self._part]
        arrays = {
            array: self._array(name, array, place, count)
            for array, place in self._plan.node_arrays.get(name, {}).items()
        }
        return PartNodeSpec(count=count, global_count=owners.count, first=first, arrays=arrays)

    def _array(self, name: str, array: str, place: ArrayPlace, count: int) -> ReadyArray:
        plan = self._plan
        arguments = place.window, array, plan.nodes[name], self._part, plan.spec.non_finite
        if self._staged.machine in place.machines:
            pieces = part_rows(*arguments)
        else:
            machine = next((m for m in place.machines if m in self._staged.node_ids), None)
            if machine is None:
                raise not_up(plan, place.machines[0], f"it has {place.window.path}")
            pieces = streamed(self._staged.node_ids[machine], part_rows, *arguments)
        return ready_array(
            plan.work / array_file(self._part, name, array),
            f"nodes/{name}/arrays/{array}.safetensors",
            place.dtype,
            (count, *place.row_shape),
            pieces,
        )
