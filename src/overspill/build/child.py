"""The parent's side of a build: starts its process, passes events on, raises its error.

Never multiprocessing: a script without a ``__main__`` guard, a script on stdin and a notebook work.
The process imports no torch, so its memory is the build's own.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Any

from overspill.build.spec import BuildSpec
from overspill.build.wire import decode_error
from overspill.errors import BuildFailedError
from overspill.settings import child_environment

_log = logging.getLogger("overspill")
_STDERR_TAIL = 2000
_END_TIMEOUT_S = 10.0
# Threads of numeric libraries and malloc's arenas each keep memory of their own; a fixed mmap
# threshold gives large buffers back to the system as soon as they are freed.
_LEAN = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 18),
}


def run_build(
    spec: BuildSpec, *, on_event: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """Build a dataset in a process of its own and wait for it.

    Blocks the calling thread; other threads may build elsewhere at the same time. The process ends
    when this one does, and when the call is interrupted.

    Args:
        spec: What to build.
        on_event: Called in this thread with each event: "plan" (sizes, projected and allowed
            bytes), "progress" (phase, done, total, unit) and at last "summary".

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
    """
    argv = [sys.executable, "-P", "-m", "overspill.build"]
    with tempfile.TemporaryFile() as told:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            env=child_environment(**_LEAN),
        )
        try:
            last = _converse(child, spec, on_event)
            child.wait()  # before its stdin is closed, which would end it with another status
        finally:
            _end(child)
        told.seek(0)
        words = told.read().decode("utf-8", "replace").strip()
    if words:
        _log.debug("the build's process said: %s", words[-_STDERR_TAIL:])
    if last.get("event") == "error":
        raise decode_error(last)
    if last.get("event") != "summary" or child.returncode != 0:
        raise _failed(child.returncode, words, spec)
    return {name: value for name, value in last.items() if name != "event"}


def _converse(
    child: subprocess.Popen[bytes], spec: BuildSpec, on_event: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    assert child.stdin is not None and child.stdout is not None
    last: dict[str, Any] = {}
    try:
        child.stdin.write(spec.to_json().encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        return last  # it ended before it read: its status and stderr say why
    for line in child.stdout:
        last = json.loads(line)
        if last.get("event") != "error":
            on_event(last)
    return last


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


def _failed(returncode: int, words: str, spec: BuildSpec) -> BuildFailedError:
    if returncode < 0:
        name = signal.Signals(-returncode).name
        told = f"the build's process was ended by {name}"
        remedy = (
            "for SIGKILL, look for the out-of-memory killer in dmesg; build again to start over"
        )
    else:
        told = f"the build's process ended with status {returncode} and no result"
        remedy = "build again to start over; report it if it happens again"
    if words:
        told += f": {words[-_STDERR_TAIL:]}"
    return BuildFailedError(told, path=spec.out, remedy=remedy)
