"""Runs across processes: who keeps a file alive, and what is left when somebody is killed."""

from __future__ import annotations

import multiprocessing.forkserver
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import receivers
import torch
import torch.multiprocessing as mp
from test_pickling import METHODS, WAIT_S, close

import overspill as ov
from overspill.errors import StaleFileError
from overspill.settings import child_environment
from overspill.storage.leases import reclaim_dead_runs
from overspill.storage.workspace import leave_runs
from spilling import spill_files

# Spills, says what, forks a child that keeps the mapping, and waits to be killed.
OWNER = """
import os, sys, torch
import overspill as ov

def say(*words):
    # In one write, which the two processes' outputs cannot cut, also where Python does not buffer.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

ov.prepare_spill_dir()
tensor = ov.spill_tensor_to_disk(torch.arange(1000), required=True)
if len(sys.argv) > 1 and os.fork() == 0:
    say("child", os.getpid())
    sys.stdin.readline()
    say("child", int(tensor.sum()))
    os._exit(0)
say("file", tensor.untyped_storage().filename)
sys.stdin.read()
"""


def start(script: str, place: Path, *arguments: str) -> subprocess.Popen[str]:
    env = child_environment(OVERSPILL_DIR=str(place), OVERSPILL_MIN_BYTES="1", OVERSPILL_RUN="")
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env)


def told(child: subprocess.Popen[str]) -> tuple[str, str]:
    assert child.stdout is not None
    name, value = child.stdout.readline().split()
    return name, value


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        stream.close()


@pytest.fixture
def fresh_forkserver() -> None:
    """A forkserver hands down the environment that it was started with."""
    multiprocessing.forkserver._forkserver._stop()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("fresh_forkserver")
def test_a_producer_may_exit_before_its_consumer_maps(method: str, spill_dir: Path) -> None:
    ov.prepare_spill_dir()
    context = mp.get_context(method)
    answers = context.Queue()
    child = context.Process(target=receivers.produce, args=(500, answers))
    child.start()
    tensor, handle = answers.get(timeout=WAIT_S)
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert reclaim_dead_runs(spill_dir) == []
    del tensor
    assert torch.equal(handle.open(), torch.arange(500))
    assert len({path.parent for path in spill_files(spill_dir)}) == 1  # all in the parent's run
    close(answers)


def test_producers_that_exit_one_after_the_other_and_workers_that_sample(spill_dir: Path) -> None:
    ov.prepare_spill_dir()
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        table = manager.dict()
        for name, values in (("edges", 300), ("nodes", 200)):
            child = context.Process(target=receivers.produce_into, args=(table, name, values))
            child.start()
            child.join(WAIT_S)
            assert child.exitcode == 0
        held = {name: table[name] for name in ("edges", "nodes")}
    files = spill_files(spill_dir)
    assert sorted(one.untyped_storage().filename for one in held.values()) == [
        str(path) for path in files
    ]
    answers = context.Queue()
    workers = []
    for _ in range(2):
        queue = context.Queue()
        worker = context.Process(target=receivers.answer, args=(queue, answers))
        worker.start()
        queue.put(list(held.values()))
        workers.append((worker, queue))
    for _ in workers:
        kind, got, _maps = answers.get(timeout=WAIT_S)
        assert kind == "got"
        assert [one["shape"] for one in got] == [(300,), (200,)]
        assert {one["filename"] for one in got} == {str(path) for path in files}
    for worker, queue in workers:
        worker.join(WAIT_S)
        close(queue)
    close(answers)
    assert spill_files(spill_dir) == files


def test_a_forkserver_that_runs_already_joins_through_the_handle(spill_dir: Path) -> None:
    context = mp.get_context("forkserver")
    early = context.Process(target=receivers.first_of, args=(torch.arange(3),))
    early.start()
    early.join(WAIT_S)
    queue, answers = context.Queue(), context.Queue()
    late = context.Process(target=receivers.echo, args=(queue, answers))
    late.start()
    queue.put([ov.spill_tensor_to_disk(torch.arange(10), required=True)])
    answers.get(timeout=WAIT_S)
    leave_runs()
    assert reclaim_dead_runs(spill_dir) == []  # the child holds the run now
    queue.put(None)
    late.join(WAIT_S)
    assert len(reclaim_dead_runs(spill_dir)) == 1
    close(queue, answers)


