"""What the caller's process sends, taken into files that the build reads like any other.

Bottleneck: the device. Each stream goes through one buffer into a scratch file, reserved and
written behind a bounded window: the build reads most inputs more than once, and a pipe can be read
only once. A file gets its header, without which nobody can read it, when all of its data is there;
so what a caller that died has sent is never taken for the whole. Pairs of ids that the build reads
once stay in the pipe until it reads them (`pipe_edges`).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from overspill.build.directory import SCRATCH, BuildDirectory
from overspill.build.inputs import SentEdges
from overspill.build.passes.spool import ScratchFile
from overspill.build.remedies import FREE_SPACE, SENT_AGAIN
from overspill.build.sending.frames import (
    NPY_HEADER_BYTES,
    PIPE_OPTION,
    FrameReader,
    SenderGoneError,
    npy_header,
)
from overspill.build.sending.pipe_edges import PipeEdges, read_once
from overspill.build.spec import STREAM_PREFIX, ArraySpec, BuildSpec, EdgeAxis
from overspill.errors import DiskRefusedError, FormatError, InputError, OverspillError
from overspill.linux.blocks import write_all
from overspill.linux.mounts import free_disk_bytes

_BUFFER_BYTES = 1 << 18
_PLACE = "sent"
_SUFFIXES = {"npy": ".npy", "pairs": ".npy", "arrow": ".arrows"}
_Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Arrived:
    """What was sent, in files; as a context manager it has errors name what people gave.

    Attributes:
        spec: The build, with the files' paths in the places of the streams, but of one that is read
            as it comes.
        directory: The build's directory, which holds them.
        names: Path -> what people call it.
        edges: What is known of the edges among it.
        pipe: Closed at the end, where something is still to be read from it; else -1.
    """

    spec: BuildSpec
    directory: BuildDirectory
    names: Mapping[str, str] = field(default_factory=dict)
    edges: SentEdges = field(default_factory=SentEdges)
    pipe: int = -1

    def remove(self) -> None:
        """Remove the files, before the dataset is published; undoing the build removes them too.

        Raises:
            DiskRefusedError: The system refused.
        """
        if self.names:
            self.directory.remove_scratch(_PLACE)

    def __enter__(self) -> Arrived:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
        if isinstance(error, InputError | FormatError):
            put_names(error, self.names)
        if isinstance(error, SenderGoneError):
            raise _ended_early(self.spec) from error


def take_in(
    spec: BuildSpec, directory: BuildDirectory, pipe: int, *, on_progress: _Told | None = None
) -> Arrived:
    """Read everything that is sent for a build, and say where it is.

    Reads `pipe` to its end and closes it; but where pairs of ids that the build reads once
    (`read_once`) come last, it stands before these, and `Arrived` closes it. Takes one buffer of
    256 KiB; on disk, the size of all that is read, until `Arrived.remove`.

    Args:
        spec: The build, with streams among its paths.
        directory: The build's directory.
        pipe: Descriptor of the pipe that `outgoing.Outgoing.send` writes to; not
            looked at where nothing is sent.
        on_progress: Called with the bytes taken in, and with those announced: of iterators nobody
            knows how many, so that there may be more.

    Raises:
        InputError: What was sent ended early.
        DiskRefusedError: It does not fit the disk, or the disk refused.
    """
    if not spec.streams:
        return Arrived(spec, directory)
    arrived = None
    try:
        arrived = _Intake(spec, directory, FrameReader(pipe), on_progress).run()
    except SenderGoneError as error:
        raise _ended_early(spec) from error
    finally:
        if arrived is None or not arrived.edges.readers:
            # Whoever still sends learns that nobody reads.
            os.close(pipe)
    return replace(arrived, pipe=pipe) if arrived.edges.readers else arrived


def _ended_early(spec: BuildSpec) -> InputError:
    return InputError(
        "what was to be sent from memory ended early",
        path=spec.out,
        remedy=SENT_AGAIN,
    )


class _Intake:
    def __init__(
        self,
        spec: BuildSpec,
        directory: BuildDirectory,
        frames: FrameReader,
        on_progress: _Told | None,
    ) -> None:
        self._spec, self._directory, self._frames = spec, directory, frames
        self._on_progress = on_progress
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._done = self._announced = 0
        self._places: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._axes: dict[str, EdgeAxis] = {}

    def run(self) -> Arrived:
        contents = self._frames.note()
        self._announced = sum(one["nbytes"] or 0 for one in contents)
        self._require_disk()
        last, readers = contents[-1]["stream"], {}
        for one in contents:
            stream, opening = one["stream"], self._frames.note()
            if opening["kind"] == "pairs" and stream == last == read_once(self._spec):
                readers[stream] = PipeEdges(self._frames, one["name"])
            else:
                self._take(stream, one["name"], opening)
        spec = _with_paths(self._spec, self._places)
        return Arrived(spec, self._directory, self._names, SentEdges(self._axes, readers))

    def _take(self, stream: str, name: str, opening: dict[str, Any]) -> None:
        path = str(self._one_file(stream.removeprefix(STREAM_PREFIX), opening["kind"]))
        self._places[stream], self._names[path] = path, name
        if opening["edge_axis"] is not None:
            self._axes[path] = opening["edge_axis"]

    def _require_disk(self) -> None:
        free = free_disk_bytes(self._directory.path)
        if self._announced > free:
            raise DiskRefusedError(
                "what is sent from memory does not fit the disk, where the build keeps it",
                path=str(self._directory.path),
                errno=errno.ENOSPC,
                needed_bytes=self._announced,
                available_bytes=free,
                remedy=FREE_SPACE,
            )

    def _one_file(self, number: str, kind: str) -> Path:
        relative = f"{SCRATCH}/{_PLACE}/sent-{number}{_SUFFIXES[kind]}"
        file = ScratchFile(self._directory.file(relative))
        try:
            offset = 0 if kind == "arrow" else NPY_HEADER_BYTES
            file.append(memoryview(bytes(offset)))
            self._copy(file)
            nbytes = file.seal() - offset
            closing = self._frames.note()
            if kind != "arrow":
                header = memoryview(npy_header(closing, nbytes))
                write_all(file.fd, header, 0, path=str(file.path))
        except BaseException:
            file.remove()
            raise
        os.close(file.fd)
        return file.path

    def _copy(self, file: ScratchFile) -> None:
        self._frames.begin()
        while count := self._frames.fill(self._buffer):
            file.append(self._buffer[:count])
            self._done += count
            if self._on_progress is not None:
                self._on_progress(self._done, self._announced)


def pipe_of(arguments: Sequence[str]) -> int:
    """The pipe's descriptor among the process's arguments, as `run_build` starts it; -1 if none."""
    if PIPE_OPTION not in arguments:
        return -1
    return int(arguments[arguments.index(PIPE_OPTION) + 1])


def without_streams(spec: BuildSpec) -> BuildSpec:
    """The part of a build that can be looked at before anything was sent."""

    def stored(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in paths if not path.startswith(STREAM_PREFIX))

    def arrays(held: dict[str, ArraySpec], *, edges: bool = True) -> dict[str, ArraySpec]:
        # Columns without files of their own are those of the edge files, if there are any yet.
        return {
            name: one
            for name, one in held.items()
            if (stored(one.paths) == one.paths if one.paths else edges)
        }

    return replace(
        spec,
        edges=tuple(
            replace(
                edge,
                paths=stored(edge.paths),
                arrays=arrays(edge.arrays, edges=bool(stored(edge.paths))),
            )
            for edge in spec.edges
        ),
        nodes={
            name: replace(node, arrays=arrays(node.arrays)) for name, node in spec.nodes.items()
        },
        streams=(),
    )


def _with_paths(spec: BuildSpec, places: Mapping[str, str]) -> BuildSpec:
    """The spec with files in the places of streams."""

    def placed(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(places.get(path, path) for path in paths)

    def arrays(held: dict[str, ArraySpec]) -> dict[str, ArraySpec]:
        return {name: replace(one, paths=placed(one.paths)) for name, one in held.items()}

    return replace(
        spec,
        edges=tuple(
            replace(edge, paths=placed(edge.paths), arrays=arrays(edge.arrays))
            for edge in spec.edges
        ),
        nodes={
            name: replace(node, arrays=arrays(node.arrays)) for name, node in spec.nodes.items()
        },
        streams=(),
    )


def put_names(error: OverspillError, names: Mapping[str, str]) -> None:
    """Have an error speak of what its author gave, not of the file that it came in."""
    for path, name in names.items():
        if error.path == path:
            error.path = name
        # Some speak of the file's own name; in another directory that is another file.
        alone = rf"(?<![\w./-]){re.escape(Path(path).name)}\b"
        for attribute in ("message", "remedy"):
            text = getattr(error, attribute)
            if text is not None:
                setattr(error, attribute, name.join(re.split(alone, text.replace(path, name))))
