"""A part of a benchmark as a process of its own, in a memory group or out of it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from overspill.linux.confine import MemoryGroup


def run_job(module: str, *arguments: object, limit_bytes: int | None = None) -> dict[str, Any]:
    """Run ``python -m module`` and wait for it.

    Args:
        module: Its name, like "benchmarks.gather_job".
        *arguments: What it is told.
        limit_bytes: Hard limit of the memory group around it; None runs it without one.

    Returns:
        The JSON object that it prints.
    """
    argv = [sys.executable, "-m", module, *map(str, arguments)]
    with ExitStack() as stack:
        if limit_bytes is not None:
            group = MemoryGroup.create(limit_bytes, name_hint="overspill-benchmark")
            argv = stack.enter_context(group).command(argv)
        done = subprocess.run(
            argv,
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return dict(json.loads(done.stdout))
