"""What a machine has of a build in stages, and which files it sees; where the plan is left.

Each function runs on one machine, as a task (`tasks`), and reads no file of the input.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from overspill.build.describe import matching_files
from overspill.build.directory import unwritable
from overspill.build.parting.split_spec import Window
from overspill.build.readers.source import SourceFile
from overspill.cluster.building.job import WORK_NAME, JobPlan, publish_plan, read_plan
from overspill.cluster.building.tasks import Send
from overspill.errors import InputError, OutputDirError
from overspill.linux.mounts import filesystem_type, is_memory_backed
from overspill.storage.manifest import MANIFEST_NAME, read_manifest
from overspill.storage.partition_manifest import (
    PARTITION_NAME,
    PartitionManifest,
    read_partition,
)


@dataclass(frozen=True)
class Sight:
    """What a machine sees.

    Attributes:
        address: The machine's.
        files: Of each pattern, the files that match it, in order.
        plan: The identifier of the build that its output directory holds unfinished; or "".
        finished: That of the partition that it holds; or "".
    """

    address: str
    files: tuple[tuple[Window, ...], ...]
    plan: str
    finished: str


def look(out: str, address: str, token: str, patterns: tuple[str, ...], *, send: Send) -> Sight:
    """Make the build's directory on a machine, leave a token, and see which files there are.

    Raises:
        OutputDirError: The directory lies in memory, or holds something else.
        DiskRefusedError: It cannot be written.
    """
    send(0)
    place = Path(out)
    if is_memory_backed(place):
        raise OutputDirError(
            f"{out} lies on {filesystem_type(place)}, which is memory: the parts would fill it",
            path=out,
            remedy="choose a directory on a disk",
        )
    finished = ""
    if (place / PARTITION_NAME).exists():
        finished = read_partition(place, check_files=False).identifier
    _require_ours(place)
    plan = read_plan(place)
    try:
        (place / WORK_NAME).mkdir(parents=True, exist_ok=True)
        (place / WORK_NAME / token).touch()
    except OSError as error:
        raise unwritable(place, error) from error
    return Sight(
        address,
        tuple(_matches(pattern) for pattern in patterns),
        "" if plan is None else plan.identifier,
        finished,
    )


def see(out: str, tokens: tuple[str, ...], *, send: Send) -> tuple[bool, ...]:
    """Which of the tokens that machines left are seen here: theirs is the same directory."""
    send(0)
    return tuple((Path(out) / WORK_NAME / token).exists() for token in tokens)


def settle(plan: JobPlan | None, out: str, token: str, *, send: Send) -> None:
    """Remove the token, and write the plan where there is one.

    Raises:
        OutputDirError: Another build was planned into the directory meanwhile.
    """
    send(0)
    (Path(out) / WORK_NAME / token).unlink(missing_ok=True)
    held = read_plan(Path(out))
    if plan is None or (held is not None and held.identifier == plan.identifier):
        return
    if held is not None or (Path(out) / PARTITION_NAME).exists():
        raise another_build(out)
    publish_plan(plan)


def another_build(out: str) -> OutputDirError:
    """The error of a directory that another run took meanwhile."""
    return OutputDirError(
        f"{out} was taken meanwhile by a build of other inputs or options",
        path=out,
        remedy="choose another directory, or wait for the other run to end",
    )


def leave(out: str, token: str, *, send: Send) -> None:
    """Remove the token, and the directories that hold nothing else: the build was refused."""
    send(0)
    work = Path(out) / WORK_NAME
    (work / token).unlink(missing_ok=True)
    for directory in (work, Path(out)):
        # It holds something, or another machine that shares it was first.
        with suppress(OSError):
            directory.rmdir()


@dataclass(frozen=True)
class Holding:
    """What a machine has of a build in stages.

    Attributes:
        plan: The plan; None where there is none, or no more.
        finished: The partition; None where there is none yet.
        parts: Part -> its nodes and its edges, of those that are there.
    """

    plan: JobPlan | None
    finished: PartitionManifest | None
    parts: dict[int, tuple[int, int]]


def held(out: str, *, send: Send) -> Holding:
    """What this machine has of a build, under way or complete."""
    send(0)
    place, finished, parts = Path(out), None, {}
    if (place / PARTITION_NAME).exists():
        finished = read_partition(place, check_files=False)
        for index, entry in enumerate(finished.parts):
            if (place / entry.path / MANIFEST_NAME).exists():
                manifest = read_manifest(place / entry.path, check_files=False)
                nodes = sum(node.count for node in manifest.node_types.values())
                parts[index] = nodes, sum(edge.count for edge in manifest.edge_types.values())
    return Holding(read_plan(place), finished, parts)


def _matches(pattern: str) -> tuple[Window, ...]:
    if not pattern:  # it is of another machine
        return ()
    try:
        paths = matching_files(pattern)
    except OSError as error:
        raise InputError(
            f"cannot read {pattern}: {error.strerror}", path=pattern, remedy="check the path"
        ) from error
    found = []
    for path in paths:
        source = SourceFile.check(path)
        found.append(Window(path=path, nbytes=source.nbytes, modified_ns=source.modified_ns))
    return tuple(found)


def _require_ours(place: Path) -> None:
    """Refuse a directory that holds what no build in stages made."""
    if not place.exists():
        return
    if not place.is_dir():
        raise OutputDirError(
            f"{place} is a file, not a directory", path=str(place), remedy="choose another path"
        )
    names = sorted(entry.name for entry in place.iterdir())
    if names and WORK_NAME not in names and PARTITION_NAME not in names:
        raise OutputDirError(
            f"{place} holds {names[0]!r} and is not an unfinished build in stages",
            path=str(place),
            remedy="choose an empty or absent directory",
        )
