"""Each system call of sharing, final homes, discarding and releasing fails in turn."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_syscalls import Failing, is_spill, named

import overspill as ov
from overspill.errors import DiskRefusedError, MappingError, NoRoomError, UnavailableError
from overspill.linux import libc
from overspill.storage.leases import reclaim_dead_runs
from overspill.storage.workspace import leave_runs
from overspill.tensors import share_in_place
from overspill.tensors.shared_memory import SHARED_MEMORY
from spilling import open_descriptors, spill_files

NUMBERS = [errno.ENOSPC, errno.ENOMEM, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO, errno.ENOSYS]
COUNT = 3 << 18  # 3 MiB of float32


def shm_used() -> int:
    held = os.statvfs(SHARED_MEMORY)
    return (held.f_blocks - held.f_bfree) * held.f_frsize


@pytest.fixture
def nothing_left(spill_dir: Path) -> Iterator[None]:
    """Afterwards no file, descriptor, mapping, shared memory or lock more than before."""
    ov.prepare_spill_dir()
    before, used = open_descriptors(), shm_used()
    yield
    gc.collect()
    assert open_descriptors() == before
    assert shm_used() == used
    assert spill_files(spill_dir) == []
    assert b"spill_" not in Path("/proc/self/maps").read_bytes()
    leave_runs()
    assert len(reclaim_dead_runs(spill_dir)) == 1
    assert list(spill_dir.iterdir()) == []


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("random_access", [False, True])
def test_where_neither_disk_nor_shared_memory_can_be_reserved_nothing_is_handed_out(
    number: int,
    random_access: bool,
    nothing_left: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def refuses(called: str, *arguments: Any) -> int:
        if called == "fallocate":
            calls.append(arguments)
            raise OSError(number, os.strerror(number))
        return real(called, *arguments)

    real = libc.call
    monkeypatch.setattr(libc, "call", refuses)
    with pytest.raises(NoRoomError) as caught:
        ov.allocate_preshared(COUNT, torch.float32, random_access=random_access)
    assert len(calls) == 2  # each home was tried once
    assert caught.value.needed_bytes == COUNT * 4
    for told in ("/dev/shm", "OVERSPILL_DIR", "cannot reserve", os.strerror(number)):
        assert told in str(caught.value)


@pytest.mark.parametrize(
    ("random_access", "on_disk"), [(False, False), (True, True)], ids=["in order", "random"]
)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_home_that_refuses_gives_way_to_the_other(
    number: int,
    random_access: bool,
    on_disk: bool,
    spill_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ov.prepare_spill_dir()
    failing = Failing(libc.call, number, counts=named("fallocate"))
    monkeypatch.setattr(libc, "call", failing)
    tensor = ov.allocate_preshared(COUNT, torch.float32, random_access=random_access)
    assert failing.failed
    assert ov.is_disk_backed(tensor) is on_disk and tensor.is_shared()
    assert len(spill_files(spill_dir)) == on_disk
    tensor.fill_(1)


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_a_tensor_that_cannot_move_on_is_whole_again(
    number: int, at: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_in_place, "PIECE_BYTES", COUNT)
    tensor = torch.arange(COUNT, dtype=torch.float32)
    failing = Failing(libc.call, number, at=at, counts=named("fallocate"))
    monkeypatch.setattr(libc, "call", failing)
    if at > 4:  # four pieces
        ov.share_memory(tensor)
        assert tensor.is_shared() and not failing.failed
    else:
        with pytest.raises(NoRoomError, match="/dev/shm") as caught:
            ov.share_memory(tensor)
        assert failing.failed and caught.value.errno == number
        assert not tensor.is_shared()
    assert torch.equal(tensor, torch.arange(COUNT, dtype=torch.float32))
    del tensor


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_an_interrupt_in_the_middle_of_a_move(
    error: type[BaseException], at: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_in_place, "PIECE_BYTES", COUNT)
    real, calls = share_in_place.advise, []

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        calls.append(arguments)
        if len(calls) == at:
            raise error

    monkeypatch.setattr(share_in_place, "advise", interrupted)
    tensor = torch.arange(COUNT, dtype=torch.float32)
    with pytest.raises(error):
        ov.share_memory(tensor)
    assert len(calls) == at and not tensor.is_shared()
    assert torch.equal(tensor, torch.arange(COUNT, dtype=torch.float32))
    del tensor


def test_memory_that_cannot_be_given_back_is_held_a_little_longer(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_arguments: Any) -> None:
        raise MappingError("locked")

    monkeypatch.setattr(share_in_place, "PIECE_BYTES", COUNT)
    monkeypatch.setattr(share_in_place, "advise", refuses)
    tensor = torch.arange(COUNT, dtype=torch.float32)
    ov.share_memory(tensor)
    assert torch.equal(tensor, torch.arange(COUNT, dtype=torch.float32))
    del tensor


@pytest.mark.parametrize(
    ("where", "counts"),
    [
        ((libc, "call"), named("fallocate")),
        ((os, "open"), is_spill),
        ((os, "pwrite"), lambda *arguments: True),
        ((os, "fsync"), lambda *arguments: True),
        ((libc, "call"), named("statx")),
    ],
    ids=["reserve", "create", "write", "sync", "identify"],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_value_the_disk_refuses_goes_to_shared_memory(
    number: int,
    where: tuple[Any, str],
    counts: Callable[..., bool],
    nothing_left: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = torch.arange(COUNT, dtype=torch.float32)
    with monkeypatch.context() as patch:
        failing = Failing(getattr(*where), number, counts=counts)
        patch.setattr(*where, failing)
        found = ov.share_memory_for_ipc({"a": source})["a"]
    assert failing.failed
    assert found.is_shared() and not ov.is_disk_backed(found)
    assert torch.equal(found, source) and not source.is_shared()
    del found, source


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EROFS])
def test_discarding_fails(number: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = ov.spill_tensor_to_disk(torch.ones(9), required=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", Failing(os.unlink, number))
        with pytest.raises(DiskRefusedError) as caught:
            ov.discard(tensor)
    assert caught.value.errno == number and caught.value.remedy
    assert ov.discard(tensor)
    del tensor


def test_a_scope_whose_file_cannot_be_removed_says_so_and_frees_the_others(
    nothing_left: None, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(DiskRefusedError), ov.spill_scope():
        for _ in range(3):
            ov.spill_tensor_to_disk(torch.ones(9), required=True)
        patch.setattr(os, "unlink", Failing(os.unlink, errno.EIO, at=2))
    (left,) = spill_files(spill_dir)  # the second of them
    left.unlink()


@pytest.mark.parametrize(
    ("where", "step", "counts"),
    [
        ((os, "open"), "open", is_spill),
        ((os, "fsync"), "write back", lambda *arguments: True),
        ((os, "posix_fadvise"), "drop", lambda *arguments: True),
        ((libc, "call"), "open", named("mmap")),
    ],
    ids=["open", "fsync", "fadvise", "mmap"],
)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EMFILE])
def test_releasing_by_path_fails_at_each_step_and_says_which(
    number: int,
    where: tuple[Any, str],
    step: str,
    counts: Callable[..., bool],
    nothing_left: None,
    spill_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = ov.spill_tensor_to_disk(torch.ones(9), required=True)
    path = Path(tensor.untyped_storage().filename)
    del tensor
    with monkeypatch.context() as patch:
        failing = Failing(getattr(*where), number, counts=counts)
        patch.setattr(*where, failing)
        result = ov.release_page_cache_by_path(path)
    assert failing.failed and not result
    assert result.failed_step == step and result.reason
    path.unlink()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("at", [1, 2])
def test_values_that_shared_memory_refuses_leave_no_file(
    number: int, at: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is spilled; one of the other two cannot be shared."""
    held = {"large": torch.ones(COUNT), "a": torch.ones(99), "b": torch.ones(99)}
    with ov.settings(min_bytes=1000), monkeypatch.context() as patch:
        failing = Failing(libc.call, number, at=at + 1, counts=named("fallocate"))
        patch.setattr(libc, "call", failing)
        with pytest.raises(NoRoomError) as caught:
            ov.share_memory_for_ipc(held)
    assert failing.failed and caught.value.errno == number
    assert not any(tensor.is_shared() for tensor in held.values())


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EIO])
def test_concatenating_fails_and_no_row_is_lost(
    number: int, at: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [(torch.arange(start, start + 5000), torch.ones(5000)) for start in (0, 5000)]
    with ov.settings(spill_dir=None), monkeypatch.context() as patch:
        failing = Failing(libc.call, number, at=at, counts=named("fallocate"))
        patch.setattr(libc, "call", failing)
        with pytest.raises(NoRoomError) as caught:
            ov.concatenate_chunks(chunks)
        assert failing.failed and caught.value.errno == number
    assert torch.equal(
        torch.cat([chunk[0] for chunk in chunks]).sort().values, torch.arange(10_000)
    )
    assert sum(float(chunk[1].sum()) for chunk in chunks) == 10_000
    chunks.clear()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EOPNOTSUPP, errno.ENOENT])
