"""Loaders over disk-backed tensors for a long time: memory stays flat, and nothing hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import receivers
import torch
import torch.multiprocessing as mp

import overspill as ov

MIB = 1 << 20
SCRIPT = """
import json, os, sys
from multiprocessing.reduction import ForkingPickler
import torch
from torch.utils.data import DataLoader, Dataset
import overspill as ov
from overspill.linux.processes import process_memory

class Rows(Dataset):
    def __init__(self, tensors):
        self.tensors, self.made = tensors, 0
    def __len__(self):
        return 8
    def __getitem__(self, index):
        large, *small = self.tensors
        rows = torch.arange(index, 1 << 20, 4099)
        self.made += 1
        anon = process_memory().anon_bytes if self.made % 10 == 0 else 0
        return large[rows].sum(0), small[index].sum(), os.getpid(), anon

def shm_used():
    held = os.statvfs("/dev/shm")
    return (held.f_blocks - held.f_bfree) * held.f_frsize

if __name__ == "__main__":
    torch.set_num_threads(1)
    method = sys.argv[1]
    large = ov.allocate_disk_backed((1 << 20, 64), torch.float32, required=True)
    arena = ov.spill_tensor_to_disk(torch.arange(200_000), required=True)
    # Many small ones over one file: views, one mapping, a hundred bytes or two each.
    rows = Rows([large, *arena.view(100, -1)])
    payload = len(ForkingPickler.dumps(rows))
    wanted = int(arena[: 8 * 2000].sum())
    ov.spill_batches()
    before, epochs_done, batches, seen = shm_used(), 0, 0, {}
    # Forked ones anew for each of 25 epochs; spawned ones, seconds each, go through them all.
    anew = 25 if method == "fork" else 0
    for persistent, epochs in ((False, anew), (True, 200 - anew)):
        loader = DataLoader(
            rows, batch_size=None, num_workers=4, multiprocessing_context=method,
            persistent_workers=persistent, timeout=60,
        )
        for epoch in range(epochs):
            total = 0
            for batch in loader:
                total += int(batch[1])
                batches += 1
                if persistent and batch[3]:
                    seen.setdefault(batch[2], []).append(batch[3])
            assert total == wanted
            epochs_done += 1
    del batch
    grown = shm_used() - before
    print(json.dumps({
        "payload": payload, "epochs": epochs_done, "batches": batches, "shm": grown,
        "anon": [*seen.values()],
    }))
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    names = {"OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
    return {"OVERSPILL_DIR": str(tmp_path / "spill"), **names}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_hundred_epochs_by_four_workers_end_and_keep_memory_flat(
    method: str, run_python: Callable[..., Any], env: dict[str, str]
) -> None:
    result = run_python(SCRIPT, arguments=[method], env=env, timeout_s=240)
    told = json.loads(result.check().stdout)
    assert (told["epochs"], told["batches"]) == (200, 1600)
    assert told["payload"] < 64 << 10  # 256 MiB and a hundred small tensors
    assert told["shm"] < 1 * MIB
    assert len(told["anon"]) == 4
    for measured in told["anon"]:
        assert len(measured) >= 30
        assert measured[-1] - measured[len(measured) // 4] < 8 * MIB, measured


def test_a_fork_while_threads_spill_gives_a_result(spill_dir: Path) -> None:
    stop, spilled = threading.Event(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            tensor = ov.spill_tensor_to_disk(torch.ones(1000), required=True)
            assert ov.is_disk_backed(ov.handle(tensor).open())
            ov.discard(tensor)
            spilled.set()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    context = mp.get_context("fork")
    try:
        assert spilled.wait(60)
        for _ in range(10):
            answers = context.SimpleQueue()
            child = context.Process(target=receivers.produce, args=(500, answers))
            child.start()
            child.join(120)
            assert child.exitcode == 0, "a child that was forked among locks hangs"
            tensor, handle = answers.get()
            assert torch.equal(handle.open(), torch.arange(500))
            ov.discard(tensor)
            child.close()
            answers.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_tens_of_thousands_of_small_tensors_are_one_mapping(spill_dir: Path) -> None:
    arena = ov.spill_tensor_to_disk(torch.arange(70_000 * 4), required=True)
    path = arena.untyped_storage().filename
    small = list(arena.view(70_000, 4))  # more than vm.max_map_count allows mappings
    context = mp.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=receivers.count, args=(queue, answers, 64))
    child.start()
    queue.put(small)
    total, descriptors = answers.get(timeout=240)
    child.join(60)
    assert (child.exitcode, total) == (0, 4 * sum(range(70_000)))
    assert descriptors < 64
    assert receivers.mappings_of(path) == 1
    child.close()
    for one in (queue, answers):
        one.close()
        one.join_thread()
