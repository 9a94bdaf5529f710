"""The stage "partition" on one machine: splits staged, each finished by a marker written last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from overspill.build.directory import unwritable
from overspill.build.parting.split_spec import SplitReport, row_file
from overspill.build.parting.stage_split import stage_split
from overspill.build.parting.staged_edges import warm_staging
from overspill.cluster.building.claims import claimed
from overspill.cluster.building.job import JobPlan, PlannedSplit, unreadable
from overspill.cluster.building.parts import FinishedPart, finished_part
from overspill.errors import UnavailableError
from overspill.kernels.jit import leave_out_linear_algebra
from overspill.linux.cgroups import available_memory_bytes
from overspill.storage.json_files import publish_json, read_document
from overspill.storage.records import payload_bytes

DONE_NAME = "done.json"
LOCK_NAME = "lock"
_FORMAT = "overspill-cluster-split"
_VERSION = 1


@dataclass(frozen=True)
class Survey:
    """What of a build is done on a machine.

    Attributes:
        splits: Split -> what was staged.
        parts: Part -> the finished part.
        available_bytes: Memory that the machine has; None where that cannot be told.
    """

    splits: dict[int, SplitReport]
    parts: dict[int, FinishedPart]
    available_bytes: int | None


def stage(directory: str, split: PlannedSplit, *, send: Callable[[float], None]) -> SplitReport:
    """Stage a split, unless that was done before.

    Raises:
        InputError: An input is wrong, or was changed since the build was planned.
        DiskRefusedError: The disk refused.
        OutputDirError: Another run stages the same split.
    """
    place = Path(directory)
    with claimed(place / LOCK_NAME, f"staging into {place}"):
        found = read_report(place, split.spec.plan)
        if found is not None:
            return found
        _take_back(place / DONE_NAME)
        leave_out_linear_algebra()
        warm_staging(edge_ids=split.spec.edge_ids, wide=False)
        report = stage_split(split.spec, place, send)
        publish_json(
            place / DONE_NAME, {"format": _FORMAT, "version": _VERSION, **report.to_json()}
        )
        return report


def survey(plan: JobPlan, *, send: Callable[[float], None]) -> Survey:
    """What of a build is done on this machine.

    Raises:
        FormatError: A marker is damaged.
        OutputDirError: A part's directory holds another dataset.
    """
    send(0)
    splits, parts = {}, {}
    for split in plan.splits:
        number = split.spec.number
        report = read_report(plan.split_directory(number), plan.identifier)
        if report is not None:
            splits[number] = report
    for index in range(plan.num_parts):
        part = finished_part(plan, index)
        if part is not None:
            parts[index] = part
    return Survey(splits, parts, available_bytes())


def read_report(place: Path, plan: str) -> SplitReport | None:
    """What a split's marker says; None where it is not staged, or for another plan.

    Nor is a split staged whose files were removed or cut since.

    Raises:
        FormatError: The marker is damaged, or cannot be read.
    """
    path = place / DONE_NAME
    try:
        report = read_document(path, SplitReport.from_json, form=_FORMAT, version=_VERSION)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    return report if report.plan == plan and _has_files(place, report) else None


def _has_files(place: Path, report: SplitReport) -> bool:
    try:
        with os.scandir(place) as entries:
            sizes = {entry.name: entry.stat().st_size for entry in entries}
    except FileNotFoundError:  # they go while they are looked at
        return False
    except OSError as error:
        raise unreadable(place, error) from error
    return all(sizes.get(name) == nbytes for name, nbytes in _files_of(report))


def _files_of(report: SplitReport) -> Iterator[tuple[str, int]]:
    """Names and sizes of what was staged."""
    for files in report.files.values():
        yield from ((file.path, file.nbytes) for file in files if file is not None)
    for layout, counts in report.array_rows.items():
        for part, count in enumerate(counts):
            if count:
                yield row_file(layout, part, ""), payload_bytes("int64", (count,))
                for name, array in report.arrays.items():
                    nbytes = payload_bytes(array.dtype, (count, *array.row_shape))
                    yield row_file(layout, part, name), nbytes


def _take_back(marker: Path) -> None:
    """Remove a marker before its files are written anew: half of them are no split."""
    try:
        marker.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(marker.parent, error) from error


def available_bytes() -> int | None:
    """Memory that this machine has; None where the system does not tell."""
    try:
        return available_memory_bytes()
    except UnavailableError:
        return None
