"""The plan of a build in stages, as every machine that takes part keeps it: JSON, with the parts.

It is made once, by the stage "init"; the other stages read it, so that they need no inputs named
again and agree on every split and every part.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from overspill.build.parting.split_spec import OwnersSpec, SplitSpec, Window, owners_from_json
from overspill.build.spec import BuildSpec
from overspill.errors import ClusterError, FormatError
from overspill.storage.json_files import publish_json, read_document

WORK_NAME = ".overspill-cluster"
PLAN_NAME = "plan.json"
FORMAT = "overspill-cluster-plan"
VERSION = 1
_LARGEST_PLAN = 256 << 20


@dataclass(frozen=True, kw_only=True)
class ArrayPlace:
    """A node array's .npy file, and who sees it.

    Attributes:
        window: The file.
        machines: Numbers of the machines that have it.
        dtype: A name of `STORED_DTYPES`.
        row_shape: Shape of one row.
    """

    window: Window
    machines: tuple[int, ...]
    dtype: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedSplit:
    """A split of the input.

    Attributes:
        spec: What is staged.
        machines: Numbers of the machines that have all its files, that which should do it first.
        nbytes: Bytes that are read.
    """

    spec: SplitSpec
    machines: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What is built, of what, and where.

    Attributes:
        identifier: 32 hex digits, the same for the same inputs, options and parts; that of the
            partition too.
        out: The directory of the parts, the same on every machine.
        num_parts: How many parts.
        method: How nodes are given to parts.
        spec: What the whole is.
        machines: Addresses.
        disks: Of each machine, the number of the first one that sees the same directory `out`.
        owners: Of each part, the number of the machine that builds it.
        nodes: Node type -> which part has which.
        node_arrays: Node type -> array -> its file.
        splits: In the order of the input.
        sources: Path and size of every input.
    """

    identifier: str
    out: str
    num_parts: int
    method: str
    spec: BuildSpec
    machines: tuple[str, ...]
    disks: tuple[int, ...]
    owners: tuple[int, ...]
    nodes: dict[str, OwnersSpec]
    node_arrays: dict[str, dict[str, ArrayPlace]] = field(default_factory=dict)
    splits: tuple[PlannedSplit, ...] = ()
    sources: tuple[dict[str, Any], ...] = ()

    @property
    def work(self) -> Path:
        """Where the plan and what is staged lie."""
        return Path(self.out) / WORK_NAME

    def split_directory(self, number: int) -> Path:
        """Where a split is staged."""
        return self.work / f"split-{number:05d}"

    def part_directory(self, part: int) -> Path:
        """Where a part goes."""
        return Path(self.out) / part_name(part)

    def parts_of(self, machine: int) -> list[int]:
        """The parts that a machine builds."""
        return [part for part, owner in enumerate(self.owners) if owner == machine]

    @classmethod
    def from_json(cls, held: dict[str, Any]) -> JobPlan:
        """Read what `publish_plan` wrote; a plain error where it is wrong."""
        fields = {name: held[name] for name in cls.__dataclass_fields__}
        return cls(
            **fields
            | {
                "spec": BuildSpec.from_json(json.dumps(held["spec"], allow_nan=False)),
                "machines": tuple(held["machines"]),
                "disks": tuple(held["disks"]),
                "owners": tuple(held["owners"]),
                "nodes": {name: owners_from_json(one) for name, one in held["nodes"].items()},
                "node_arrays": {
                    name: {array: _place(place) for array, place in arrays.items()}
                    for name, arrays in held["node_arrays"].items()
                },
                "splits": tuple(_split(split) for split in held["splits"]),
                "sources": tuple(held["sources"]),
            }
        )


def part_name(part: int) -> str:
    """The name of a part's directory."""
    return f"part-{part:05d}"


def not_up(plan: JobPlan, machine: int, told: str) -> ClusterError:
    """The error of a machine that is needed and is not there."""
    return ClusterError(
        f"machine {plan.machines[machine]} is not up: {told}",
        remedy="start it again (ray start --address=...); the same call or command goes on",
    )


def publish_plan(plan: JobPlan) -> None:
    """Write the plan durably on this machine.

    Raises:
        DiskRefusedError: The disk refused.
    """
    publish_json(plan.work / PLAN_NAME, {"format": FORMAT, "version": VERSION, **asdict(plan)})


def unreadable(path: Path, error: OSError) -> FormatError:
    """The error of what a build left, and cannot be read."""
    return FormatError(
        f"cannot read {path}: {error.strerror}",
        path=str(path),
        errno=error.errno,
        remedy="make it readable, or remove the directory and build anew",
    )


def read_plan(out: Path) -> JobPlan | None:
    """The plan on this machine; None where there is none.

    Raises:
        FormatError: It is damaged, or of another version.
    """
    path = out / WORK_NAME / PLAN_NAME
    try:
        return read_document(
            path, JobPlan.from_json, form=FORMAT, version=VERSION, most_bytes=_LARGEST_PLAN
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def _place(held: dict[str, Any]) -> ArrayPlace:
    return ArrayPlace(
        window=Window(**held["window"]),
        machines=tuple(held["machines"]),
        dtype=held["dtype"],
        row_shape=tuple(held["row_shape"]),
    )


def _split(held: dict[str, Any]) -> PlannedSplit:
    return PlannedSplit(
        spec=SplitSpec.from_json(held["spec"]),
        machines=tuple(held["machines"]),
        nbytes=held["nbytes"],
    )
