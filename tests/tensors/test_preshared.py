from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import overspill as ov
from overspill.errors import InputError, NoRoomError, UnavailableError, UnsupportedTensorError
from overspill.linux import libc
from overspill.tensors import headroom, preshared, rooms
from overspill.tensors.dtypes import MAPPABLE_DTYPES
from overspill.tensors.shared_memory import SHARED_MEMORY
from spilling import spill_files

STRATEGIES = ["file_descriptor", "file_system"]


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.fixture
def shared_only(no_spill_dir: None) -> Iterator[None]:
    """Spilling off, and everything above one byte in /dev/shm."""
    with ov.settings(min_bytes=1, shm_reserve_bytes=0):
        yield


def home_of(tensor: torch.Tensor) -> str:
    if ov.is_disk_backed(tensor):
        return "disk"
    return "shm" if tensor.is_shared() else "memory"


@pytest.mark.parametrize("random_access", [False, True])
def test_the_plan_is_what_happens(spill_dir: Path, random_access: bool) -> None:
    plan = ov.plan_placement((1000,), torch.float32, random_access=random_access)
    assert not spill_dir.exists()  # a plan makes nothing
    tensor = ov.allocate_preshared((1000,), torch.float32, random_access=random_access)
    assert home_of(tensor) == plan.home == ("shm" if random_access else "disk")
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((1000,), torch.float32, True)
    tensor.fill_(3)
    assert float(tensor.sum()) == 3000


def test_sharing_the_result_copies_nothing(strategy: str, spill_dir: Path) -> None:
    for random_access in (False, True):
        tensor = ov.allocate_preshared((10_000,), torch.int64, random_access=random_access)
        tensor.copy_(torch.arange(10_000))
        before = tensor.data_ptr()
        tensor.share_memory_()
        assert tensor.data_ptr() == before
        ov.share_memory(tensor)
        assert tensor.data_ptr() == before
        assert torch.equal(tensor, torch.arange(10_000))
        assert ov.is_disk_backed(tensor) is not random_access


def test_a_module_over_a_file_is_shared_without_a_copy(strategy: str, spill_dir: Path) -> None:
    model = torch.nn.Linear(8, 8, bias=False)
    weight = ov.spill_tensor_to_disk(model.weight, required=True)
    model.weight = torch.nn.Parameter(weight)
    model.share_memory()
    assert model.weight.data_ptr() == weight.data_ptr()


def test_torchs_own_sharing_still_works_for_everything_else(strategy: str) -> None:
    tensor = torch.arange(1000)
    assert not tensor.is_shared()
    assert tensor.share_memory_() is tensor
    assert tensor.is_shared() and torch.equal(tensor, torch.arange(1000))
    assert torch.UntypedStorage.share_memory_.__doc__


def test_below_the_threshold_a_plain_tensor(spill_dir: Path) -> None:
    with ov.settings(min_bytes=100):
        for random_access in (False, True):
            assert home_of(
                ov.allocate_preshared(24, torch.float32, random_access=random_access)
            ) == ("memory")
    assert spill_files(spill_dir) == []


@pytest.mark.parametrize("random_access", [False, True])
def test_off_large_tensors_go_to_shared_memory(
    strategy: str, random_access: bool, shared_only: None
) -> None:
    tensor = ov.allocate_preshared((100, 3), torch.int16, random_access=random_access)
    assert home_of(tensor) == "shm"
    assert ov.plan_placement((100, 3), torch.int16).reason.startswith("spilling is off")


def test_shared_memory_is_wholly_reserved(strategy: str, shared_only: None) -> None:
    free = os.statvfs(SHARED_MEMORY).f_bavail
    tensor = ov.allocate_preshared(1 << 22, torch.uint8)
    assert free - os.statvfs(SHARED_MEMORY).f_bavail >= (1 << 22) // 4096
    del tensor
    assert os.statvfs(SHARED_MEMORY).f_bavail == free


@pytest.mark.parametrize("dtype", MAPPABLE_DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, shared_only: None) -> None:
    tensor = ov.allocate_preshared((3, 5), dtype)
    assert (tensor.dtype, tensor.shape, home_of(tensor)) == (dtype, (3, 5), "shm")


@pytest.mark.parametrize("shape", [(0,), (0, 100), (3, 0)])
def test_no_bytes(shape: tuple[int, ...], spill_dir: Path) -> None:
    assert ov.allocate_preshared(shape, torch.int16).shape == shape
    assert spill_files(spill_dir) == []


@pytest.mark.parametrize("ask", [ov.allocate_preshared, ov.plan_placement])
def test_bad_shapes_and_dtypes(ask: Any, spill_dir: Path) -> None:
    for shape in ((-1,), (2**40, 2**40), "ab", (1.5,)):
        with pytest.raises(InputError):
            ask(shape, torch.float32)
    for dtype in (torch.qint8, "float32", None):
        with pytest.raises(UnsupportedTensorError):
            ask((2,), dtype)


