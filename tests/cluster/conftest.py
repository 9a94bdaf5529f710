"""Scripts on Ray clusters: run, heard out, and nothing of them left, however they end.

One script a file of tests, in an interpreter of its own; each test looks at one finding::

    SCRIPT = '''
    from clusters import LocalCluster, report
    with LocalCluster(2) as cluster:
        report(nodes=len(ray.nodes()))
    '''

    @pytest.fixture(scope="module")
    def found(on_cluster):
        return on_cluster(SCRIPT)
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from confined import run_script

_MARK = "OVERSPILL_TEST_CLUSTER"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # other tests may fill the machine's memory
}
_LOG_LINES = 40


@pytest.fixture(scope="module")
def on_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Any]]]:
    """``on_cluster(script, *, arguments=(), env=None, timeout_s=240, **more)``.

    Runs a script that makes a `clusters.LocalCluster` and gives what it told by `clusters.report`,
    of several reports all together. Further arguments are those of `confined.run_script`.
    """
    place = tmp_path_factory.mktemp("cluster")

    def run(script: str, **options: Any) -> dict[str, Any]:
        short = tempfile.mkdtemp(prefix="r")  # a socket's path may have 107 bytes
        Path(short, "ray").mkdir()  # where Ray notes the cluster's address
        env = {**_QUIET, "RAY_TMPDIR": short, _MARK: short, **(options.pop("env", None) or {})}
        try:
            result = run_script(script, place, env=env, **{"timeout_s": 240, **options})
            logs = "" if result.returncode == 0 else _logs(Path(short))
        finally:
            end_processes(f"{_MARK}={short}")
            shutil.rmtree(short, ignore_errors=True)
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{logs}"
        found: dict[str, Any] = {}
        for line in result.stdout.splitlines():
            if line.startswith("found "):
                found |= json.loads(line.removeprefix("found "))
        return found

    yield run
    shutil.rmtree(place)


def end_processes(variable: str) -> None:
    """Kill the processes that have inherited a variable, and wait for their end.

    Ray's have sessions and groups of their own: what they all have is the environment.
    """
    while found := list(_processes_with(variable.encode())):
        for pid in found:
            with suppress(ProcessLookupError):
                ended = os.pidfd_open(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                    select.select([ended], [], [])
                finally:
                    os.close(ended)


def _processes_with(variable: bytes) -> Iterator[int]:
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        with suppress(OSError):  # ended meanwhile, or somebody else's
            if variable in (place / "environ").read_bytes().split(b"\0"):
                yield int(place.name)


def _logs(place: Path) -> str:
    """The ends of what the workers and the nodes wrote to stderr."""
    told = []
    for log in sorted(place.glob("session_2*/logs/*.err")):
        lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        told += [f"--- {log.name}", *lines] if lines else []
    return "\n".join(told)
