"""The parent's side of a build: starts its process, passes events on, raises its error.

Never multiprocessing: a script without a ``__main__`` guard, a script on stdin and a notebook work.
The process imports no torch, so its memory is the build's own.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

from overspill.build.journal import finished_steps, unfinished_bytes
from overspill.build.sending.conversation import Events, Outlet, UnwantedError
from overspill.build.sending.frames import PIPE_OPTION
from overspill.build.sending.outgoing import Outgoing
from overspill.build.spec import BuildSpec
from overspill.build.wire import PLAN_ONLY_OPTION, decode_error
from overspill.errors import BuildFailedError, InputError
from overspill.linux.pipes import open_wide_pipe
from overspill.settings import child_environment
from overspill.units import format_bytes

_log = logging.getLogger("overspill")
_STDERR_TAIL = 2000
_END_TIMEOUT_S = 10.0
# Threads of numeric libraries and malloc's arenas each keep memory of their own. With fixed
# thresholds large buffers go back to the system as soon as they are freed, while those that Arrow
# makes for each batch, a little more than 2 MiB a column, are used again: their faults took a fifth
# of its time.
_LEAN = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(5 << 19),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 22),
}


def run_build(
    spec: BuildSpec,
    *,
    streams: Outgoing | None = None,
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Build a dataset in a process of its own and wait for it.

    Blocks the calling thread; other threads may build elsewhere at the same time. The process ends
    when this one does, and when the call is interrupted.

    Args:
        spec: What to build.
        streams: What `spec` names as streams; sent in this thread, as the build takes it in. An
            error of a caller's iterator comes out as it is, once the build has been undone.
        on_event: Called in this thread with each event: "plan" (the fields of `BuildPlan` and of
            `Forecast`), before anything is written, "progress" (phase, done, total, unit) and at
            last "summary".

    Returns:
        The summary: nodes, edges, seconds, phase_seconds, edges_per_second, projected_bytes,
        allowed_bytes, peak_anon_bytes (measured), modules (imported by the process).

    Raises:
        InputError: An input is wrong; names file, row, column and value.
        OutputDirError: The output directory holds something that a build must not touch, or lies in
            memory.
        NoRoomError: The smallest plan does not fit the memory allowed.
        DiskRefusedError: The disk refused the bytes.
        UnavailableError: This system does not tell what memory or disk there is.
        BuildFailedError: The process ended without a result, for example killed by a signal; what
            it left is an unfinished build, which the next one starts over.
        KeyboardInterrupt: As it came, once the process has ended, with a note that says what is
            left and how to go on.
    """
    try:
        last = _told_last(spec, streams, on_event)
    except KeyboardInterrupt as error:
        error.add_note(_how_to_go_on(spec))
        raise
    return {name: value for name, value in last.items() if name != "event"}


