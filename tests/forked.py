"""The side of `script_server` that asks: one server a pytest process, started when first needed."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from overspill.settings import child_environment

TESTS = Path(__file__).resolve().parent
SERVER = TESTS / "script_server.py"
# Read by what the server has imported, when it was imported; PYTHON's by the interpreter.
_READ_AT_START = ("ARROW", "KMP", "LD_", "MALLOC", "MKL", "NUMBA", "OMP", "OPENBLAS", "PYTHON")
_END_S = 60


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def script_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """This process's, in which a script finds the package and the modules of the tests."""
    known = child_environment(**(extra or {}))
    path = [part for part in (known.get("PYTHONPATH"), str(TESTS)) if part]
    return {**known, "PYTHONPATH": os.pathsep.join(path)}


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether a fork of the server comes to the same in this environment as a fresh interpreter."""
    before = _server().env
    changed = {name for name in {*env, *before} if env.get(name) != before.get(name)}
    return not any(name.startswith(_READ_AT_START) for name in changed)


def run_forked(
    path: Path,
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    shm_bytes: int | None,
    timeout_s: float,
) -> Ended:
    """Run the script at ``path``; what it started and left running is killed with it."""
    request = {
        "path": str(path),
        "arguments": list(arguments),
        "directory": os.getcwd(),  # noqa: PTH109
        "env": dict(env),
        "shm_bytes": shm_bytes,
    }
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        status = _server().run(request, (out.fileno(), err.fileno()), timeout_s)
        for file in (out, err):
            file.seek(0)
        return Ended(status, out.read(), err.read())


@functools.cache
def _server() -> ScriptServer:
    return ScriptServer(script_environment({}))


class ScriptServer:
    """The process, and the socket to it."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=env,
                start_new_session=True,
            )
        atexit.register(self.close)

    def run(
        self, request: Mapping[str, object], descriptors: Sequence[int], timeout_s: float
    ) -> int:
        """The exit status of a script; TimeoutExpired once it has been killed."""
        self._link.settimeout(_END_S)
        socket.send_fds(self._link, [json.dumps(request).encode()], descriptors)
        pid = self._answer()
        try:
            self._link.settimeout(timeout_s)
            status = self._answer()
        except BaseException as error:
            _kill_session(pid)
            self._link.settimeout(_END_S)
            self._answer()  # what comes next answers the next request
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(str(request["path"]), timeout_s) from None
            raise
        _kill_session(pid)
        return status

    def close(self) -> None:
        """It ends when nobody can ask it any more."""
        self._link.close()
        self._process.wait()

    def _answer(self) -> int:
        told = self._link.recv(64)
        assert told, f"the script server ended with {self._process.wait()}"
        return int(told)


def _kill_session(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
