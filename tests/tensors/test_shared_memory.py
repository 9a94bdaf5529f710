from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from capabilities import requires
from overspill.errors import NoRoomError
from overspill.linux import libc
from overspill.tensors import shared_memory
from overspill.tensors.layouts import tensor_over
from overspill.tensors.shared_memory import SHARED_MEMORY, open_segment, shared_storage
from spilling import open_descriptors

MIB = 1 << 20


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.fixture
def by_name() -> Iterator[None]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield
    torch.multiprocessing.set_sharing_strategy(before)


def used() -> int:
    held = os.statvfs(SHARED_MEMORY)
    return (held.f_blocks - held.f_bfree) * held.f_frsize


def sparse(nbytes: int) -> torch.UntypedStorage:
    """Shared memory as torch before 2.10 makes it: no block of it reserved."""
    fd = os.open(SHARED_MEMORY, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        os.ftruncate(fd, nbytes)
        return torch.UntypedStorage._new_shared_fd_cpu(fd, nbytes)
    finally:
        os.close(fd)


FILE_SIZE = """
import os, resource, sys
import torch
import overspill as ov
from overspill.errors import NoRoomError
from overspill.tensors.shared_memory import shared_storage

torch.multiprocessing.set_sharing_strategy(sys.argv[1])
shared_storage(1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, -1))
before = len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))
for make in (lambda: shared_storage(2 << 20), lambda: ov.share_memory(torch.ones(1 << 19))):
    try:
        make()
    except NoRoomError as error:
        print("ulimit -f" in str(error))
print((len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm"))) == before)
"""


@requires("private_mount")
def test_a_limit_on_the_size_of_files_leaves_no_descriptor(
    strategy: str, private_shm: Callable[[int], Callable[..., Any]]
) -> None:
    result = private_shm(16 * MIB)(FILE_SIZE, arguments=[strategy]).check()
    assert result.stdout.split() == ["True"] * 3


def test_every_block_is_reserved(strategy: str) -> None:
    before = used()
    storage = shared_storage(4 * MIB)
    assert used() - before >= 4 * MIB
    assert storage.is_shared() and storage.nbytes() == 4 * MIB
    del storage
    assert used() == before


@pytest.fixture
def old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only torch can make a segment, and it reserves nothing."""
    monkeypatch.setattr(shared_memory, "open_segment", lambda nbytes: None)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", sparse)


def test_a_torch_that_does_not_reserve_is_helped(old_torch: None) -> None:
    before = used()
    storage = shared_storage(4 * MIB)
    assert used() - before >= 4 * MIB
    tensor_over(storage, torch.uint8, (4 * MIB,)).fill_(1)


def test_a_torch_that_does_not_reserve_and_a_full_mount(
    old_torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, descriptors = used(), open_descriptors()
    monkeypatch.setattr(shared_memory, "free_disk_bytes", lambda path: 1 << 60)  # filled since
    with pytest.raises(NoRoomError, match="/dev/shm gave no segment") as caught:
        shared_storage(1 << 45)
    assert caught.value.errno == errno.ENOSPC and caught.value.needed_bytes == 1 << 45
    assert "shm-size" in (caught.value.remedy or "")
    del caught
    assert used() == before and open_descriptors() == descriptors


def test_more_than_the_mount_is_refused(strategy: str) -> None:
    before, descriptors = used(), open_descriptors()
    with pytest.raises(NoRoomError, match="/dev/shm gave no segment") as caught:
        shared_storage(1 << 45)
    assert caught.value.needed_bytes == 1 << 45 and caught.value.remedy
    del caught
    assert used() == before and open_descriptors() == descriptors


def test_torch_is_not_asked_for_more_than_there_is(
    by_name: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave a name and a descriptor behind."""
    monkeypatch.setattr(shared_memory, "free_disk_bytes", lambda path: 99)
    with pytest.raises(NoRoomError, match="99 B are free, and 100 B were wanted"):
        shared_storage(100)


def test_torchs_own_refusal_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(nbytes: int) -> None:
        raise RuntimeError("unable to open shared memory object </torch_1>: Too many (24)\nframe")

    monkeypatch.setattr(shared_memory, "open_segment", lambda nbytes: None)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", refuses)
    with pytest.raises(NoRoomError, match="Too many") as caught:
        shared_storage(100)
    assert caught.value.errno == errno.EMFILE and "ulimit -n" in (caught.value.remedy or "")


def test_a_named_segment_that_cannot_be_looked_at(
    by_name: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", "/nowhere")
    monkeypatch.setattr(shared_memory, "is_mounted", lambda: False)
    with pytest.raises(NoRoomError) as caught:
        shared_storage(100)
    assert caught.value.errno == errno.ENOENT


class TestSegments:
    def test_it_takes_memory_as_it_is_reserved(self) -> None:
        before, descriptors = used(), open_descriptors()
        names = set(Path(SHARED_MEMORY).iterdir())
        segment = open_segment(16 * MIB)
        assert segment is not None
        with segment:
            assert used() == before and set(Path(SHARED_MEMORY).iterdir()) == names
            segment.reserve(0, 4 * MIB)
            segment.reserve(4 * MIB, 4 * MIB)
            assert used() - before == 8 * MIB
            view = tensor_over(segment.storage, torch.uint8, (16 * MIB,))
            view[: 8 * MIB] = 7
            segment.free(0, 4 * MIB)
            assert used() - before == 4 * MIB
        assert int(view[5 * MIB]) == 7 and segment.storage.is_shared()
        assert len(open_descriptors() - descriptors) == 1  # torch's
        del segment, view
        assert used() == before and open_descriptors() == descriptors

    def test_shared_by_name_there_is_none(self, by_name: None) -> None:
        assert open_segment(100) is None

    @pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOENT, errno.EMFILE])
    def test_where_none_can_be_made(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuses(*_arguments: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(shared_memory.os, "open", refuses)
        assert open_segment(100) is None

    @pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "no"), RuntimeError("no map (12)")])
    def test_where_none_can_be_mapped(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuses(*_arguments: object) -> None:
            raise error

        before = open_descriptors()
        monkeypatch.setattr(torch.UntypedStorage, "_new_shared_fd_cpu", refuses)
        assert open_segment(100) is None
        assert open_descriptors() == before

    def test_elsewhere_than_on_linux(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(libc, "SUPPORTED", False)
        assert open_segment(100) is None
        assert shared_storage(100).nbytes() == 100
