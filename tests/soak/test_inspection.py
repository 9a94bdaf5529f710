"""Each look at the stage finds what it is there to find, and nothing on a stage left in order."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import overspill as ov
from capabilities import requires
from leaks import SHM
from overspill.linux.confine import MemoryGroup
from overspill.storage.manifest import MANIFEST_NAME, UNFINISHED_NAME
from soak import inspection
from soak.inspection import Before, Output, digests_of, inspect, processes_left
from soak.stage import Stage

pytestmark = requires("memory_cgroup", "loop_device")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("built")
    ends = np.random.default_rng(0).integers(0, 50, (2, 400))
    ov.build_dataset(place / "ds", edges=ends, num_nodes=50, node_features={"x": np.ones((50, 3))})
    ov.partition_dataset(place / "ds", 2, out=place / "parts")
    return place


class Look:
    """A stage with a dataset and a partition that are as they should be."""

    def __init__(self, stage: Stage, built: Path) -> None:
        self.stage = stage
        self.before = Before.of(stage)
        self.dataset, self.parts = stage.data / "one", stage.data / "two"
        copy = ["cp", "-r", str(built / "ds"), str(self.dataset)]
        subprocess.run(copy, check=True)
        subprocess.run([*copy[:2], str(built / "parts"), str(self.parts)], check=True)
        self.digests = {"ds": digests_of(built / "ds"), "parts": digests_of(built / "parts")}
        self.outputs = {
            "one": Output("build", "ds", "killed"),
            "two": Output("partition", "parts", "done"),
            "gone": Output("build", "ds", "killed"),
        }

    def __call__(self, *, killed: set[int] | None = None) -> list[str]:
        return inspect(self.stage, self.before, self.outputs, self.digests, killed or set())

    def finds(self, *words: str) -> None:
        found = self()
        assert len(found) == 1 and all(word in found[0] for word in words), found


@pytest.fixture
def look(
    tmp_path: Path,
    loop_disk: Callable[[int], Path],
    memory_group: Callable[[int], MemoryGroup],
    built: Path,
) -> Iterator[Look]:
    stage = Stage(tmp_path, loop_disk(16 << 20), memory_group(64 << 20))
    (stage.disk / "lost+found").rmdir()
    for path in (stage.spill, stage.data, stage.packs, stage.tmp):
        path.mkdir()
    yield Look(stage, built)


def test_a_stage_in_order_shows_nothing(look: Look) -> None:
    assert look() == [] and processes_left(look.stage) == []
    states = {name: output.state for name, output in look.outputs.items()}
    assert states == {"one": "finished", "two": "finished", "gone": "absent"}


def test_files_that_belong_to_nothing(look: Look) -> None:
    for path in (look.stage.disk / "stray", look.stage.data / "stray"):
        path.touch()
        look.finds(str(path), "belongs to nothing")
        path.unlink()
    (look.stage.tmp / "overspill-trial-1").touch()
    look.finds("overspill-trial-1", "temporary")


def test_a_file_that_a_dataset_does_not_name(look: Look) -> None:
    (look.parts / "scratch.bin").touch()
    look.finds("scratch.bin", "does not name")


def test_the_mark_of_a_build_stays_only_where_it_was_killed(look: Look) -> None:
    (look.dataset / UNFINISHED_NAME).touch()
    assert look() == []
    look.outputs["one"].told = "done"
    look.finds(UNFINISHED_NAME, "does not name")


@pytest.mark.parametrize("which", ["dataset", "parts"])
def test_an_array_that_changed(which: str, look: Look) -> None:
    path = max(getattr(look, which).rglob("*"), key=lambda one: one.stat().st_size)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    look.finds(path.name, "does not verify")


def test_a_dataset_that_verifies_and_is_another_one(look: Look) -> None:
    look.digests["ds"] = dict(sorted(look.digests["ds"].items())[1:])
    look.finds("differs from a ds built in peace")


def test_unfinished_is_told_and_done_is_not_unfinished(look: Look) -> None:
    (look.dataset / MANIFEST_NAME).unlink()
    assert look() == [] and look.outputs["one"].state == "unfinished"
    look.outputs["one"].told = "done"
    look.finds("said that it was done")
    look.outputs["gone"].told = "done"
    assert len(look()) == 2


def test_an_unfinished_build_that_opens_as_data(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    (look.dataset / MANIFEST_NAME).unlink()
    monkeypatch.setattr(inspection.ov, "open_dataset", lambda path: None)
    look.finds("opened as data")


def test_a_run_that_nobody_cleaned(look: Look) -> None:
    (look.stage.spill / ("run-" + "a" * 32)).mkdir()
    look.finds("run-aaaa", "was not cleaned")


@pytest.mark.parametrize("name", ["torch_PID_1_0", "sem.G2AtWl", "sem.mp-ab1_x"])
def test_shared_memory_that_has_a_name(name: str, look: Look) -> None:
    path = SHM / name.replace("PID", str(os.getpid()))
    path.touch()
    try:
        look.finds(path.name, "left in shared memory")
        # Torch, or Python, makes the name and takes it away in two calls: a kill between them is
        # no leak of anybody else's.
        assert look(killed={os.getpid()}) == [] and not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_a_file_without_a_name_that_takes_the_disk(look: Look) -> None:
    fd = os.open(look.stage.disk, os.O_TMPFILE | os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, 4 << 20)
        told = "".join(look())
        assert "taken by no file" in told and f"the supervisor holds {fd} " in told
    finally:
        os.close(fd)
    assert look() == []


def confined(look: Look, script: str) -> subprocess.Popen[str]:
    argv = look.stage.group.command(["python3", "-c", script])
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_memory_and_processes_that_stay(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_END_MS", 1)
    held = confined(look, "x = b'1' * (8 << 20); print(len(x), flush=True); input()")
    with held:
        assert held.stdout is not None and held.stdout.readline()
        (left,) = processes_left(look.stage)
        assert str(held.pid) in left and "outlived" in left
        assert "anonymous memory" in "".join(look())
        held.communicate("\n")
    assert processes_left(look.stage) == [] and look() == []


def test_a_process_that_the_kernel_killed_for_want_of_memory(look: Look) -> None:
    with confined(look, "x = b'1' * (200 << 20)") as greedy, suppress(BrokenPipeError):
        greedy.communicate()
    look.finds("the kernel killed 1")
