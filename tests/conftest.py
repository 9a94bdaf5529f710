"""Fixtures for every test: the leak check, memory groups, small disks, fresh interpreters."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from capabilities import demand
from confined import PythonResult, run_script
from leaks import holdings, isolate_shared_memory, left_behind
from overspill.linux.confine import MemoryGroup
from overspill.linux.mounts import read_mounts

_FAILED = pytest.StashKey[bool]()


# Workers that run side by side have it set, and output that is piped would be wrapped all the same.
os.environ.pop("COLUMNS", None)


def pytest_configure(config: pytest.Config) -> None:
    isolate_shared_memory()
    _take_own_temporary_directory(config)
    # A shell starts what it puts in the background with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A test asserts no time: an example takes as long as its neighbours let it.
    hypothesis.settings.register_profile("overspill", deadline=None)
    hypothesis.settings.load_profile("overspill")
    config.addinivalue_line(
        "markers", "requires(*names): capabilities of the machine without which the test skips"
    )


def _take_own_temporary_directory(config: pytest.Config) -> None:
    # torch's workers that are killed leave their sockets, PyG its generated code: in here.
    # The name is short: a socket's path may have 107 bytes.
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None:
        place = tempfile.mkdtemp(prefix="ov-test-")
    else:  # one of several pytest processes: within the directory of the one that started it
        place = f"{tempfile.gettempdir()}/{worker}"
        Path(place).mkdir(mode=0o700)
    # After multiprocessing's own clean-up (-100), which wants its sockets still to be there.
    remove = functools.partial(shutil.rmtree, place, ignore_errors=True)
    multiprocessing.util.Finalize(None, remove, exitpriority=-200)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("TMPDIR", place)
    patch.setattr(tempfile, "tempdir", None)


def pytest_collection_finish() -> None:
    # Thousands of modules and tests that stay for good: a collection of garbage took half a second
    # to look at them, and tests that count what is left ask for one.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        for name in mark.args:
            demand(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed or report.skipped:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(autouse=True, scope="session")
def _standing_children() -> None:
    # Otherwise the first test that spawns would seem to leave it behind.
    multiprocessing.resource_tracker.ensure_running()
    # As where a script imports torch: its forkserver has imported the script.
    multiprocessing.set_forkserver_preload(["torch"])


@pytest.fixture(autouse=True)
def nothing_left_behind(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    _standing_children: None,
) -> Iterator[None]:
    """Fail a test that leaves a descriptor, a mapping, a /dev/shm name, a child or a thread."""
    base = tmp_path_factory.getbasetemp()
    before = holdings(base)
    yield
    # A failed test's traceback keeps its variables alive: its own error is the one to read.
    if request.node.stash.get(_FAILED, False):
        return
    request.node.funcargs.clear()  # fixtures' values would outlive this check
    found = left_behind(before, base)
    if found:
        pytest.fail("the test left behind:\n  " + "\n  ".join(found), pytrace=False)


@pytest.fixture
def memory_group() -> Iterator[Callable[[int], MemoryGroup]]:
    """``memory_group(limit_bytes)``: a group with a hard limit, removed after the test."""
    demand("memory_cgroup")
    made: list[MemoryGroup] = []

    def make(limit_bytes: int) -> MemoryGroup:
        made.append(MemoryGroup.create(limit_bytes, name_hint="overspill-test"))
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """``loop_disk(nbytes)``: the root of a new ext4 of this size, unmounted after the test."""
    demand("loop_device")
    points: list[Path] = []

    def make(nbytes: int) -> Path:
        image = tmp_path / f"disk_{len(points)}.img"
        point = tmp_path / f"disk_{len(points)}"
        image.touch()
        os.truncate(image, nbytes)
        point.mkdir()
        # No reserve for root: a test that fills the disk runs as root and must meet the end.
        for argv in (
            ["mkfs.ext4", "-q", "-F", "-m", "0", str(image)],
            ["mount", "-o", "loop", str(image), str(point)],
        ):
            subprocess.run(argv, check=True, capture_output=True)
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run(["umount", str(point)], check=True, capture_output=True)
        (point.parent / f"{point.name}.img").unlink()
    assert not [mount for mount in read_mounts() if mount.point.startswith(f"{tmp_path}/")]


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """``memory_disk(kind="tmpfs", nbytes=...)``: a file system in memory, unmounted after."""
    demand("private_mount")
    points: list[Path] = []

    def make(kind: str = "tmpfs", nbytes: int = 8 << 20) -> Path:
        point = tmp_path / f"{kind}_{len(points)}"
        point.mkdir()
        size = ["-o", f"size={nbytes}"] if kind == "tmpfs" else []
        subprocess.run(["mount", "-t", kind, *size, kind, str(point)], check=True)
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run(["umount", str(point)], check=True, capture_output=True)


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., PythonResult]:
    """``run_python(script, *, limit_bytes=None, shm_bytes=None, env=None, arguments=(), ...)``.

    Runs a script as `confined.run_script` does, optionally under a hard memory limit or with a
    small /dev/shm, and gives returncode, stdout, stderr, peaks and kills.
    """

    def run(script: str, **options: Any) -> PythonResult:
        if options.get("limit_bytes") is not None:
            demand("memory_cgroup")
        if options.get("shm_bytes") is not None:
            demand("private_mount")
        return run_script(script, tmp_path, **options)

    return run


@pytest.fixture
def private_shm(run_python: Callable[..., PythonResult]) -> Callable[..., Any]:
    """``private_shm(nbytes)(script, ...)``: run_python with a /dev/shm of its own, of this size."""

    def sized(nbytes: int) -> Callable[..., PythonResult]:
        return lambda script, **options: run_python(script, shm_bytes=nbytes, **options)

    return sized
