"""A stream from end to end without a build: sent in one thread, taken in by another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from overspill.build.conversation import Events, Outlet, UnwantedError
from overspill.build.directory import BuildDirectory
from overspill.build.incoming import Arrived, take_in
from overspill.build.outgoing import Outgoing
from overspill.build.spec import BuildSpec, EdgeSpec
from overspill.linux.pipes import open_wide_pipe


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
    return BuildSpec(out=str(out), edges=(EdgeSpec(paths=paths),), streams=streams.kinds)


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
