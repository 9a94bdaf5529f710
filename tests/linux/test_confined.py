"""The promises of the fixtures: missing capabilities, hanging runs, a small shared memory."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capabilities
from capabilities import demand, requires
from confined import make_cold, run_script
from overspill.linux.mapping import map_file


def test_a_missing_capability_skips_and_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(capabilities._PROBES, "nothing", lambda: "there is none")
    monkeypatch.delenv(capabilities.REQUIRED_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is none"):
        demand("nothing")
    monkeypatch.setenv(capabilities.REQUIRED_VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="there is none"):
        demand("nothing")
    capabilities.missing.cache_clear()


@pytest.fixture(params=[True, False], ids=["fresh", "forked"])
def fresh(request: pytest.FixtureRequest) -> bool:
    """Whether the script has an interpreter of its own."""
    return bool(request.param)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or goes: what was killed takes its time on a busy machine."""
    try:
        end = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    try:
        return bool(waiting.poll(60_000))
    finally:
        os.close(end)


def test_a_run_that_hangs_is_killed_with_all_it_started(tmp_path: Path, fresh: bool) -> None:
    script = """
        import os, signal, sys
        if os.fork() == 0:
            open(sys.argv[1], "w").write(str(os.getpid()))
        while True: signal.pause()
    """
    pids = tmp_path / "pids"
    for timeout_s in (2, 60):  # the second where the machine was too busy for the first
        with pytest.raises(subprocess.TimeoutExpired):
            run_script(script, tmp_path, arguments=[pids], timeout_s=timeout_s, fresh=fresh)
        if pids.exists():
            break
    assert has_ended(int(pids.read_text()))
    assert run_script("print(1)", tmp_path, fresh=fresh).check().stdout == "1\n"


def test_a_run_gives_its_outcome(run_python: Callable[..., Any], fresh: bool) -> None:
    script = """
        import atexit, os, sys, threading
        atexit.register(print, "last")
        print(sys.argv[1:], os.environ["SAID"], __name__, os.path.basename(__file__))
        sys.stdin.read()
        threading.Timer(0.01, print, ["before"]).start()
        sys.exit("told")
    """
    result = run_python(script, arguments=[1, "b"], env={"SAID": "so"}, fresh=fresh)
    assert (result.returncode, result.stderr) == (1, "told\n")
    first, *ending = result.stdout.splitlines()
    assert first == "['1', 'b'] so __main__ script_0.py" and ending == ["before", "last"]
    assert "SAID" not in os.environ
    with pytest.raises(AssertionError, match="told"):
        result.check()


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit()", 0),
        ("os._exit(4)", 4),
        ("{}['a']", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_a_run_ends_as_its_script_does(
    run_python: Callable[..., Any], fresh: bool, ending: str, status: int
) -> None:
    result = run_python(f"import os, signal, sys\nheld = 1\n{ending}", fresh=fresh)
    assert result.returncode == status
    if status == 1:
        assert result.stderr.splitlines()[0] == "Traceback (most recent call last):"
        assert "script_server" not in result.stderr and "KeyError: 'a'" in result.stderr


def test_a_forked_run_knows_nothing_of_the_one_before(run_python: Callable[..., Any]) -> None:
    script = """
        import os, sys
        assert "held" not in globals() and "overspill" not in sys.modules
        assert os.getsid(0) == os.getpid() and "torch" in sys.modules
        import overspill
        held = os.environ["HELD"] = "1"
        print("new")
    """
    for _ in range(2):
        assert run_python(script).check().stdout == "new\n"


def test_what_is_read_at_a_start_wants_a_fresh_interpreter(run_python: Callable[..., Any]) -> None:
    script = "import sys; print('torch' in sys.modules)"
    assert run_python(script, env={"OMP_NUM_THREADS": "1"}).check().stdout == "False\n"
    assert run_python(script, env={"OVERSPILL_DIR": ""}).check().stdout == "True\n"


@requires("memory_cgroup")
def test_peaks_are_those_of_its_group(run_python: Callable[..., Any]) -> None:
    script = "held = bytearray(b'x' * (40 << 20)); import sys; sys.stdout.write('held')"
    result = run_python(script, limit_bytes=128 << 20).check()
    assert result.peaks.samples >= 1 and result.kills == 0
    assert run_python("", fresh=True).check().peaks.samples == 0


@requires("private_mount")
def test_a_small_shared_memory_is_the_runs_alone(
    private_shm: Callable[..., Any], fresh: bool
) -> None:
    script = """
        import errno, os
        with open("/dev/shm/filled", "wb") as filled:
            try:
                filled.write(bytes(16 << 20))
            except OSError as error:
                print(errno.errorcode[error.errno])
    """
    assert private_shm(8 << 20)(script, fresh=fresh).check().stdout == "ENOSPC\n"
    assert not Path("/dev/shm/filled").exists()


def test_a_file_that_something_maps_does_not_pass_as_cold(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 4096)
    mapping = map_file(path, nbytes=4096)
    assert np.asarray(mapping)[0] == ord("x")  # into the page table
    with pytest.raises(AssertionError, match="keeps pages"):
        make_cold(path)
