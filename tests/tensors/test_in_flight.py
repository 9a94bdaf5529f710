"""Storages that a worker sends, decided in this process as if it were one."""

from __future__ import annotations

import errno
import gc
import multiprocessing.reduction
import os
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
from overspill.errors import (
    DiskRefusedError,
    NoRoomError,
    SpillDirError,
    UnsupportedTensorError,
)
from overspill.settings import current_settings
from overspill.tensors import batches, headroom, in_flight, rooms
from overspill.tensors.batches import allocate_in_worker
from overspill.tensors.shared_memory import SHARED_MEMORY, SharedSegment
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
def by_name() -> Iterator[None]:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy("file_system")
    yield
    mp.set_sharing_strategy(before)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm has room for the smallest tensors alone."""
    monkeypatch.setattr(rooms, "free_disk_bytes", lambda _path: 4096)


def in_file(tensor: torch.Tensor) -> bool:
    """Whether it lies in a nameless file on a disk."""
    if not tensor.is_shared():
        return False
    return status(tensor).st_dev != Path(SHARED_MEMORY).stat().st_dev


def status(tensor: torch.Tensor) -> os.stat_result:
    """What is beneath a shared tensor; one that torch shares by name is copied by the question."""
    return os.fstat(tensor.untyped_storage()._share_fd_cpu_()[0])


def names() -> set[str]:
    return {path.name for path in Path(SHARED_MEMORY).iterdir()}


def test_what_fits_is_shared_memory_without_a_name(
    as_worker: None, strategy: str, spill_dir: Path
) -> None:
    before = names()
    with ov.spill_batches():
        tensor = allocate_in_worker((3, 50_000), torch.int32)
        assert tensor.shape == (3, 50_000) and tensor.is_shared() and not in_file(tensor)
        assert names() == before and status(tensor).st_nlink == 0
        tensor.copy_(torch.arange(150_000).view(3, 50_000))
        back = ForkingPickler.loads(ForkingPickler.dumps(tensor))
    assert names() == before and status(back).st_nlink == 0
    assert torch.equal(back, torch.arange(150_000).view(3, 50_000))
    back[0, 0] = 7
    assert int(tensor[0, 0]) == 7  # one memory, no copy


def test_shared_by_name_the_small_go_as_bytes_and_take_no_descriptor(
    as_worker: None, by_name: None, spill_dir: Path
) -> None:
    """They may be many, which is why somebody shares by name."""
    with ov.spill_batches():
        before, descriptors = names(), open_descriptors()
        made = [allocate_in_worker((100,), torch.float64).fill_(n) for n in range(50)]
        made.append(torch.arange(8192, dtype=torch.float64)[::2])  # of 64 KiB: the largest
        back = ForkingPickler.loads(ForkingPickler.dumps(made))
    assert all(torch.equal(mine, its) for mine, its in zip(made, back, strict=True))
    assert back[-1].stride() == (2,) and not back[-1].is_shared()
    assert names() == before and open_descriptors() == descriptors
    for tensor in (back[0], made[0], made[-1]):
        tensor.resize_(10_000).fill_(1)  # memory like any other


def test_off_and_shared_by_name_nothing_has_a_name_either(
    as_worker: None, by_name: None, no_spill_dir: None
) -> None:
    """As Overspill's own loader makes its batches."""
    before = names()
    made = allocate_in_worker((1000,), torch.int16).fill_(5)
    back = ForkingPickler.loads(ForkingPickler.dumps(made))
    assert made.is_shared() and torch.equal(back, made) and names() == before