def test_sigkill_of_the_owner_leaves_files_for_the_next_run_to_remove(spill_dir: Path) -> None:
    killed, alive = start(OWNER, spill_dir), start(OWNER, spill_dir)
    try:
        (_, gone), (_, kept) = told(killed), told(alive)
        assert Path(gone).parent != Path(kept).parent  # two runs side by side
        assert Path(gone).exists() and Path(kept).exists()
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
        assert Path(gone).exists()
        ov.prepare_spill_dir()
        assert not Path(gone).parent.exists()
        assert Path(kept).exists()
        with pytest.raises(StaleFileError):
            ov.load_spilled_tensor(gone, torch.int64, (1000,))
        assert int(ov.load_spilled_tensor(kept, torch.int64, (1000,)).sum()) == 499500
    finally:
        end(killed)
        end(alive)


def test_a_forked_child_keeps_the_run_of_its_killed_parent(spill_dir: Path) -> None:
    owner = start(OWNER, spill_dir, "fork")
    try:
        lines = dict(told(owner) for _ in range(2))
        owner.kill()
        owner.wait()
        ov.prepare_spill_dir()
        assert Path(lines["file"]).exists()
        assert owner.stdin is not None
        owner.stdin.write("go\n")
        owner.stdin.flush()
        assert told(owner) == ("child", "499500")
        assert owner.stdout is not None and owner.stdout.read() == ""  # the child has ended
        assert len(reclaim_dead_runs(spill_dir)) == 1
    finally:
        end(owner)


def test_loading_a_file_of_a_run_holds_the_run(spill_dir: Path) -> None:
    owner = start(OWNER, spill_dir)
    try:
        _, path = told(owner)
        loaded = ov.load_spilled_tensor(path, torch.int64, (1000,))
    finally:
        end(owner)
    assert reclaim_dead_runs(spill_dir) == []
    assert int(loaded.sum()) == 499500
    leave_runs()
    assert len(reclaim_dead_runs(spill_dir)) == 1
    assert int(loaded.sum()) == 499500  # unlinked, still mapped


def test_preparing_twice_is_once(spill_dir: Path) -> None:
    first = ov.prepare_spill_dir()
    assert first == ov.prepare_spill_dir() and first is not None
    assert first.parent == spill_dir


def test_thousands_of_tensors_under_a_low_limit_on_descriptors(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    script = """
    import resource, sys
    import torch, torch.multiprocessing as mp
    import overspill as ov
    import receivers_of_processes as receivers

    if __name__ == "__main__":
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        ov.prepare_spill_dir()
        kept = [
            ov.allocate_disk_backed((1,), torch.int64, required=True).fill_(n)
            for n in range(5000)
        ]
        context = mp.get_context("spawn")
        queue, answers = context.Queue(), context.Queue()
        child = context.Process(target=receivers.count, args=(queue, answers, 64))
        child.start()
        queue.put(kept)
        total, descriptors = answers.get(timeout=240)
        child.join()
        print(total == sum(range(5000)), descriptors < 64, child.exitcode)
    """
    source = Path(receivers.__file__).read_text()
    (tmp_path / "receivers_of_processes.py").write_text(source)
    env = {"OVERSPILL_DIR": str(tmp_path / "spill"), "OVERSPILL_MIN_BYTES": "1"}
    result = run_python(script, env={**env, "OVERSPILL_RUN": ""}).check()
    assert result.stdout.split() == ["True", "True", "0"]


def test_a_handle_outlives_nothing(spill_dir: Path) -> None:
    handle = pickle.dumps(ov.handle(ov.spill_tensor_to_disk(torch.arange(10), required=True)))
    leave_runs()
    assert len(reclaim_dead_runs(spill_dir)) == 1
    with pytest.raises(StaleFileError, match="is gone"):
        pickle.loads(handle).open()


@pytest.mark.parametrize("order", ["torch, overspill", "overspill, torch"])
def test_importing_registers_light(order: str) -> None:
    script = (
        f"import sys, threading\nimport {order}\nfrom multiprocessing.reduction import *\n"
        "overspill.is_disk_backed(None)\n"
        "reducer = ForkingPickler._extra_reducers[torch.Tensor]\n"
        "print(type(reducer).__module__, 'numba' in sys.modules, 'pyarrow' in sys.modules,\n"
        "      threading.active_count())\n"
    )
    env = child_environment()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["overspill.tensors.pickling", "False", "False", "1"], done.stderr
