"""Batches larger than /dev/shm, from workers of every kind, and what is left when one is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capabilities import requires

MIB = 1 << 20
SHM_BYTES = 16 * MIB
Runner = Callable[[int], Callable[..., Any]]

# What every script below shares; 8 MiB a sample, 32 MiB a batch, in a /dev/shm of 16 MiB.
DATASETS = """
import os, signal, sys, threading
from pathlib import Path
import overspill as ov
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

ROWS = int(os.environ.get("ROWS", 2 << 20))

class Samples(Dataset):
    def __init__(self, kind="tuple"):
        self.kind = kind
    def __len__(self):
        return 12
    def __getitem__(self, index):
        large = torch.full((ROWS,), float(index))
        large[-1] = index + 1
        if self.kind == "numpy":
            return {"x": large.numpy(), "y": index}
        return large, index

def joined(samples):  # memory of its own, which torch would share only when it sends it
    return torch.cat([large for large, _ in samples]).view(len(samples), -1), 0

def check(large, first):
    assert large.shape == (4, ROWS), large.shape
    for row in range(4):
        assert large[row, 0] == first + row and large[row, -1] == first + row + 1

def names():
    return [name for name in os.listdir("/dev/shm") if not name.startswith("sem.")]

def left():
    # torch's own manager takes its names away after their process has gone, in its own time.
    found, pause = None, threading.Event()
    for _ in range(600):
        found = names()
        if not found or mp.get_sharing_strategy() == "file_descriptor":
            break
        pause.wait(0.05)
    return found

def files():
    return [str(path) for path in Path(os.environ["OVERSPILL_DIR"]).rglob("*.bin")]
"""
STOCK = (
    DATASETS
    + """
def epoch(method, **options):
    seen = 0
    for batch in DataLoader(
        Samples(options.pop("kind", "tuple")), batch_size=4, num_workers=2,
        multiprocessing_context=method, **options
    ):
        large = batch["x"] if isinstance(batch, dict) else batch[0]
        check(large, seen)
        assert not ov.is_disk_backed(large)  # its file has no name
        seen += 4
    assert seen == 12

if __name__ == "__main__":
    method = sys.argv[1]
    if len(sys.argv) > 2:
        ov.spill_batches()
    for strategy in ("file_descriptor", "file_system"):
        mp.set_sharing_strategy(strategy)
        by_name = strategy == "file_system"
        # Of spawned workers one epoch each, of which the other collates: they take seconds.
        if method == "fork" or by_name:
            epoch(method, kind="numpy" if by_name else "tuple")
        if method == "fork" or not by_name:
            epoch(method, collate_fn=joined)
        assert left() == [], left()
        assert files() == [], files()
    print("whole")
"""
)
PYG = (
    DATASETS
    + """
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.loader.utils import index_select