def test_room_that_vanishes_meanwhile_leaves_no_name(
    as_worker: None, strategy: str, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(segment: SharedSegment, _offset: int, nbytes: int) -> None:
        raise NoRoomError("gone meanwhile", needed_bytes=nbytes)

    monkeypatch.setattr(SharedSegment, "reserve", gone)
    with ov.spill_batches():
        before, descriptors = names(), open_descriptors()
        assert in_file(allocate_in_worker((100_000,), torch.float32))
    with pytest.raises(NoRoomError, match="gone meanwhile") as caught:
        allocate_in_worker((100_000,), torch.float32)
    del caught
    assert names() == before and open_descriptors() == descriptors


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


def test_numpys_round_trip_over_a_nameless_file_is_sent_as_the_file(
    as_worker: None, full: None, strategy: str, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its storage has no descriptor: torch would copy it into a /dev/shm that cannot hold it."""
    with ov.spill_batches():
        made = allocate_in_worker((100_000,), torch.float32).fill_(3)
        monkeypatch.setattr(in_flight, "storage_to_send", None)  # no copy either
        for again in (torch.from_numpy(made.numpy()), torch.from_numpy(made.numpy()[:50_000])):
            back = ForkingPickler.loads(ForkingPickler.dumps(again))
            assert torch.equal(back, again)
            assert status(back).st_ino == status(made).st_ino


def test_a_received_batch_is_sent_on_by_its_descriptor(
    full: None, by_name: None, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name torch would copy it into a /dev/shm that cannot hold it."""
    before = names()
    with ov.spill_batches():
        with monkeypatch.context() as worker_only:
            worker_only.setattr(
                in_flight, "get_worker_info", lambda: SimpleNamespace(num_workers=1)
            )
            sent = ForkingPickler.dumps(torch.ones(100_000))
        received = ForkingPickler.loads(sent)
        again = ForkingPickler.loads(ForkingPickler.dumps(received))
    assert names() == before and torch.equal(again, received)
    assert status(again).st_ino == status(received).st_ino


def test_what_cannot_be_sent_is_an_error_of_ours(
    as_worker: None, full: None, strategy: str, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which reaches the receiver; another one is lost in the queue's thread, and it waits."""

    def refuse(_fd: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with ov.spill_batches():
        made = allocate_in_worker((100_000,), torch.float32)
        shared = torch.ones(20_000).share_memory_() if strategy == "file_descriptor" else made
        for module in (in_flight, multiprocessing.reduction):
            monkeypatch.setattr(module, "DupFd", refuse)
        for tensor in (made, shared):
            with pytest.raises(NoRoomError, match=r"Too many open files.*ulimit -n") as caught:
                ForkingPickler.dumps(tensor)
            assert caught.value.errno == errno.EMFILE


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


def test_where_no_segment_can_be_made_torch_makes_it(
    as_worker: None, strategy: str, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "open_segment", lambda nbytes, by_descriptor: None)
    with ov.spill_batches():
        made = allocate_in_worker((100_000,), torch.float32).fill_(2)
        back = ForkingPickler.loads(ForkingPickler.dumps(made))
    assert made.is_shared() and torch.equal(back, made)


def test_no_shared_memory_at_all_is_no_room(
    as_worker: None, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "is_mounted", lambda: False)
    with ov.spill_batches():
        assert in_file(allocate_in_worker((100_000,), torch.float32))


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
    monkeypatch.setattr(headroom, "available_memory_bytes", lambda: 8 * MIB)
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


class TestAUsersOwnMapping:
    """torch would fail to send it in the feeder thread, where nobody sees it."""

    @pytest.fixture(params=[False, True], ids=["parent", "worker"])
    def sender(self, request: pytest.FixtureRequest) -> None:
        if request.param:
            request.getfixturevalue("as_worker")

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "own"
        path.write_bytes(bytes(range(256)) * 400)
        return path

    @pytest.mark.parametrize("spilled", [False, True])
    def test_a_private_one_arrives_as_a_copy(
        self, sender: None, spilled: bool, strategy: str, path: Path, spill_dir: Path
    ) -> None:
        held = torch.from_file(str(path), shared=False, size=102_400, dtype=torch.uint8)
        with ov.settings(spill_batches=spilled):
            back = ForkingPickler.loads(ForkingPickler.dumps(held[7:]))
        assert torch.equal(back, held[7:]) and back.storage_offset() == 7
        back.fill_(0)
        assert path.read_bytes()[8] == 8
        # By name torch moves the storage itself, as it does with all others.
        assert int(held[8]) == (8 if strategy == "file_descriptor" else 0)

    def test_a_shared_one_goes_by_path_or_is_refused_at_the_send(
        self, sender: None, path: Path, spill_dir: Path
    ) -> None:
        held = torch.from_file(str(path), shared=True, size=102_400, dtype=torch.uint8)
        assert torch.equal(ForkingPickler.loads(ForkingPickler.dumps(held)), held)
        with (
            ov.settings(spill_dir=None),
            pytest.raises(UnsupportedTensorError, match="OVERSPILL_DIR") as caught,
        ):
            ForkingPickler.dumps(held)
        assert str(path) in str(caught.value)


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
