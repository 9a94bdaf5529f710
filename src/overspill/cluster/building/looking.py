"""What the machines tell before a build is planned: which files they see, what these hold.

Each function runs on one machine, as a task (`tasks`); none reads more than headers, but for
`count_split`, which reads its edges once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from overspill.build.describe import matching_files
from overspill.build.directory import unwritable
from overspill.build.inputs import out_of_range
from overspill.build.parting.split_spec import SplitSpec, Window
from overspill.build.parting.stage_split import (
    CHUNK_EDGES,
    Ids,
    applied_policies,
    opened_window,
    require_range,
)
from overspill.build.passes.partition import UNBOUNDED
from overspill.build.pipeline import prefetched
from overspill.build.readers.edges import open_edges, sniff_format
from overspill.build.readers.features import open_features
from overspill.build.readers.source import SourceFile
from overspill.build.readers.windows import units_of
from overspill.build.spec import EdgeSpec
from overspill.cluster.building.job import WORK_NAME, JobPlan, publish_plan, read_plan
from overspill.errors import InputError, OutputDirError
from overspill.linux.mounts import filesystem_type, is_memory_backed
from overspill.storage.manifest import MANIFEST_NAME, read_manifest
from overspill.storage.partition_manifest import (
    PARTITION_NAME,
    PartitionManifest,
    read_partition,
)

Send = Callable[[float], None]


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


@dataclass(frozen=True)
class EdgeFile:
    """What the header of a file of edges tells.

    Attributes:
        kind: Its format.
        count: Edges, where that is told.
        units: Edges of each part that can be read alone; None: the whole file, or single edges.
        text: Whether ids are text.
        arrays: Array of further columns -> dtype and row shape.
    """

    kind: str
    count: int | None
    units: tuple[int, ...] | None
    text: bool
    arrays: dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class ArrayFile:
    """What the header of a .npy file tells.

    Attributes:
        dtype: A name of `STORED_DTYPES`.
        shape: The whole shape.
        in_order: Whether its rows lie one after another.
    """

    dtype: str
    shape: tuple[int, ...]
    in_order: bool


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


def describe_edges(files: tuple[tuple[Window, EdgeSpec], ...], *, send: Send) -> list[EdgeFile]:
    """Read the headers of files of edges.

    Raises:
        InputError: One is no file of edges.
    """
    found = []
    for number, (window, spec) in enumerate(files):
        source = SourceFile.check(window.path)
        reader = open_edges(source, spec)
        arrays = {}
        for name, array in spec.arrays.items():
            if not array.paths:
                rows = reader.rows(array.columns)
                arrays[name] = (rows.dtype, rows.row_shape)
        kind = sniff_format(source)
        units = units_of(reader)
        found.append(EdgeFile(kind, reader.count, units, any(reader.text), arrays))
        send(number)
    return found


def describe_arrays(files: tuple[tuple[str, str], ...], *, send: Send) -> list[ArrayFile]:
    """Read the headers of .npy files, by path and name.

    Raises:
        InputError: One is no array whose rows can be stored.
    """
    send(0)
    found = []
    for path, name in files:
        file = open_features(path, name)
        in_order = not file.fortran or len(file.shape) == 1
        found.append(ArrayFile(file.type_name, file.shape, in_order))
    return found


def count_split(spec: SplitSpec, *, send: Send) -> tuple[list[int], int, int]:
    """Read the edges of a split: how many each window has, and the largest source and target.

    Raises:
        InputError: An id is negative, or too large.
    """
    counts, largest, done = [], [-1, -1], 0
    for window in spec.windows:
        reader, count = opened_window(window, spec), 0
        for chunk in prefetched(reader.chunks(CHUNK_EDGES)):
            for end, ids in enumerate((chunk.sources, chunk.targets)):
                held = cast("Ids", ids)
                if held.min(initial=0) < 0 or held.max(initial=0) >= UNBOUNDED:
                    wrong = int(np.argmax((held < 0) | (held >= UNBOUNDED)))
                    raise out_of_range(reader, chunk, wrong, end, None)
                largest[end] = max(largest[end], int(held.max(initial=-1)))
            count += len(chunk.sources)
            send(done + chunk.bytes_done)
        counts.append(count)
        done += reader.nbytes
    return counts, largest[0], largest[1]


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


def count_entering(
    spec: SplitSpec, shift: int, ranges: tuple[tuple[int, int], ...], *, send: Send
) -> list[Ids]:
    """Count the edges of a split by the node whose row they are in: its target, of "csc".

    Args:
        spec: The split.
        shift: How many low bits of a node are left out where ranges of nodes are counted.
        ranges: First node and end of those ranges whose nodes are counted one by one; none: all
            nodes are counted, by ranges.
        send: Called with the bytes read so far.

    Returns:
        Edges of each range; or, of each of `ranges`, those of each of its nodes.
    """
    counted = spec.targets if "csc" in spec.layouts else spec.sources
    wanted = ranges or ((0, (max(0, counted.count - 1) >> shift) + 1),)
    found = [np.zeros(last - first, np.int64) for first, last in wanted]
    done = 0
    for window in spec.windows:
        reader = opened_window(window, spec)
        for chunk in prefetched(reader.chunks(CHUNK_EDGES)):
            require_range(spec, reader, chunk)
            edges = applied_policies(spec, chunk, None)
            nodes = edges.targets if "csc" in spec.layouts else edges.sources
            for held, (first, last) in zip(found, wanted, strict=True):
                places = (nodes if ranges else nodes >> shift) - first
                inside = places[(places >= 0) & (places < last - first)]
                held += np.bincount(inside, minlength=last - first)
            send(done + chunk.bytes_done)
        done += reader.nbytes
    return found
