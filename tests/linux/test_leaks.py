"""The leak check itself: it must see each kind, and not cry at what is no leak."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import leaks
from capabilities import requires
from leaks import holdings, left_behind
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.mounts import read_mounts
from overspill.settings import child_environment

TESTS = Path(__file__).resolve().parents[1]


def test_a_descriptor_left_open_is_seen(tmp_path: Path) -> None:
    before = holdings(tmp_path)
    fd = os.open(tmp_path / "left", os.O_CREAT | os.O_RDWR)
    found = left_behind(before, tmp_path)
    os.close(fd)
    assert len(found) == 1
    assert str(tmp_path / "left") in found[0]
    assert left_behind(before, tmp_path) == []


def test_a_mapping_left_is_seen_and_a_cycle_is_collected_first(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(b"x" * 4096)
    before = holdings(tmp_path)
    kept = map_file(path, nbytes=4096)
    assert [one for one in left_behind(before, tmp_path) if "mapped" in one]
    cycle: list[object] = [kept]
    cycle.append(cycle)
    del kept, cycle
    assert left_behind(before, tmp_path) == []


def test_a_name_in_shared_memory_is_seen_unless_a_stranger_may_own_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "_alone", False)
    before = holdings(tmp_path)
    # As a child of ours that has ended leaves it: nobody alive can own it.
    orphan = Path(f"/dev/shm/torch_{2**22 - 1}_{os.getpid()}_1")
    mine = Path(f"/dev/shm/overspill_leak_test_{os.getpid()}")
    theirs = Path(f"/dev/shm/torch_1_{os.getpid()}_0")  # process 1 lives, and is no child of ours
    try:
        mine.touch()
        theirs.touch()
        # Held open, so that a run beside this one sees whose it is.
        with orphan.open("w"):
            found = left_behind(before, tmp_path)
        assert [one for one in found if one.startswith("/dev/shm")] == [
            f"/dev/shm name: {one.name}" for one in (mine, orphan)
        ]
    finally:
        mine.unlink()
        theirs.unlink()
        orphan.unlink()


@requires("private_mount")
def test_a_run_has_a_shared_memory_of_its_own() -> None:
    assert leaks._alone
    outside = Path(f"/proc/{os.getppid()}/mountinfo").read_text()
    inside = [mount for mount in read_mounts() if mount.point == "/dev/shm"][-1]
    assert f" 0:{os.minor(inside.device)} " not in outside
    assert inside.kind == "tmpfs"


def test_a_child_and_a_thread_left_running_are_seen(tmp_path: Path) -> None:
    before = holdings(tmp_path)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="overspill-left")
    thread.start()
    found = "\n".join(left_behind(before, tmp_path))
    child.communicate()
    end.set()
    thread.join()
    assert f"children: {child.pid} cat" in found
    assert "threads: overspill-left" in found


@pytest.fixture
def mapped(tmp_path: Path) -> Mapping:
    path = tmp_path / "fixture"
    path.write_bytes(b"y" * 10)
    return map_file(path, nbytes=10)


def test_a_fixture_that_returns_a_mapping_is_no_leak(mapped: Mapping) -> None:
    assert bytes(np.asarray(mapped)) == b"y" * 10


LEAKING = """
import os

def test_leaks(tmp_path):
    os.open(tmp_path / "left", os.O_CREAT | os.O_RDWR)

def test_does_not(tmp_path):
    os.close(os.open(tmp_path / "closed", os.O_CREAT | os.O_RDWR))

def test_fails_by_itself(tmp_path):
    left = os.open(tmp_path / "left too", os.O_CREAT | os.O_RDWR)
    assert left is None
"""


def test_a_leaking_test_fails_and_a_failing_one_keeps_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_leaking.py").write_text(LEAKING)
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rN",
        "--basetemp=base",
    ]
    known = child_environment()
    environment = {**known, "PYTHONPATH": f"{known['PYTHONPATH']}{os.pathsep}{TESTS}"}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("descriptors: ") == 1


def test_a_child_is_known_by_its_number_and_not_by_its_name() -> None:
    one, other = "17 python -m pytest", "17 python -c spawn_main()"
    assert leaks._which_child(one) == leaks._which_child(other)
    assert leaks._which_child(one) != leaks._which_child(one + " (zombie)")
    assert leaks._which_child(one) != leaks._which_child("18 python -m pytest")
