"""Start part 2 under a hard memory limit where one can be made, and watch what it holds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from overspill.errors import BuildFailedError, NoRoomError, UnavailableError
from overspill.linux.confine import MemoryGroup
from overspill.linux.peaks import Peaks, PeakSampler
from overspill.recording.loader_counts import LoaderCounts
from overspill.settings import child_environment
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.cli.demo.large import LargeSpec
    from overspill.cli.demo.recorded import PartRecording

Report = Callable[[str, int, int, str], None]
_REMEDY = "see its last words; give it a higher --memory-limit if the system was out of memory"


def make_group(limit_bytes: int) -> tuple[MemoryGroup | None, str]:
    """A group with a hard limit, or None, and a sentence that says which and why."""
    try:
        group = MemoryGroup.create(limit_bytes, name_hint="overspill-demo")
    except UnavailableError as error:
        return None, f"no hard limit can be set here, so memory is measured instead ({error})"
    return group, f"a control group with a hard limit of {format_bytes(limit_bytes)}"


def run_confined(
    spec: LargeSpec,
    group: MemoryGroup | None,
    *,
    report: Report,
    recording: PartRecording | None = None,
) -> tuple[dict[str, Any], Peaks]:
    """Run part 2 in a process of its own and return its result and the peaks of its memory.

    Args:
        spec: What to do.
        group: The group to run it in; None runs it without a limit.
        report: Called with (phase, done, total, unit).
        recording: Records it, too.

    Raises:
        NoRoomError: The limit killed it.
        BuildFailedError: It ended without a result; the message tells how, and its last words.
    """
    argv = [
        sys.executable,
        "-P",
        "-m",
        "overspill.cli.demo.large",
        json.dumps(asdict(spec), allow_nan=False),
    ]
    with ExitStack() as stack:
        words = stack.enter_context(tempfile.TemporaryFile())
        child = stack.enter_context(
            subprocess.Popen(
                argv if group is None else group.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                env=child_environment(),
            )
        )
        stack.callback(_end, child)
        sampler = stack.enter_context(PeakSampler(group, pid=child.pid))
        if recording is not None:
            stack.enter_context(recording.of(child.pid, group))
        result = _follow(child, report, recording)
        child.wait()
        if result is None or child.returncode != 0:
            if group is not None and group.kill_count():
                raise NoRoomError(
                    "part 2 was killed by the kernel for going over its limit",
                    available_bytes=spec.memory_limit_bytes,
                    remedy="give it a higher --memory-limit, or fewer --workers",
                )
            words.seek(0)
            raise _failure(child.returncode, result, words.read().decode(errors="replace"))
    return result, sampler.peaks


def _follow(
    child: subprocess.Popen[str], report: Report, recording: PartRecording | None
) -> dict[str, Any] | None:
    last = None
    assert child.stdout is not None
    for line in child.stdout:
        held = json.loads(line)
        kind = held.pop("event")
        if kind == "progress":
            report(held["phase"], held["done"], held["total"], held["unit"])
            if recording is not None:
                recording.enter(held["phase"])
        elif kind == "loaded":
            if recording is not None:
                recording.loaded = LoaderCounts(**held)
        else:
            last = held
    return last


def _failure(code: int, said: dict[str, Any] | None, words: str) -> BuildFailedError:
    if said is not None and "message" in said:
        return BuildFailedError(f"part 2 failed: {said['message']}", remedy=said.get("remedy"))
    ending = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    tail = "\n".join(words.splitlines()[-8:])
    return BuildFailedError(
        f"part 2 {ending} without a result" + (tail and f":\n{tail}"), remedy=_REMEDY
    )


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.kill()
        child.wait()