def test_without_a_segment_of_ones_own_torchs_serves(
    number: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_segment(path: Any, *_rest: Any, **_options: Any) -> bool:
        return str(path) == SHARED_MEMORY

    monkeypatch.setattr(share_in_place, "PIECE_BYTES", COUNT)
    tensor = torch.arange(COUNT, dtype=torch.float32)
    with monkeypatch.context() as patch:
        failing = Failing(os.open, number, counts=is_segment)
        patch.setattr(os, "open", failing)
        ov.share_memory(tensor)
    assert failing.failed and tensor.is_shared()
    assert torch.equal(tensor, torch.arange(COUNT, dtype=torch.float32))
    del tensor


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN, errno.EINVAL])
def test_residency_that_the_kernel_does_not_tell_is_an_error(
    number: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = ov.spill_tensor_to_disk(torch.ones(9), required=True)
    with monkeypatch.context() as patch:
        patch.setattr(libc, "call", Failing(libc.call, number, counts=named("mincore")))
        with pytest.raises(MappingError, match="mincore") as caught:
            ov.residency(tensor)
    assert caught.value.errno == number
    ov.discard(tensor)
    del tensor


def test_a_report_without_proc_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_arguments: Any, **_options: Any) -> str:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuses)
        with pytest.raises(UnavailableError):
            ov.memory_report()
