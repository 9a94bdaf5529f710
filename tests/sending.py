"""A stream from end to end without a build: sent in one thread, taken in by another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from naive import TINY
from overspill.build.construct import construct
from overspill.build.describe import describe_build
from overspill.build.directory import BuildDirectory
from overspill.build.progress import Event
from overspill.build.sending.conversation import Events, Outlet, UnwantedError
from overspill.build.sending.frames import frame
from overspill.build.sending.incoming import Arrived, take_in
from overspill.build.sending.outgoing import Outgoing
from overspill.build.spec import NODE_TYPE, BuildSpec, EdgeSpec, NodeSpec
from overspill.linux.pipes import open_wide_pipe


def framed(data: bytes) -> bytes:
    """A frame, as written by hand."""
    return frame(len(data)) + data


def pipe_with(data: bytes) -> int:
    """A pipe that holds so much and has no sender any more."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(data)
    return reading


@contextmanager
def outlet_to(pipe: Any) -> Iterator[Outlet]:
    """The writing end, with events that never come."""
    silent, told = os.pipe()
    try:
        with pipe:
            yield Outlet(pipe.fileno(), Events(silent, lambda _: None))
    finally:
        os.close(silent)
        os.close(told)


def spec_of(out: Path, streams: Outgoing, *paths: str) -> BuildSpec:
    """Of a build that reads its edges twice, so that they are kept."""
    return BuildSpec(
        out=str(out),
        edges=(EdgeSpec(paths=paths),),
        nodes={NODE_TYPE: NodeSpec()},
        streams=streams.kinds,
        layouts=("csc", "csr"),
    )


@contextmanager
def taken_in(
    out: Path,
    streams: Outgoing,
    *paths: str,
    axis: int | None = None,
    spec: BuildSpec | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Arrived]:
    """What arrives in a build directory; the block's end undoes it. Errors of either end come."""
    reading, writing = open_wide_pipe()
    failed: list[BaseException] = []

    def send() -> None:
        try:
            with outlet_to(writing) as outlet:
                streams.send(outlet, dict.fromkeys(paths, axis))
        except BaseException as error:  # noqa: BLE001 (raised below, in the caller's thread)
            failed.append(error)

    sender = threading.Thread(target=send, name="overspill-test-sender")
    with BuildDirectory(out) as directory:
        sender.start()
        try:
            with take_in(
                spec or spec_of(out, streams, *paths),
                directory,
                os.dup(reading.fileno()),
                on_progress=progress,
            ) as arrived:
                sender.join()
                assert not failed, failed
                yield arrived
        finally:
            reading.close()
            sender.join()
            # That nobody read on has its reason at the other end.
            if failed and not isinstance(failed[0], UnwantedError):
                raise failed[0]


def arrived_array(out: Path, value: Any, *, what: str = "edges", **options: Any) -> np.ndarray:
    """One value, as the .npy file that it became, read by numpy."""
    streams = Outgoing()
    name = streams.add(value, what=what)
    assert name == "stream:0"
    with taken_in(out, streams, name, **options) as arrived:
        (path,) = arrived.names
        assert path.endswith(".npy")
        return np.load(path)


def arrived_table(out: Path, value: Any, *, what: str = "edges", **options: Any) -> pa.Table:
    """One value, as the Arrow stream that it became."""
    streams = Outgoing()
    name = streams.add(value, what=what)
    assert name == "stream:0"
    with taken_in(out, streams, name, **options) as arrived:
        (path,) = arrived.names
        assert path.endswith(".arrows")
        with pa.ipc.open_stream(path) as reader:
            return reader.read_all()


def build_sent(
    out: Path, *, on_event: Callable[[Event], None] = lambda _: None, **options: Any
) -> None:
    """Build in this process, with tiny buffers, what a thread of it sends."""
    streams = Outgoing()
    spec = describe_build(out, streams=streams, **options)
    reading, writing = open_wide_pipe()

    def send() -> None:
        # That nobody reads on has its reason at the other end.
        with outlet_to(writing) as outlet, suppress(UnwantedError):
            streams.send(outlet, {path: e.edge_axis for e in spec.edges for path in e.paths})

    sender = threading.Thread(target=send, name="overspill-test-sender")
    sender.start()
    try:
        with reading:
            pipe = os.dup(reading.fileno())
        construct(spec, TINY, inputs=None, send=on_event, pipe=pipe)
    finally:
        sender.join()
