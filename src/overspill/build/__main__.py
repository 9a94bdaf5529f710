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
from typing import TextIO

import numpy as np

from overspill.build.construct import construct
from overspill.build.inputs import Inputs
from overspill.build.plan import plan_build
from overspill.build.progress import Event
from overspill.build.spec import BuildSpec
from overspill.build.wire import encode_error
from overspill.errors import OverspillError
from overspill.kernels.csr import LONG_ROW, place_edges, sort_rows
from overspill.kernels.partition import scatter_edges
from overspill.linux.cgroups import available_memory_bytes
from overspill.linux.peaks import PeakSampler
from overspill.linux.processes import process_memory

PARENT_GONE = 3
REFUSED = 1


def main() -> int:
    """Read a spec, build, report; the exit status is 0, or 1 with an error event."""
    # Ctrl-C reaches the whole terminal group: the parent decides, by closing our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    events = _take_stdout()
    spec = BuildSpec.from_json(sys.stdin.buffer.readline().decode())
    threading.Thread(target=_end_with_parent, name="overspill-parent", daemon=True).start()
    send = _sender(events)
    try:
        with PeakSampler() as sampler:
            inputs = Inputs.open(spec)
            _warm_kernels()
            base = max(process_memory().anon_bytes, sampler.peaks.anon_bytes)
            plan = plan_build(
                base_bytes=base,
                available_bytes=available_memory_bytes(),
                limit_bytes=spec.memory_limit_bytes,
            )
            send({"event": "plan", **asdict(plan)})
            summary = construct(spec, plan, inputs=inputs, send=send)
            sampler.sample()
            peak = sampler.peaks.anon_bytes
    except OverspillError as error:
        send({"event": "error", **encode_error(error)})
        return REFUSED
    modules = sorted({name.split(".")[0] for name in sys.modules})
    send({"event": "summary", **asdict(summary), "peak_anon_bytes": peak, "modules": modules})
    return 0


def _take_stdout() -> TextIO:
    """Keep stdout for events alone: whatever else prints goes to stderr."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _sender(events: TextIO) -> Callable[[Event], None]:
    def send(event: Event) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

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


def _warm_kernels() -> None:
    """Compile, or load from the cache, what every build uses: its memory counts as the base."""
    one = np.zeros(1, np.int64)
    pool = np.zeros((2, 2, 2), np.int32)
    tables = (one.copy(), one.copy(), np.ones(2, np.int64), one.copy(), one.copy())
    scatter_edges((one, one, 0), (0, 0), (1, 1), pool, tables, np.array([1, 0, -1, -1]))
    ends, out = np.zeros(1, np.int64), np.zeros(1, np.int32)
    place_edges(pool[0, :1], 0, ends, out)
    sort_rows(ends, out, np.zeros(1 // LONG_ROW + 1, np.int64))


if __name__ == "__main__":
    sys.exit(main())
