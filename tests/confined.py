"""Scripts that tests run: with a hard memory limit, with a small /dev/shm, measured.

Use the ``run_python`` fixture; `make_cold` drops the cache of a test's inputs, since a file that
somebody outside of a control group has cached costs the processes inside nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from forked import can_fork, run_forked, script_environment
from overspill.linux.cache import drop_cache
from overspill.linux.confine import MemoryGroup, Peaks, PeakSampler

_COLD_ATTEMPTS = 20
_PRIVATE_SHM = 'mount -t tmpfs -o size="$1" tmpfs /dev/shm && shift && exec "$@"'


@dataclass(frozen=True)
class PythonResult:
    """How a run ended: negative return codes are signals, ``kills`` those for want of memory.

    Peaks are those of its group: there are none without a memory limit.
    """

    returncode: int
    stdout: str
    stderr: str
    peaks: Peaks
    kills: int

    def check(self) -> PythonResult:
        """Fail with the run's own output unless it ended well."""
        assert self.returncode == 0, f"exit {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self


def small_shm_command(argv: Sequence[str], nbytes: int) -> list[str]:
    """Wrap a command so that it sees a /dev/shm of its own, of this size; gone when it ends."""
    return ["unshare", "-m", "/bin/sh", "-c", _PRIVATE_SHM, "sh", str(nbytes), *argv]


def run_script(
    script: str,
    directory: Path,
    *,
    arguments: Sequence[object] = (),
    limit_bytes: int | None = None,
    shm_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 300,
    fresh: bool = False,
) -> PythonResult:
    """Run a script as a process of its own, from a file, so that spawned workers can import it.

    A fork of a process that has torch and PyG already, seconds sooner than an interpreter; a fresh
    interpreter where that is asked for, or a memory limit, which counts what imports take. Whatever
    it started and left running is killed with it: by its group under a limit, else by its session.
    """
    path = directory / f"script_{len(list(directory.glob('script_*.py')))}.py"
    path.write_text(textwrap.dedent(script))
    words, known = list(map(str, arguments)), script_environment(env)
    if not fresh and limit_bytes is None and can_fork(known):
        done = run_forked(path, words, env=known, shm_bytes=shm_bytes, timeout_s=timeout_s)
        return PythonResult(done.returncode, done.stdout, done.stderr, Peaks(), 0)
    argv = [sys.executable, str(path), *words]
    with ExitStack() as stack:
        group = None
        if shm_bytes is not None:
            argv = small_shm_command(argv, shm_bytes)
        if limit_bytes is not None:
            group = stack.enter_context(MemoryGroup.create(limit_bytes, name_hint="overspill-test"))
            argv = group.command(argv)
        child = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=known,
            start_new_session=True,
        )
        sampler = PeakSampler(group, pid=child.pid, interval_s=0.02)
        if group is not None:  # a process tree takes some ms a sample
            stack.enter_context(sampler)
        try:
            stdout, stderr = child.communicate(timeout=timeout_s)
        finally:
            _kill_session(child)
        kills = 0 if group is None else group.kill_count()
    return PythonResult(child.returncode, stdout, stderr, sampler.peaks, kills)


def make_cold(*paths: Path) -> None:
    """Drop the cache of files, and assert that it is gone."""
    for path in paths:
        for _ in range(_COLD_ATTEMPTS):
            result = drop_cache(path)
            assert result, f"the cache of {path} was not dropped: {result.reason}"
            if result.resident_after_bytes == 0:
                break
            # Read-ahead that was asked for earlier is under way and holds its pages, or reclaim
            # has them in hand for a moment: reading the file waits for the one and outlasts the
            # other.
            _read_through(path)
        else:
            raise AssertionError(f"something keeps pages of {path}: {result}")


def _read_through(path: Path) -> None:
    with path.open("rb", buffering=0) as opened:
        while opened.read(1 << 20):
            pass


def _kill_session(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