def plan_only(
    spec: BuildSpec, *, on_event: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """Tell what a build is going to do and to take, and write nothing.

    Starts its process, which opens the inputs and prepares the kernels: a second, or some more the
    first time.

    Args:
        spec: What would be built; of files.
        on_event: Called with the plan, also where the build is refused after it.

    Returns:
        The plan: the fields of `BuildPlan` and of `Forecast`.

    Raises:
        OverspillError: Whatever `run_build` would raise before it reads edges.
    """
    last = _told_last(spec, None, on_event, PLAN_ONLY_OPTION)
    return {name: value for name, value in last.items() if name != "event"}


def _told_last(
    spec: BuildSpec,
    streams: Outgoing | None,
    on_event: Callable[[dict[str, Any]], None],
    *options: str,
) -> dict[str, Any]:
    """Run the process to its end; its last event, which is no error."""
    wanted = "plan" if PLAN_ONLY_OPTION in options else "summary"
    if len(spec.streams) != (0 if streams is None else len(streams.kinds)):
        raise InputError(
            f"the build reads {len(spec.streams)} streams, which were not given",
            path=spec.out,
            remedy="give the streams that it was described with",
        )
    with tempfile.TemporaryFile() as told:
        child, writing = _start(told, *options, sends=bool(spec.streams))
        try:
            last = _converse(child, spec, on_event, streams, writing)
            child.wait()  # before its stdin is closed, which would end it with another status
        finally:
            if writing is not None:
                writing.close()
            _end(child)
        told.seek(0)
        words = told.read().decode("utf-8", "replace").strip()
    if words:
        _log.debug("the build's process said: %s", words[-_STDERR_TAIL:])
    if last.get("event") == "error":
        raise decode_error(last)
    if last.get("event") != wanted or child.returncode != 0:
        raise _failed(child.returncode, words, spec)
    return last


def _start(
    told: IO[bytes], *options: str, sends: bool
) -> tuple[subprocess.Popen[bytes], FileIO | None]:
    """Start the process; with the writing end of a pipe to it where something will be sent."""
    argv = [sys.executable, "-P", "-m", "overspill.build", *options]
    with ExitStack() as opened:
        inherited: tuple[int, ...] = ()
        writing = None
        if sends:
            reading, writing = open_wide_pipe()
            # The reading end is the process's alone: when that ends, writing fails.
            opened.enter_context(reading)
            argv += [PIPE_OPTION, str(reading.fileno())]
            inherited = (reading.fileno(),)
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            pass_fds=inherited,
            env=child_environment(**_LEAN),
        )
    return child, writing


def _converse(
    child: subprocess.Popen[bytes],
    spec: BuildSpec,
    on_event: Callable[[dict[str, Any]], None],
    streams: Outgoing | None,
    writing: FileIO | None,
) -> dict[str, Any]:
    assert child.stdin is not None and child.stdout is not None
    events = Events(child.stdout.fileno(), on_event)
    try:
        child.stdin.write(spec.to_json().encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return {}  # it ended before it read: its status and stderr say why
    if streams is not None and writing is not None:
        try:
            with writing:
                streams.send(Outlet(writing.fileno(), events), _axes(spec))
        except UnwantedError:
            _log.debug("the build's process reads no more")
        except BaseException:
            # The pipe is closed: it undoes what it did, unless it is stopped before.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_END_TIMEOUT_S)
            raise
    return events.take_all()


def _axes(spec: BuildSpec) -> dict[str, int | None]:
    """Stream -> the axis along which its edges lie, as the build was told."""
    return {path: edge.edge_axis for edge in spec.edges for path in edge.paths}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let the process end by itself, or by the end of its stdin; no one outlives the call."""
    _close(child.stdin)
    _close(child.stdout)
    try:
        child.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except BrokenPipeError:
            _log.debug("the build's process closed its pipe first")


def _how_to_go_on(spec: BuildSpec) -> str:
    """What an interrupted build has left, and what to do with it."""
    out = Path(spec.out)
    steps = finished_steps(out)
    if steps is None:
        return f"nothing was left in {out}: the same call starts over"
    held = f"{out} holds an unfinished build of {format_bytes(unfinished_bytes(out))}"
    if spec.streams:
        return f"{held}: the same call starts over, for what came from memory is gone"
    if not steps:
        return f"{held}, no step of which was finished: the same call starts over"
    told = f"{held} with {steps} finished step{'s' if steps > 1 else ''}"
    return f"{told}: the same call with resume=True goes on, and without it starts over"


def _failed(returncode: int, words: str, spec: BuildSpec) -> BuildFailedError:
    if returncode < 0:
        name = signal.Signals(-returncode).name
        told = f"the build's process was ended by {name}"
        remedy = (
            "for SIGKILL, look for the out-of-memory killer in dmesg; build again to start over, "
            "or with resume=True to go on"
        )
    else:
        told = f"the build's process ended with status {returncode} and no result"
        remedy = "build again to start over; report it if it happens again"
    if words:
        told += f": {words[-_STDERR_TAIL:]}"
    return BuildFailedError(told, path=spec.out, remedy=remedy)
