"""The stage "partition" on one machine: splits staged, each finished by a marker written last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from overspill.build.parting.split_spec import SplitReport
from overspill.build.parting.stage_split import stage_split
from overspill.build.parting.staged_edges import warm_staging
from overspill.cluster.building.claims import claimed
from overspill.cluster.building.job import JobPlan, PlannedSplit
from overspill.cluster.building.parts import FinishedPart, finished_part
from overspill.errors import FormatError, UnavailableError
from overspill.kernels.jit import leave_out_linear_algebra
from overspill.linux.cgroups import available_memory_bytes
from overspill.storage.json_files import not_understood, parse_document, publish_json

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
    """What a split's marker says; None where it is not staged, or for another plan."""
    path = place / DONE_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(
            f"cannot read {path}: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="make it readable, or remove the directory and build anew",
        ) from error
    held = parse_document(text, path, form=_FORMAT, version=_VERSION)
    try:
        report = SplitReport.from_json(held)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise not_understood(path, error) from error
    return report if report.plan == plan else None


def available_bytes() -> int | None:
    """Memory that this machine has; None where the system does not tell."""
    try:
        return available_memory_bytes()
    except UnavailableError:
        return None
