"""The promises of the fixtures: missing capabilities, hanging runs, a small shared memory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
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


def test_a_run_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    script = """
        import os, sys, time
        if os.fork() == 0:
            open(sys.argv[1], "w").write(str(os.getpid()))
        while True: time.sleep(1)
    """
    pids = tmp_path / "pids"
    with pytest.raises(subprocess.TimeoutExpired):
        run_script(script, tmp_path, arguments=[pids], timeout_s=5)
    child = int(pids.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_run_gives_its_outcome_and_peaks(run_python: Callable[..., Any]) -> None:
    script = """
        import os, sys
        held = bytearray(os.urandom(1 << 20)) * 40
        print(sys.argv[1:], os.environ["SAID"])
        sys.stdin.read()
        sys.exit("told")
    """
    result = run_python(script, arguments=[1, "b"], env={"SAID": "so"})
    assert (result.returncode, result.stdout, result.stderr) == (1, "['1', 'b'] so\n", "told\n")
    assert result.peaks.samples >= 1
    with pytest.raises(AssertionError, match="told"):
        result.check()


@requires("private_mount")
def test_a_small_shared_memory_is_the_runs_alone(private_shm: Callable[..., Any]) -> None:
    script = """
        import errno, os
        with open("/dev/shm/filled", "wb") as filled:
            try:
                filled.write(bytes(16 << 20))
            except OSError as error:
                print(errno.errorcode[error.errno])
    """
    assert private_shm(8 << 20)(script).check().stdout == "ENOSPC\n"
    assert not Path("/dev/shm/filled").exists()


def test_a_file_that_something_maps_does_not_pass_as_cold(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 4096)
    mapping = map_file(path, nbytes=4096)
    assert np.asarray(mapping)[0] == ord("x")  # into the page table
    with pytest.raises(AssertionError, match="keeps pages"):
        make_cold(path)
