"""Storages that a worker sends, decided in this process as if it were one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data._utils import worker

import overspill as ov
from confined import PythonResult
from overspill.errors import DiskRefusedError, NoRoomError, SpillDirError
from overspill.settings import current_settings
from overspill.tensors import batches, in_flight
from overspill.tensors.batches import allocate_in_worker
from spilling import open_descriptors

MIB = 1 << 20


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process passes for a worker."""
    for module in (batches, in_flight):
        monkeypatch.setattr(module, "get_worker_info", lambda: SimpleNamespace(num_workers=4))


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm has room for the smallest tensors alone."""
    monkeypatch.setattr(in_flight, "free_disk_bytes", lambda _path: 4096)


def in_file(tensor: torch.Tensor) -> bool:
    return in_flight._NAMELESS.holds(tensor.untyped_storage())


def test_what_fits_is_shared_memory(as_worker: None, strategy: str, spill_dir: Path) -> None:
    with ov.spill_batches():
        tensor = allocate_in_worker((3, 5), torch.int32)
    assert tensor.shape == (3, 5) and tensor.is_shared() and not in_file(tensor)


def test_what_does_not_fit_is_a_nameless_file(
    as_worker: None, full: None, strategy: str, spill_dir: Path
) -> None:
    with ov.spill_batches():
        tensor = allocate_in_worker((256, 1024), torch.float32)
        assert in_file(tensor) and tensor.is_shared() and not ov.is_disk_backed(tensor)
        tensor.copy_(torch.arange(256 * 1024).view(256, 1024))
        back = ForkingPickler.loads(ForkingPickler.dumps(tensor[3:]))
        assert torch.equal(back, tensor[3:]) and back.storage_offset() == 3072
        assert in_file(back) == in_file(tensor)
    assert list(spill_dir.rglob("*.bin")) == []


def test_memory_of_its_own_is_moved_when_it_is_sent(
    as_worker: None, full: None, strategy: str, spill_dir: Path
) -> None:
    source = torch.randn(1000, 1000)
    with ov.spill_batches():
        back = ForkingPickler.loads(ForkingPickler.dumps(source.t()))
        assert torch.equal(back, source.t()) and back.stride() == (1, 1000)
        assert back.untyped_storage().filename is None
        small = ForkingPickler.loads(ForkingPickler.dumps(torch.arange(5)))
        assert small.tolist() == [0, 1, 2, 3, 4] and not in_file(small)
        assert not source.is_shared()  # torch would have moved it into /dev/shm


def test_views_nested_and_empty_tensors_arrive(
    as_worker: None, full: None, spill_dir: Path
) -> None:
    with ov.spill_batches():
        sent = {"a": [torch.zeros(0, 3), torch.ones(100_000)[::2]], "b": torch.tensor(4)}
        back = ForkingPickler.loads(ForkingPickler.dumps(sent))
    assert back["a"][0].shape == (0, 3)
    assert torch.equal(back["a"][1], sent["a"][1]) and int(back["b"]) == 4


def test_another_process_was_faster(
    as_worker: None, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(nbytes: int) -> torch.UntypedStorage:
        raise NoRoomError("gone meanwhile", needed_bytes=nbytes)

    monkeypatch.setattr(in_flight, "shared_storage", gone)
    with ov.spill_batches():
        assert in_file(allocate_in_worker((1000,), torch.float32))
    with pytest.raises(NoRoomError, match="gone meanwhile"):
        allocate_in_worker((1000,), torch.float32)


def test_off_it_fits_or_is_an_error_that_says_what_to_do(
    as_worker: None, full: None, spill_dir: Path
) -> None:
    assert allocate_in_worker((1024,), torch.float32).is_shared()
    with pytest.raises(NoRoomError, match="spill_batches") as caught:
        allocate_in_worker((1025,), torch.float32)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (4100, 4096)


def test_without_a_directory_it_is_as_if_they_were_off(
    as_worker: None, full: None, no_spill_dir: None
) -> None:
    with ov.settings(spill_batches=True, shm_reserve_bytes=1 << 30):
        assert allocate_in_worker((256, 4), torch.float32).is_shared()
        tensor = torch.ones(100_000)
        ForkingPickler.dumps(tensor)
        assert tensor.is_shared()  # torch's own way
        with pytest.raises(NoRoomError, match="OVERSPILL_DIR"):
            allocate_in_worker((1025,), torch.float32)


def test_what_memory_does_not_hold_is_a_nameless_file(
    as_worker: None, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of four workers may take an eighth: as much again is left to all of them."""
    monkeypatch.setattr(in_flight, "available_memory_bytes", lambda: 8 * MIB)
    with ov.settings(shm_reserve_bytes=0), ov.spill_batches():
        assert not in_file(allocate_in_worker((MIB,), torch.uint8))
        assert in_file(allocate_in_worker((MIB + 1,), torch.uint8))
    with ov.settings(spill_batches=False):  # there is nothing else to turn to
        assert allocate_in_worker((MIB + 1,), torch.uint8).is_shared()