class Graphs(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        edges = torch.tensor([[0, 1], [1, 0]])
        return Data(x=torch.full((ROWS // 64, 64), float(index)), edge_index=edges)

class Filtered(Graphs):
    def __len__(self):
        return 3
    def __getitem__(self, index):
        rows = torch.arange(4 * ROWS // 64)
        return index_select(torch.full((4 * ROWS // 64, 64), float(index)), rows)

def first(samples):
    return samples[0]

def epoch(**options):
    for number, batch in enumerate(GraphLoader(Graphs(), batch_size=4, **options)):
        assert batch.x.shape == (4 * ROWS // 64, 64)
        for graph in range(4):
            assert (batch.x[batch.batch == graph] == 4 * number + graph).all()
        assert batch.edge_index.max() == 3 * (ROWS // 64) + 1
    for index, rows in enumerate(DataLoader(Filtered(), collate_fn=first, **options)):
        assert (rows == index).all() and rows.nbytes == 32 << 20

if __name__ == "__main__":
    method, strategy = sys.argv[1:]
    mp.set_sharing_strategy(strategy)
    with ov.spill_batches():
        epoch(num_workers=2 if method == "fork" else 1, multiprocessing_context=method)
    assert left() == [] and files() == [], (left(), files())
    print("whole")
"""
)
KILLED = (
    DATASETS
    + """
class Killing(Samples):
    def __getitem__(self, index):
        if index == 10:  # whatever its other thread is about with the batch before
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

if __name__ == "__main__":
    method, strategy = sys.argv[1:]
    mp.set_sharing_strategy(strategy)
    ov.spill_batches()
    free = os.statvfs(os.environ["OVERSPILL_DIR"]).f_bfree
    try:
        for batch in DataLoader(Killing(), batch_size=4, num_workers=2,
                                multiprocessing_context=method):
            pass
    except RuntimeError as error:
        print("told" if "worker" in str(error) else repr(error))
    except (OSError, EOFError):
        print("told")  # torch was about to take a descriptor from the one that was killed
    batch = None
    # Every kind of worker is gone now, or ends at once, for its pipes are closed.
    for child in mp.active_children():
        child.join(60)
    assert files() == [], files()
    assert names() == [], names()  # at once, not when torch's manager ends
    held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")}
    assert not [name for name in held if os.environ["OVERSPILL_DIR"] in name and "#" in name]
    print("clean")
"""
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    names = ("OVERSPILL_RUN", "OVERSPILL_SPILL_BATCHES")
    return {"OVERSPILL_DIR": str(tmp_path / "spill"), **dict.fromkeys(names, "")}


@requires("private_mount")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "asked"),
    [("fork", "call"), ("spawn", "call"), ("forkserver", "call"), ("fork", "environment")],
)
def test_a_stock_dataloader_completes_and_leaves_nothing(
    method: str, asked: str, private_shm: Runner, env: dict[str, str], tmp_path: Path
) -> None:
    by_name = asked == "environment"
    result = private_shm(SHM_BYTES)(
        STOCK,
        arguments=[method] if by_name else [method, "call"],
        env={**env, "OVERSPILL_SPILL_BATCHES": "1"} if by_name else env,
    ).check()
    assert result.stdout.strip() == "whole"
    assert list((tmp_path / "spill").rglob("*.bin")) == []


@requires("private_mount")
def test_without_it_the_same_loader_dies(
    private_shm: Runner, env: dict[str, str], tmp_path: Path
) -> None:
    result = private_shm(SHM_BYTES)(STOCK, arguments=["fork"], env=env)
    assert result.returncode != 0 and "whole" not in result.stdout
    assert not (tmp_path / "spill").exists()


@requires("private_mount")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "strategy"),
    [("fork", "file_descriptor"), ("fork", "file_system"), ("spawn", "file_system")],
)
def test_pygs_collate_and_filter_complete(
    method: str, strategy: str, private_shm: Runner, env: dict[str, str]
) -> None:
    result = private_shm(SHM_BYTES)(PYG, arguments=[method, strategy], env=env).check()
    assert result.stdout.strip() == "whole"


@requires("private_mount")
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_killed_in_mid_epoch_leaves_nothing(
    method: str, strategy: str, private_shm: Runner, env: dict[str, str], tmp_path: Path
) -> None:
    result = private_shm(SHM_BYTES)(KILLED, arguments=[method, strategy], env=env).check()
    assert result.stdout.split() == ["told", "clean"]
    assert list((tmp_path / "spill").rglob("*.bin")) == []


TINY = (
    DATASETS
    + """
from overspill.tensors import rooms

class Short(Dataset):  # batches of 12 MiB, and of a few bytes beside them
    def __len__(self):
        return 48
    def __getitem__(self, index):
        if killing and index == 45:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((3 << 18,), float(index)), index

if __name__ == "__main__":
    strategy, killing = sys.argv[1], len(sys.argv) > 2
    mp.set_sharing_strategy(strategy)
    ov.spill_batches()
    # Every worker sees room for its batch, and one of them is faster than the others.
    rooms.free_disk_bytes = lambda path: 16 << 20
    kept = []
    try:
        for large, numbers in DataLoader(Short(), batch_size=4, num_workers=3):
            assert torch.equal(large[:, 0].long(), numbers)
            assert names() == [], names()
            kept.append(large)
    except (RuntimeError, OSError, EOFError):
        assert killing
    for child in mp.active_children():
        child.join(60)
    homes = {os.fstat(one.untyped_storage()._share_fd_cpu_()[0]).st_dev for one in kept}
    assert len(homes) == 2, homes  # some in memory, some in files
    assert names() == [] and files() == []
    kept.clear()
    large = numbers = None
    used = os.statvfs("/dev/shm")
    # A few pages stay for a while: the semaphores of queues.
    print(len(kept), (used.f_blocks - used.f_bfree) * used.f_frsize >> 20)
"""
)


@requires("private_mount")
@pytest.mark.parametrize("killed", [[], ["killed"]], ids=["whole", "killed"])
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_a_lost_race_for_a_tiny_shared_memory_leaves_nothing(
    strategy: str, killed: list[str], private_shm: Runner, env: dict[str, str]
) -> None:
    result = private_shm(16 * MIB)(TINY, arguments=[strategy, *killed], env=env).check()
    assert result.stdout.split() == ["0", "0"]


LIMITED = (
    DATASETS
    + """
class Large(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.full((4 << 18,), float(index))  # 4 MiB

if __name__ == "__main__":
    mp.set_sharing_strategy(sys.argv[1])
    ov.spill_batches()
    kept, told = [], None
    options = dict(num_workers=2, batch_size=None, prefetch_factor=1)
    with ov.settings(shm_reserve_bytes="1GiB", disk_limit_bytes=sys.argv[2]):
        try:
            for batch in DataLoader(Large(), **options):
                kept.append(batch)  # which keeps its file
        except OSError as error:
            told = str(error)
        held = sum(one.nbytes for one in kept)
        print(held <= 24 << 20, told is not None and "OVERSPILL_DISK_LIMIT" in told)
        kept.clear()
        batch = None
        for number, batch in enumerate(DataLoader(Large(), **options)):
            pass
        print(number)
"""
)


@requires("private_mount")
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_the_disk_limit_holds_for_the_batches_of_all_workers_together(
    strategy: str, private_shm: Runner, env: dict[str, str]
) -> None:
    result = private_shm(SHM_BYTES)(LIMITED, arguments=[strategy, "26MiB"], env=env).check()
    # Of twelve batches there is room for six, wherever they are. Nothing stays on the account.
    assert result.stdout.splitlines() == ["True True", "11"]


@requires("private_mount")
def test_without_a_spill_directory_the_error_says_what_to_set(
    private_shm: Runner, env: dict[str, str]
) -> None:
    script = (
        DATASETS
        + """
if __name__ == "__main__":
    try:
        ov.spill_batches()
    except OSError as error:
        print("call:", error)
    os.environ["OVERSPILL_SPILL_BATCHES"] = "1"
    try:
        list(DataLoader(Samples(), batch_size=4, num_workers=1))
    except MemoryError as error:
        print("worker:", error)
    os.environ["OVERSPILL_SPILL_BATCHES"] = "perhaps"
    try:
        list(DataLoader(Samples(), batch_size=4, num_workers=1))
    except ValueError as error:
        print("setting:", error)
"""
    )
    told = private_shm(SHM_BYTES)(script, env={**env, "OVERSPILL_DIR": ""}).check().stdout
    call, worker, setting = (
        told.partition(f"{name}:")[2] for name in ("call", "worker", "setting")
    )
    assert "OVERSPILL_DIR" in call
    assert "OVERSPILL_DIR" in worker and "32.0 MiB" in worker and "/dev/shm" in worker
    assert "OVERSPILL_SPILL_BATCHES='perhaps'" in setting


@requires("private_mount")
def test_small_tensors_go_torchs_own_way(private_shm: Runner, env: dict[str, str]) -> None:
    script = (
        DATASETS
        + """
class Small(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((1000,), index)

if __name__ == "__main__":
    from overspill.tensors.in_flight import _NAMELESS
    mp.set_sharing_strategy("file_system")  # under which received files are told apart
    with ov.spill_batches():
        for batch in DataLoader(Small(), batch_size=8, num_workers=2):
            assert not _NAMELESS.holds(batch.untyped_storage())
        for large, numbers in DataLoader(Samples(), batch_size=4, num_workers=1):
            assert _NAMELESS.holds(large.untyped_storage())
            assert not _NAMELESS.holds(numbers.untyped_storage())
    print("whole")
"""
    )
    result = private_shm(SHM_BYTES)(script, env=env).check()
    assert result.stdout.strip() == "whole"


HELD = (
    DATASETS
    + """
if __name__ == "__main__":
    from overspill.tensors.in_flight import _NAMELESS
    mp.set_sharing_strategy("file_system")  # under which received files are told apart
    with ov.spill_batches():
        batches = list(DataLoader(Samples(), batch_size=4, num_workers=1))
    for number, (large, _) in enumerate(batches):
        check(large, 4 * number)
    print(*[_NAMELESS.holds(large.untyped_storage()) for large, _ in batches])
"""
)


@requires("memory_cgroup", "private_mount")
def test_a_shared_memory_larger_than_the_groups_limit_kills_nobody(
    private_shm: Runner, env: dict[str, str]
) -> None:
    env["ROWS"] = str(8 << 20)  # batches of 128 MiB
    result = private_shm(4 << 30)(HELD, limit_bytes=640 * MIB, env=env).check()
    assert result.kills == 0
    assert result.stdout.split()[-1] == "True"
