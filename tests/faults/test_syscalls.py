"""Each system call of spill, allocate, load and prepare fails in turn; nothing may be left."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import (
    DiskRefusedError,
    MappingError,
    OverspillError,
    SpillDirError,
    StaleFileError,
    UnavailableError,
)
from overspill.linux import libc, locks
from overspill.storage import direct_write
from overspill.storage.leases import reclaim_dead_runs
from overspill.storage.run_removal import LEASE_NAME
from overspill.storage.workspace import leave_runs
from overspill.tensors import spill
from spilling import open_descriptors, spill_files

DISK_ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EOPNOTSUPP, errno.EIO, errno.EINVAL]
SOURCE = torch.arange(3 << 18, dtype=torch.float32)  # 3 MiB: three writes


class Failing:
    """Fails the n-th call that counts, and passes every other on."""

    def __init__(
        self,
        real: Callable[..., Any],
        number: int,
        *,
        at: int = 1,
        counts: Callable[..., bool] = lambda *a, **k: True,
    ) -> None:
        self.real, self.number, self.left, self.counts = real, number, at, counts
        self.failed = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.counts(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                self.failed = True
                raise OSError(self.number, os.strerror(self.number))
        return self.real(*arguments, **options)


def is_spill(path: Any, *_rest: Any, **_options: Any) -> bool:
    return "spill_" in str(path)


def named(name: str) -> Callable[..., bool]:
    return lambda called, *_rest: called == name


@pytest.fixture
def nothing_left(spill_dir: Path) -> Iterator[None]:
    """Afterwards no file, descriptor, mapping or lock more than before."""
    ov.prepare_spill_dir()
    before = open_descriptors()
    yield
    gc.collect()
    assert open_descriptors() == before
    assert spill_files(spill_dir) == []
    assert b"spill_" not in Path("/proc/self/maps").read_bytes()
    leave_runs()
    assert len(reclaim_dead_runs(spill_dir)) == 1  # nobody holds the lease any more
    assert list(spill_dir.iterdir()) == []


def attempt(required: bool, kind: type[OverspillError], number: int, *, spilled: bool) -> None:
    def make() -> torch.Tensor | None:
        if spilled:
            return ov.spill_tensor_to_disk(SOURCE, required=required)
        return ov.allocate_disk_backed(SOURCE.shape, SOURCE.dtype, required=required)

    if required:
        with pytest.raises(kind) as caught:
            make()
        assert caught.value.errno == number
        assert caught.value.remedy
    else:
        assert make() is None


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("spilled", [True, False])
@pytest.mark.parametrize("number", [*DISK_ERRORS, errno.ENOSYS])
def test_reserving_fails(
    number: int,
    spilled: bool,
    required: bool,
    nothing_left: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = Failing(libc.call, number, counts=named("fallocate"))
    monkeypatch.setattr(libc, "call", failing)
    with caplog.at_level(logging.ERROR, logger="overspill"):
        attempt(required, DiskRefusedError, number, spilled=spilled)
    assert failing.failed
    assert "could not place" in caplog.text and "remedy" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("spilled", [True, False])
def test_creating_the_file_fails(
    number: int, spilled: bool, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(os.open, number, counts=is_spill)
    monkeypatch.setattr(os, "open", failing)
    attempt(True, DiskRefusedError, number, spilled=spilled)
    assert failing.failed


@pytest.mark.parametrize("past_cache", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_writing_fails(
    number: int, at: int, past_cache: bool, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if past_cache:
        monkeypatch.setattr(spill, "BUFFERED_BYTES", 0)
        monkeypatch.setattr(direct_write, "_BUFFER_BYTES", 1 << 20)
    failing = Failing(os.pwrite, number, at=at)
    monkeypatch.setattr(os, "pwrite", failing)
    attempt(True, DiskRefusedError, number, spilled=True)
    assert failing.failed


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_syncing_fails(number: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(os.fsync, number)
    monkeypatch.setattr(os, "fsync", failing)
    attempt(True, DiskRefusedError, number, spilled=True)
    assert failing.failed


def test_write_back_behind_the_writer_fails(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "BUFFERED_BYTES", 0)
    monkeypatch.setattr(direct_write, "set_direct", lambda fd, on: not on)
    failing = Failing(libc.call, errno.EIO, counts=named("sync_file_range"))
    monkeypatch.setattr(libc, "call", failing)
    attempt(True, DiskRefusedError, errno.EIO, spilled=True)
    assert failing.failed


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("spilled", [True, False])
@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.EACCES, errno.ENODEV])
def test_mapping_fails(
    number: int,
    spilled: bool,
    required: bool,
    nothing_left: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(path: str, **options: Any) -> None:
        # torch's own words: the error number is in the text alone.
        raise RuntimeError(f"unable to mmap 8 bytes from file <{path}>: No ({number})\nframe #0")

    monkeypatch.setattr(torch.UntypedStorage, "from_file", refuses)
    attempt(required, MappingError, number, spilled=spilled)


@pytest.mark.parametrize("at", [1, 2, 3, 5])  # the fourth, right after a map, tells no number
def test_the_file_is_swapped_while_it_is_mapped(
    at: int, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(libc.call, errno.ENOENT, at=at, counts=named("statx"))
    monkeypatch.setattr(libc, "call", failing)
    attempt(True, StaleFileError, errno.ENOENT, spilled=True)
    assert failing.failed


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_in_the_middle(
    error: type[BaseException], nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> int:
        raise error

    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(error):
        ov.spill_tensor_to_disk(SOURCE)
    monkeypatch.undo()


def test_unmeasurable_memory_stands_against_nothing(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown() -> int:
        raise UnavailableError("cannot be read")

    monkeypatch.setattr("overspill.tensors.headroom.available_memory_bytes", unknown)
    large = torch.zeros(9 << 20, dtype=torch.uint8)
    assert torch.equal(ov.spill_tensor_to_disk(large, required=True), large)
    with ov.settings(min_bytes=None):
        assert ov.spill_tensor_to_disk(SOURCE) is None
    assert "headroom is unknown" in caplog.text


def test_short_writes_are_continued(spill_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:70_001], at))
    spilled = ov.spill_tensor_to_disk(SOURCE, required=True)
    assert torch.equal(spilled, SOURCE)


def test_interrupted_calls_are_made_again(spill_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = (
        libc._functions["fallocate"] if "fallocate" in libc._functions else libc._bind("fallocate")
    )

    def interrupted(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) % 2:
            ctypes.set_errno(errno.EINTR)
            return -1
        return int(real(*arguments))

    monkeypatch.setitem(libc._functions, "fallocate", interrupted)
    assert torch.equal(ov.spill_tensor_to_disk(SOURCE, required=True), SOURCE)
    assert len(calls) == 4  # the lease and the file, each twice


PREPARING = {
    "mkdir": (os, "mkdir", lambda path, *rest, **options: "run-" in str(path)),
    "chmod": (os, "chmod", lambda path, *rest, **options: "run-" in str(path)),
    "lease": (os, "open", lambda path, *rest, **options: str(path).endswith(LEASE_NAME)),
    "reserve": (libc, "call", named("fallocate")),
    "write": (os, "pwrite", lambda *arguments: True),
}


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("step", PREPARING)
def test_preparing_fails_at_each_step(
    step: str, number: int, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill_dir.mkdir()
    before = open_descriptors()
    where, name, counts = PREPARING[step]
    failing = Failing(getattr(where, name), number, counts=counts)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, failing)
        with pytest.raises((SpillDirError, DiskRefusedError)) as caught:
            ov.prepare_spill_dir()
    assert failing.failed
    assert caught.value.errno == number and caught.value.remedy
    if number == errno.ENOSPC:  # to which a directory that can be written is no remedy
        assert type(caught.value) is DiskRefusedError and "free space" in caught.value.remedy
    assert open_descriptors() == before
    assert list(spill_dir.iterdir()) == []
    assert ov.prepare_spill_dir() is not None


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(
    number: int, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(locks.fcntl, "flock", Failing(locks.fcntl.flock, number))
        with pytest.raises(SpillDirError, match="lease") as caught:
            ov.prepare_spill_dir()
    assert caught.value.errno == number
    assert list(spill_dir.iterdir()) == []


@requires("loop_device")
def test_a_disk_that_fills_up_for_real(loop_disk: Callable[[int], Path], tmp_path: Path) -> None:
    disk = loop_disk(32 << 20)
    with ov.settings(spill_dir=disk / "spill", min_bytes=1):
        ov.prepare_spill_dir()
        kept = []
        with pytest.raises(DiskRefusedError) as caught:
            for _ in range(40):
                kept.append(ov.spill_tensor_to_disk(SOURCE[: 1 << 18], required=True))
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.needed_bytes == 1 << 20
        assert caught.value.available_bytes is not None
        assert caught.value.available_bytes < 1 << 20
        assert len(spill_files(disk / "spill")) == len(kept) > 10
        held = os.statvfs(disk)
        assert held.f_bavail >= held.f_blocks // 20
        assert all(torch.equal(one, SOURCE[: 1 << 18]) for one in kept)
        kept.clear()
        leave_runs()


@requires("loop_device")
def test_a_disk_full_to_the_brim_for_real(
    loop_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overspill.storage.spill_files.FLOOR_SHARE", 1 << 60)
    disk = loop_disk(32 << 20)
    with ov.settings(spill_dir=disk / "spill", min_bytes=1):
        ov.prepare_spill_dir()
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        monkeypatch.setattr("overspill.storage.spill_files.free_disk_bytes", lambda path: 1 << 60)
        with pytest.raises(DiskRefusedError) as caught:
            ov.allocate_disk_backed((10 * free,), torch.uint8, required=True)
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.needed_bytes == 10 * free
        assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize == free  # given back
        assert spill_files(disk / "spill") == []
        leave_runs()


def test_a_limit_on_file_sizes_for_real(run_python: Callable[..., Any], tmp_path: Path) -> None:
    script = """
    import resource, signal, torch
    import overspill as ov
    ov.prepare_spill_dir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python sets it at start
    print(ov.spill_tensor_to_disk(torch.ones(1 << 20)))
    try:
        ov.allocate_disk_backed((1 << 21,), torch.uint8, required=True)
    except OSError as error:
        print(error.errno, "ulimit -f" in str(error))
    """
    place = tmp_path / "spill"
    env = {"OVERSPILL_DIR": str(place), "OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
    result = run_python(script, env=env).check()
    assert result.stdout.split() == ["None", str(errno.EFBIG), "True"]
    assert spill_files(place) == []


def test_a_limit_on_descriptors_for_real(run_python: Callable[..., Any], tmp_path: Path) -> None:
    script = """
    import os, resource, torch
    import overspill as ov
    ov.prepare_spill_dir()
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        ov.spill_tensor_to_disk(torch.ones(9), required=True)
    except OSError as error:
        print(error.errno, "ulimit -n" in str(error))
    os.close(held.pop())  # room for the file, none for its mapping
    try:
        ov.spill_tensor_to_disk(torch.ones(9), required=True)
    except OSError as error:
        print(error.errno, "ulimit -n" in str(error))
    os.close(held.pop())
    print(int(ov.spill_tensor_to_disk(torch.ones(9), required=True).sum()))
    """
    place = tmp_path / "spill"
    env = {"OVERSPILL_DIR": str(place), "OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
    result = run_python(script, env=env).check()
    assert result.stdout.split() == [str(errno.EMFILE), "True"] * 2 + ["9"]
    assert len(spill_files(place)) == 1


def test_the_limit_on_mappings_for_real(run_python: Callable[..., Any], tmp_path: Path) -> None:
    script = """
    import mmap, torch
    import overspill as ov
    ov.prepare_spill_dir()
    torch.ones(9).sum()
    fill, held = open("/dev/zero", "rb"), []
    try:
        while True:  # every other page of a kind, so that they do not merge
            kind = mmap.PROT_READ if len(held) % 2 else mmap.PROT_READ | mmap.PROT_WRITE
            held.append(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=kind))
    except OSError:
        pass
    try:
        ov.allocate_disk_backed((1 << 26,), torch.uint8, required=True)
        print("mapped")
    except OSError as error:
        del held
        print(type(error).__name__, error.errno, "max_map_count" in str(error))
    """
    place = tmp_path / "spill"
    env = {"OVERSPILL_DIR": str(place), "OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
    result = run_python(script, env=env).check()
    assert result.stdout.split() == ["MappingError", str(errno.ENOMEM), "True"]
    assert spill_files(place) == []


def test_the_limit_on_address_space_for_real(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    script = """
    import os, resource, torch
    import overspill as ov
    from overspill.tensors.shared_memory import shared_storage
    ov.prepare_spill_dir()
    torch.ones(9).sum()
    size = 1 << 30
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + size // 2, -1))
    opened = lambda: len(os.listdir("/proc/self/fd"))
    def refused(call):
        before = opened()
        for _ in range(3):
            try:
                call()
                print("mapped")
            except (OSError, MemoryError) as error:
                print(type(error).__name__, error.errno, "ulimit -v" in str(error))
        print(opened() - before)
    refused(lambda: ov.allocate_disk_backed((size,), torch.uint8, required=True))
    refused(lambda: shared_storage(size))
    torch.multiprocessing.set_sharing_strategy("file_system")
    refused(lambda: shared_storage(size))
    """
    place = tmp_path / "spill"
    names = set(Path("/dev/shm").iterdir())
    env = {"OVERSPILL_DIR": str(place), "OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
    result = run_python(script, env=env).check()
    disk, memory = (f"{kind} {errno.ENOMEM} True" for kind in ("MappingError", "NoRoomError"))
    told = [*[disk] * 3, "0", *[memory] * 3, "0", *[memory] * 3, "0"]
    assert result.stdout.splitlines() == told
    assert spill_files(place) == [] and set(Path("/dev/shm").iterdir()) <= names


@requires("memory_cgroup")
def test_spilling_needs_no_second_copy_under_a_hard_limit(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    script = """
    import sys, torch
    import overspill as ov
    base = torch.empty(1 << 27, dtype=torch.int16)  # 256 MiB
    base.view(-1, 1 << 20).copy_(torch.arange(1 << 20).to(torch.int16))
    source = base.view(1 << 12, 1 << 15)[:, ::2].t()  # not contiguous: 128 MiB
    for tensor in (base, source):
        spilled = ov.spill_tensor_to_disk(tensor, required=True)
        assert spilled.shape == tensor.shape
        step = 1 << 8
        for start in range(0, len(tensor), max(step, len(tensor) // 64)):
            assert torch.equal(spilled[start : start + step], tensor[start : start + step])
    print("done")
    """
    place = tmp_path / "spill"
    env = {"OVERSPILL_DIR": str(place), "OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
    result = run_python(script, limit_bytes=512 << 20, env=env).check()
    assert result.stdout.split() == ["done"]
    assert result.kills == 0
    # torch itself takes about 160 MiB, the source 256; a second copy would take 128 more.
    assert result.peaks.anon_bytes < (256 + 160 + 64) << 20