def test_a_scatter_that_must_go_to_disk_warns_once_and_says_why(
    spill_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ov.settings(random_access_reserve_bytes=1 << 60), caplog.at_level(logging.WARNING):
        tensor = ov.allocate_preshared((100,), torch.float32, random_access=True)
    assert home_of(tensor) == "disk"
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "written at random and must go to disk" in warning.getMessage()
    assert "beside a reserve of 1048576.0 TiB" in warning.getMessage()


def test_the_reserves_stay_free(spill_dir: Path) -> None:
    with ov.settings(shm_reserve_bytes=1 << 60):
        plan = ov.plan_placement((10,), torch.int8, random_access=True)
    assert plan.home == "disk" and "/dev/shm has" in plan.reason


def test_a_memory_limit_set_by_the_user_binds(shared_only: None, empty_process: None) -> None:
    with ov.settings(memory_limit_bytes=999):
        assert ov.plan_placement(999, torch.uint8).home == "shm"
        with pytest.raises(NoRoomError, match="999 B of memory can still be had") as caught:
            ov.allocate_preshared(1000, torch.uint8)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (1000, 999)
    for remedy in ("/dev/shm", "OVERSPILL_DIR"):
        assert remedy in str(caught.value)


def test_a_directory_that_cannot_hold_files_is_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with ov.settings(spill_dir=tmp_path / "file", min_bytes=1):
        plan = ov.plan_placement((100,), torch.float32)
        tensor = ov.allocate_preshared((100,), torch.float32)
    assert home_of(tensor) == plan.home == "shm"
    assert "is a file" in plan.reason and "is a file" in caplog.text
    with ov.settings(spill_dir=SHARED_MEMORY, min_bytes=1):
        plan = ov.plan_placement((100,), torch.float32)
    assert plan.home == "shm" and "tmpfs, which is memory" in plan.reason


def test_a_disk_without_that_much_room_is_not_even_tried(spill_dir: Path) -> None:
    plan = ov.plan_placement((1 << 40,), torch.float64)
    assert plan.home == "none" and "spill directory's disk may give" in plan.reason
    with pytest.raises(NoRoomError) as caught:
        ov.allocate_preshared((1 << 40,), torch.float64)
    assert caught.value.needed_bytes == 1 << 43
    assert 0 < (caught.value.available_bytes or 0) < 1 << 43


def test_the_disk_limit_counts_in_the_plan(spill_dir: Path) -> None:
    with ov.settings(disk_limit_bytes=1000):
        assert ov.plan_placement(1000, torch.uint8).home == "disk"
        kept = ov.allocate_preshared(600, torch.uint8)
        assert ov.plan_placement(400, torch.uint8).home == "disk"
        assert ov.plan_placement(401, torch.uint8).home == "shm"
        assert home_of(kept) == "disk"


def test_room_that_vanishes_is_no_room(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(nbytes: int) -> None:
        raise NoRoomError("gone meanwhile", needed_bytes=nbytes)

    monkeypatch.setattr(preshared, "shared_storage", refuses)
    assert home_of(ov.allocate_preshared(100, torch.uint8, random_access=True)) == "disk"
    assert "gone meanwhile" in caplog.text
    with ov.settings(spill_dir=None), pytest.raises(NoRoomError, match="gone meanwhile") as caught:
        ov.allocate_preshared(100, torch.uint8)
    assert "OVERSPILL_DIR" in str(caught.value)


class TestRooms:
    def test_what_cannot_be_measured_stands_against_nothing(
        self, no_spill_dir: None, empty_process: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unknown(*_path: object) -> int:
            raise UnavailableError("cannot be asked")

        monkeypatch.setattr(rooms, "free_disk_bytes", unknown)
        monkeypatch.setattr(headroom, "available_memory_bytes", unknown)
        found = rooms.measured_rooms()
        assert (found.shm_bytes, found.memory_bytes) == (None, None)
        with ov.settings(min_bytes=1):
            assert home_of(ov.allocate_preshared(10, torch.uint8)) == "shm"
        with ov.settings(memory_limit_bytes=77):
            assert rooms.measured_rooms().memory_bytes == 77

    def test_no_mount_at_all(self, no_spill_dir: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rooms, "is_mounted", lambda: False)
        with ov.settings(min_bytes=1):
            plan = ov.plan_placement(10, torch.uint8)
        assert plan.home == "none" and "there is no /dev/shm" in plan.reason

    def test_the_defaults(
        self, no_spill_dir: None, empty_process: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rooms, "free_disk_bytes", lambda path: 50 << 20)
        monkeypatch.setattr(rooms, "total_disk_bytes", lambda path: 64 << 20)
        monkeypatch.setattr(headroom, "available_memory_bytes", lambda: 1 << 30)
        monkeypatch.setattr(headroom, "binding_memory_group", lambda: None)
        with ov.settings(memory_limit_bytes=800 << 20):
            found = rooms.measured_rooms()
        assert found.shm_bytes == 50 << 20 and found.shm_reserve_bytes == 8 << 20
        assert found.memory_bytes == 800 << 20 and found.memory_reserve_bytes == 100 << 20
        assert found.threshold_bytes == 50 << 20
        assert replace(found, disk_refusal=None) != found

    def test_measuring_makes_nothing(self, spill_dir: Path) -> None:
        found = rooms.measured_rooms()
        assert found.disk_bytes is not None and found.disk_bytes > 0
        assert not spill_dir.exists()

    def test_elsewhere_than_on_linux_there_is_no_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(libc, "SUPPORTED", False)
        with ov.settings(spill_dir=tmp_path, min_bytes=1):
            plan = ov.plan_placement(10, torch.uint8)
        assert plan.home == "shm" and "64-bit Linux" in plan.reason


def test_threads_may_allocate_and_discard_at_once(spill_dir: Path) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                with ov.spill_scope():
                    held = [
                        ov.allocate_preshared(5000, torch.int16, random_access=bool(step % 2))
                        for step in range(4)
                    ]
                    for tensor in held:
                        tensor.fill_(number)
                    ov.discard(held[0])
                    wrong.extend(one for one in held if one.unique().tolist() != [number])
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and spill_files(spill_dir) == []
