"""Processes side by side: views in spawn's arguments, and two runs on one spill directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import receivers
import torch
import torch.multiprocessing as mp
from test_pickling import METHODS, WAIT_S, close

import overspill as ov
from overspill.errors import StaleFileError
from overspill.settings import child_environment
from overspill.storage.leases import reclaim_dead_runs
from spilling import spill_files


class Given:
    """Stands in for a queue: what it gives came in the arguments of the process."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def get(self) -> list[torch.Tensor]:
        return list(self.tensors)


@pytest.mark.parametrize("method", METHODS)
def test_three_views_of_one_tensor_arrive_in_the_arguments_over_one_mapping(
    method: str, spill_dir: Path
) -> None:
    spilled = ov.spill_tensor_to_disk(torch.randn(8, 12), required=True)
    sent = [spilled, spilled[2:5], spilled.t()]
    context = mp.get_context(method)
    answers = context.Queue()
    child = context.Process(target=receivers.answer, args=(Given(*sent), answers))
    child.start()
    kind, told, maps = answers.get(timeout=WAIT_S)
    child.join(WAIT_S)
    assert child.exitcode == 0
    child.close()
    close(answers)
    assert kind == "got"
    for one, tensor in zip(told, sent, strict=True):
        expected = receivers.described(tensor)
        for name in ("shape", "stride", "offset", "dtype", "filename", "bytes"):
            assert one[name] == expected[name]
    assert len({one["base"] for one in told}) == 1
    assert list(maps.values()) == [1]


# Prepares (which cleans up), spills, and in the end reads all that it has spilled; a line in is
# a step forward, a line out says that it was taken.
RUN = """
import sys, torch
import overspill as ov
kept = []
for number, line in enumerate(sys.stdin):
    ov.prepare_spill_dir()
    kept.append(ov.spill_tensor_to_disk(torch.full((1000,), number), required=True))
    for value, tensor in enumerate(kept):
        handle = ov.handle(tensor)
        del tensor
        assert int(handle.open().sum()) == 1000 * value
    print(number, flush=True)
print("finished", len(kept), flush=True)
"""


def test_two_runs_on_one_spill_directory_both_finish(tmp_path: Path) -> None:
    place = tmp_path / "spill"
    env = child_environment(OVERSPILL_DIR=str(place), OVERSPILL_MIN_BYTES="1", OVERSPILL_RUN="")
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", RUN]
    runs = [subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) for _ in range(2)]
    try:
        for step in range(4):  # in turn, so that each starts up while the other lives
            for run in runs:
                assert run.stdin is not None and run.stdout is not None
                run.stdin.write("\n")
                run.stdin.flush()
                assert run.stdout.readline() == f"{step}\n"
            assert reclaim_dead_runs(place) == []
            assert len(spill_files(place)) == 2 * (step + 1)
        assert len(list(place.iterdir())) == 2
        for run in runs:
            assert run.communicate(timeout=WAIT_S)[0] == "finished 4\n"
            assert run.returncode == 0
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    assert len(reclaim_dead_runs(place)) == 2
    assert list(place.iterdir()) == []


def discarding(queue: object, answers: object) -> None:
    """Discard what came, and say what became of it."""
    (tensor,) = queue.get()  # type: ignore[attr-defined]
    answers.put((ov.discard(tensor), int(tensor.sum()), ov.discard(tensor)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
def test_a_consumer_may_discard_what_it_received(method: str, spill_dir: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.arange(100), required=True)
    context = mp.get_context(method)
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=discarding, args=(queue, answers))
    child.start()
    queue.put([spilled])
    assert answers.get(timeout=WAIT_S) == (True, 4950, False)
    child.join(WAIT_S)
    child.close()
    close(queue, answers)
    assert spill_files(spill_dir) == []
    assert int(spilled.sum()) == 4950  # still mapped here
    assert not ov.discard(spilled)
    with pytest.raises(StaleFileError, match="No such file"):
        ov.handle(spilled).open()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("random_access", [False, True])
def test_what_is_preshared_crosses_without_a_copy(
    method: str, random_access: bool, spill_dir: Path
) -> None:
    tensor = ov.allocate_preshared(1000, torch.int64, random_access=random_access).zero_()
    assert ov.is_disk_backed(tensor) is not random_access
    context = mp.get_context(method)
    queue, done = context.Queue(), context.Queue()
    child = context.Process(target=receivers.write_first, args=(queue, done))
    child.start()
    queue.put([tensor])
    done.get(timeout=WAIT_S)
    child.join(WAIT_S)
    child.close()
    close(queue, done)
    assert int(tensor[0]) == 77
