from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import DiskRefusedError
from overspill.linux.mounts import free_disk_bytes
from overspill.storage.open_files import _WRITERS, close_file, close_in_children
from overspill.storage.workspace import leave_runs
from overspill.tensors import spill
from spilling import open_descriptors, spill_dir

__all__ = ["spill_dir"]


class Child:
    """A process that another thread forks, which lives until the test ends, as a worker does."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self._told, self._tells = os.pipe()
        self._wakes, self._sleeps = os.pipe()
        self._pipes = [self._told, self._tells, self._wakes, self._sleeps]

    def fork_in_a_thread(self) -> None:
        thread = threading.Thread(target=self._fork)
        thread.start()
        thread.join()
        assert os.read(self._told, 1) == b"."  # it has let go of what it must

    def _fork(self) -> None:
        pid = os.fork()
        if pid == 0:
            held = [one for one in open_descriptors() if ".bin" in one]
            os.write(self._tells, b"!" if held else b".")
            os.close(self._sleeps)
            os.read(self._wakes, 1)
            os._exit(0)
        self.pids.append(pid)

    def end(self) -> None:
        while self._pipes:
            os.close(self._pipes.pop())
        while self.pids:
            os.waitpid(self.pids.pop(), 0)


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.end()


def test_a_child_forked_during_a_spill_does_not_keep_the_file(
    child: Child, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = spill._write

    def writing(tensor: torch.Tensor, file: spill.SpillFile) -> None:
        child.fork_in_a_thread()
        real(tensor, file)

    monkeypatch.setattr(spill, "_write", writing)
    tensor = ov.spill_tensor_to_disk(torch.arange(1000), required=True)
    assert child.pids and int(tensor.sum()) == 499500
    assert _WRITERS == {}


@requires("loop_device")
def test_a_spill_that_failed_leaves_no_block_taken_while_the_child_lives(
    loop_disk: Callable[[int], Path], child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_tensor: torch.Tensor, file: spill.SpillFile) -> None:
        child.fork_in_a_thread()
        raise DiskRefusedError("the disk failed", path=file.path)

    monkeypatch.setattr(spill, "_write", failing)
    with ov.settings(spill_dir=loop_disk(32 << 20), min_bytes=1):
        place = ov.prepare_spill_dir()
        assert place is not None
        free = free_disk_bytes(place)
        assert ov.spill_tensor_to_disk(torch.zeros(8 << 20, dtype=torch.uint8)) is None
        assert free - free_disk_bytes(place) < 1 << 20
        leave_runs()


def test_the_thread_that_forks_may_go_on_with_its_own_file(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    close_in_children(fd)
    pid = os.fork()
    if pid == 0:
        os._exit(os.write(fd, b"abc"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    close_file(fd)
    assert (tmp_path / "file").read_bytes() == b"abc" and _WRITERS == {}


def test_a_number_that_was_closed_is_not_closed_again(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    thread = threading.Thread(target=close_in_children, args=(fd,))
    thread.start()
    thread.join()
    close_file(fd)
    with (tmp_path / "other").open("wb") as other:  # takes the number
        assert other.fileno() == fd
        pid = os.fork()
        if pid == 0:
            os._exit(0 if os.fstat(fd).st_size == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