def test_outside_of_a_worker_nothing_is_watched(full: None, spill_dir: Path) -> None:
    stock = torch.UntypedStorage._new_shared
    with ov.spill_batches():
        assert not allocate_in_worker((100_000,), torch.float32).is_shared()
        sent = torch.ones(100_000)
        ForkingPickler.dumps(sent)
        assert sent.is_shared()  # as torch does, so that both sides see a write
    assert torch.UntypedStorage._new_shared == stock


def test_the_disks_refusals_reach_the_caller(as_worker: None, full: None, spill_dir: Path) -> None:
    with ov.spill_batches(), ov.settings(disk_limit_bytes=1 * MIB):
        with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT"):
            allocate_in_worker((2 * MIB,), torch.uint8)
        with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT"):
            ForkingPickler.dumps(torch.zeros(2 * MIB, dtype=torch.uint8))
        with ov.settings(spill_dir=None), pytest.raises(NoRoomError, match="OVERSPILL_DIR"):
            allocate_in_worker((2 * MIB,), torch.uint8)


def test_descriptors_go_with_the_tensors(as_worker: None, full: None, spill_dir: Path) -> None:
    with ov.spill_batches():
        before = len(open_descriptors())
        for _ in range(50):
            allocate_in_worker((100_000,), torch.float32).fill_(1)
        assert len(open_descriptors()) <= before + 1
        assert len(in_flight._NAMELESS._owners) < 3


NO_ADDRESS_SPACE = """
import os, resource
from overspill.errors import NoRoomError
from overspill.tensors.in_flight import storage_to_send

SIZE = 256 << 20
storage_to_send(1 << 20)
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + SIZE // 2, -1))
before = len(os.listdir("/proc/self/fd"))
for _ in range(3):
    try:
        storage_to_send(SIZE)
    except NoRoomError as error:
        print("cannot be mapped" in str(error), len(os.listdir("/proc/self/fd")) - before)
"""


def test_a_file_that_cannot_be_mapped_is_given_back(
    run_python: Callable[..., PythonResult], tmp_path: Path
) -> None:
    env = {
        "OVERSPILL_DIR": str(tmp_path / "spill"),
        "OVERSPILL_RUN": "",
        "OVERSPILL_SPILL_BATCHES": "1",
        "OVERSPILL_SHM_RESERVE_BYTES": "1TiB",
    }
    result = run_python(NO_ADDRESS_SPACE, env=env).check()
    assert result.stdout.splitlines() == ["True 0"] * 3


class TestTheSpan:
    def test_it_is_in_force_to_the_end_of_its_block(self, spill_dir: Path) -> None:
        with ov.spill_batches():
            assert current_settings().spill_batches
            assert len(list(spill_dir.glob("run-*"))) == 1  # the workers' run is the parent's
        assert not current_settings().spill_batches

    def test_called_as_a_function_it_stays(self, spill_dir: Path) -> None:
        ov.spill_batches()
        gc.collect()
        assert current_settings().spill_batches
        for span in list(batches._SPANS):
            span.__exit__(None, None, None)
        assert not current_settings().spill_batches

    def test_without_a_directory_it_is_refused_and_nothing_is_set(self, no_spill_dir: None) -> None:
        with pytest.raises(SpillDirError, match="OVERSPILL_DIR"):
            ov.spill_batches()
        assert not current_settings().spill_batches

    def test_off_the_worker_loop_pickles_as_torchs_own(self, spill_dir: Path) -> None:
        stock = b"torch.utils.data._utils.worker"
        data = bytes(ForkingPickler.dumps(worker._worker_loop))
        assert stock in data and b"overspill" not in data
        assert ForkingPickler.loads(data) is worker._worker_loop
        with ov.spill_batches():
            assert b"overspill" in bytes(ForkingPickler.dumps(worker._worker_loop))
