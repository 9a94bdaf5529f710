"""The build's own process: a spec on stdin, events on stdout, gone when its parent is gone."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn, TextIO

from overspill.build.construct import BuildSummary, construct, require_possible
from overspill.build.directory import require_claimable
from overspill.build.forecast import forecast_build
from overspill.build.inputs import Inputs
from overspill.build.journal import unfinished_bytes
from overspill.build.parting.part_build import construct_part
from overspill.build.plan import BuildPlan, plan_build
from overspill.build.progress import Event
from overspill.build.reading_memory import reading_bytes
from overspill.build.sending.incoming import pipe_of, without_streams
from overspill.build.spec import BuildSpec
from overspill.build.warming import warm_kernels
from overspill.build.wire import PLAN_ONLY_OPTION, encode_error, name_error
from overspill.errors import OverspillError
from overspill.kernels.jit import compiled_into_cache, leave_out_linear_algebra
from overspill.linux.cgroups import available_memory_bytes
from overspill.linux.peaks import PeakSampler
from overspill.linux.processes import process_memory

PARENT_GONE = 3
_SPEC_OPTION = "--spec"  # the descriptor of a spec that this process left itself
REFUSED = 1


def main() -> int:
    """Read a spec, build, report; the exit status is 0, or 1 with an error event."""
    # Ctrl-C reaches the whole terminal group: the parent decides, by closing our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    events = _take_stdout()
    spec = _take_spec()
    threading.Thread(target=_end_with_parent, name="overspill-parent", daemon=True).start()
    send = _sender(events)
    try:
        if PLAN_ONLY_OPTION not in sys.argv:  # whose plan is told whatever follows
            _require_place(Path(spec.out))
        inputs = Inputs.open(without_streams(spec))
        leave_out_linear_algebra()
        warm_kernels(spec, inputs)
        if not _started_again() and compiled_into_cache():
            _start_again(spec, events)
        # A short build has phases of some tens of ms: the default would miss their peaks.
        with PeakSampler(children=False, interval_s=0.02) as sampler:
            base = max(process_memory().anon_bytes, sampler.peaks.anon_bytes)
            plan = plan_build(
                base_bytes=base,
                available_bytes=available_memory_bytes(),
                limit_bytes=spec.memory_limit_bytes,
                threads=spec.threads,
                reading_bytes=reading_bytes(inputs),
            )
            held = unfinished_bytes(Path(spec.out))
            forecast = forecast_build(spec, inputs, plan, held_bytes=held)
            told = {**asdict(plan), "buckets": plan.buckets, **forecast.to_json()}
            send({"event": "plan", **told})
            if PLAN_ONLY_OPTION in sys.argv:
                require_possible(spec, inputs, plan, held_bytes=held)
                _require_place(Path(spec.out))
                return 0
            summary = _constructed(spec, plan, inputs, send)
            sampler.sample()
            peak = sampler.peaks.anon_bytes
    except OverspillError as error:
        send({"event": "error", **encode_error(error)})
        return REFUSED
    except (OSError, MemoryError) as error:
        send({"event": "error", **encode_error(name_error(error, path=spec.out))})
        return REFUSED
    modules = sorted({name.split(".")[0] for name in sys.modules})
    send({"event": "summary", **asdict(summary), "peak_anon_bytes": peak, "modules": modules})
    return 0


def _constructed(
    spec: BuildSpec, plan: BuildPlan, inputs: Inputs, send: Callable[[Event], None]
) -> BuildSummary:
    if spec.part is not None:
        return construct_part(spec, spec.part, plan, send=send)
    return construct(
        spec,
        plan,
        inputs=None if spec.streams else inputs,
        send=send,
        pipe=pipe_of(sys.argv),
    )


def _require_place(out: Path) -> None:
    """Refuse what the build would refuse of its directory, without making one."""
    try:
        if out.exists():
            require_claimable(out)
    except OSError as error:
        raise name_error(error, path=str(out)) from error


def _started_again() -> bool:
    return _SPEC_OPTION in sys.argv


def _take_spec() -> BuildSpec:
    """From stdin, or from the descriptor that this process left itself."""
    if _started_again():
        with os.fdopen(int(sys.argv[sys.argv.index(_SPEC_OPTION) + 1]), "rb") as held:
            return BuildSpec.from_json(held.read().decode())
    return BuildSpec.from_json(sys.stdin.buffer.readline().decode())


def _take_stdout() -> TextIO:
    """Keep stdout for events alone: whatever else prints goes to stderr."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _sender(events: TextIO) -> Callable[[Event], None]:
    def send(event: Event) -> None:
        try:
            events.write(json.dumps(event) + "\n")
            events.flush()
        except BrokenPipeError:
            # As `_end_with_parent`, which may come too late: an error would undo finished steps.
            os._exit(PARENT_GONE)

    return send


def _end_with_parent() -> None:
    """Wait for the end of stdin or of the parent, then end this process at once.

    The end of stdin alone does not tell: a process that the parent forked may hold its other end.
    """
    parent = os.getppid()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with suppress(OSError, AttributeError):  # before Linux 5.3
        poll.register(os.pidfd_open(parent), select.POLLIN)
    while True:
        for fd, _ in poll.poll(1000):
            if fd != 0 or not os.read(0, 4096):
                os._exit(PARENT_GONE)
        if os.getppid() != parent:
            os._exit(PARENT_GONE)


def _start_again(spec: BuildSpec, events: TextIO) -> NoReturn:
    """Replace this process by one that loads the kernels that this one has compiled.

    A compiler keeps 20 to 40 MiB for as long as its process lives, so that a limit which suffices
    from the second build on would be refused at the first.
    """
    held = os.memfd_create("overspill-spec", 0)
    with os.fdopen(held, "wb", closefd=False) as file:
        file.write(spec.to_json().encode())
    os.lseek(held, 0, os.SEEK_SET)
    os.dup2(events.fileno(), 1)
    argv = [sys.executable, "-P", "-m", "overspill.build", *sys.argv[1:], _SPEC_OPTION, str(held)]
    os.execv(sys.executable, argv)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # The interpreter would spend 0.15 s on freeing what goes with the process anyway.
    os._exit(status)
