"""What ``import overspill`` costs a program that has imported torch, in fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures
from overspill.settings import child_environment

OURS = "import torch, overspill"
LIMIT = "import torch"
_ON_TOP = "seconds on top of torch"
_NUMBA = "numba imported"
_THREADS = "threads started"
_SCRIPT = """
import json, os, sys, time
import torch
threads = len(os.listdir("/proc/self/task"))
start, start_of_work = time.perf_counter(), time.process_time()
{more}
print(json.dumps({{
    "seconds on top of torch": time.perf_counter() - start,
    "of them processor time": time.process_time() - start_of_work,
    "numba imported": int("numba" in sys.modules),
    "threads started": len(os.listdir("/proc/self/task")) - threads,
}}))
"""


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case; it writes no file and has no size, so both arguments change nothing.

    Args:
        directory: Not used.
        nbytes: Not used.

    Yields:
        The case.
    """
    del directory, nbytes
    yield [
        Case(
            name="import",
            contenders=[
                Contender(name=OURS, act=lambda _: _run("import overspill"), after=_figures),
                Contender(name=LIMIT, act=lambda _: _run("")),
            ],
            baseline=OURS,
            limit=LIMIT,
            targets=[
                Bound(of=OURS, figure=_ON_TOP, at_most=0.15),
                Bound(of=OURS, figure=_NUMBA, at_most=0),
                Bound(of=OURS, figure=_THREADS, at_most=0),
            ],
        )
    ]


def _run(more: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCRIPT.format(more=more)],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _figures(reported: Any) -> Figures:
    return reported or {}


if __name__ == "__main__":
    sys.exit(main([opened]))
