"""Reserving, writing and writing back: real files, a real full disk, and every refusal."""

from __future__ import annotations

import errno
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from overspill.errors import DiskRefusedError, InputError
from overspill.linux import blocks, libc
from overspill.linux.blocks import (
    finish_writeback,
    free_blocks,
    reserve_blocks,
    start_writeback,
    write_all,
)
from overspill.linux.cache import cached_bytes
from overspill.linux.mounts import free_disk_bytes

from .injection import FlakyFunction, Injected

MIB = 1 << 20


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    path = tmp_path / "file.bin"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    yield fd, path
    os.close(fd)


def test_reserved_blocks_are_allocated_and_the_size_is_exact(opened: tuple[int, Path]) -> None:
    fd, path = opened
    reserve_blocks(fd, 3 * MIB + 5, path=str(path))
    held = path.stat()
    assert held.st_size == 3 * MIB + 5
    assert held.st_blocks * 512 >= 3 * MIB + 5


def test_nothing_to_reserve_is_no_call(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    injected = Injected(monkeypatch, "fallocate", errno.EINVAL)
    reserve_blocks(opened[0], 0, path="x")
    assert injected.calls == []


def test_reserving_less_than_the_file_holds_keeps_it(opened: tuple[int, Path]) -> None:
    fd, path = opened
    os.write(fd, b"abcdef")
    reserve_blocks(fd, 3, path=str(path))
    assert path.read_bytes() == b"abcdef"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EOPNOTSUPP, "can reserve"),
        (errno.ENOSYS, "can reserve"),
        (errno.EINVAL, "can reserve"),
        (errno.EIO, "health"),
        (errno.EPERM, "another directory"),
    ],
)
def test_each_refusal_says_what_and_what_to_do(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    fd, path = opened
    Injected(monkeypatch, "fallocate", number)
    with pytest.raises(DiskRefusedError) as caught:
        reserve_blocks(fd, 123 * MIB, path=str(path))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.errno, error.path, error.needed_bytes) == (number, str(path), 123 * MIB)
    assert remedy in error.remedy
    assert os.strerror(number) in str(error)
    if number in (errno.ENOSPC, errno.EDQUOT):
        assert error.available_bytes == pytest.approx(free_disk_bytes(path), rel=0.5)
    assert isinstance(error, OSError)
    assert path.stat().st_size == 0


def test_an_interrupted_call_is_made_again(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, path = opened
    reserve_blocks(fd, 1, path=str(path))  # binds the function
    flaky = FlakyFunction([errno.EINTR] * 3, libc._functions["fallocate"])
    monkeypatch.setitem(libc._functions, "fallocate", flaky)
    reserve_blocks(fd, MIB, path=str(path))
    assert flaky.calls == 4
    assert path.stat().st_size == MIB


def test_a_signal_handler_that_raises_gets_through_an_interrupted_call(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        signal.raise_signal(signal.SIGINT)
        libc.ctypes.set_errno(errno.EINTR)
        return -1

    monkeypatch.setitem(libc._functions, "fallocate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reserve_blocks(opened[0], 1, path="x")


@requires("loop_device")
def test_a_full_disk_refuses_before_anything_is_mapped(loop_disk: Callable[[int], Path]) -> None:
    disk = loop_disk(16 * MIB)
    free = free_disk_bytes(disk)
    path = disk / "big.bin"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(DiskRefusedError) as caught:
            reserve_blocks(fd, 10 * free, path=str(path))
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.needed_bytes == 10 * free
        # What ext4 had handed out before it ran out is back.
        assert path.stat().st_size == 0
        assert path.stat().st_blocks == 0
        assert free_disk_bytes(disk) == free
        reserve_blocks(fd, free // 2, path=str(path))  # and the file still works
    finally:
        os.close(fd)


@requires("loop_device")
def test_reserved_room_can_be_written_when_the_disk_is_full(
    loop_disk: Callable[[int], Path],
) -> None:
    disk = loop_disk(16 * MIB)
    reserved = os.open(disk / "reserved", os.O_RDWR | os.O_CREAT)
    filler = os.open(disk / "filler", os.O_RDWR | os.O_CREAT)
    try:
        reserve_blocks(reserved, 2 * MIB, path="reserved")
        with pytest.raises(DiskRefusedError) as caught:
            write_all(filler, bytes(32 * MIB), 0, path="filler")
        assert caught.value.errno == errno.ENOSPC
        write_all(reserved, b"r" * 2 * MIB, 0, path="reserved")
        os.fsync(reserved)
    finally:
        os.close(reserved)
        os.close(filler)


def test_a_file_too_big_for_its_limit_is_an_error_and_no_signal(
    run_python: Callable[..., object],
) -> None:
    result = run_python(
        """
        import os, resource
        from overspill.errors import DiskRefusedError
        from overspill.linux.blocks import reserve_blocks
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        fd = os.open(__file__ + ".bin", os.O_RDWR | os.O_CREAT)
        try:
            reserve_blocks(fd, 1 << 21, path="here")
        except DiskRefusedError as error:
            print(os.strerror(error.errno))
        """,
        fresh=True,
    )
    assert result.check().stdout.strip() == os.strerror(errno.EFBIG)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data",
    [
        b"some bytes",
        memoryview(b"0123456789")[2:7],
        np.arange(100_000, dtype=np.int64).reshape(100, 1000),
        np.arange(10, dtype=">i4"),
        np.array([1 + 2j, 3 - 4j], dtype=np.complex64),
        np.array(7.5, dtype=np.float16),
        np.zeros((3, 0)),
        np.array([True, False]),
    ],
    ids=["bytes", "view", "rows", "big-endian", "complex", "scalar", "empty", "bool"],
)
def test_write_all_writes_every_kind_of_buffer(
    opened: tuple[int, Path], data: bytes | memoryview | np.ndarray
) -> None:
    fd, path = opened
    write_all(fd, data, 3, path=str(path))
    wanted = data.tobytes() if not isinstance(data, bytes) else data
    assert path.read_bytes() == (b"\0" * 3 + wanted if wanted else b"")


@pytest.mark.parametrize("data", [np.zeros((4, 4)).T[1:], np.asfortranarray(np.ones((2, 3)))])
def test_write_all_refuses_to_reorder(opened: tuple[int, Path], data: np.ndarray) -> None:
    with pytest.raises(InputError, match="ascontiguousarray"):
        write_all(opened[0], data, 0, path="x")
    assert opened[1].stat().st_size == 0


def test_short_writes_are_carried_on(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, path = opened
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: real(f, data[:7], at))
    data = np.random.default_rng(0).bytes(1000)
    write_all(fd, data, 10, path=str(path))
    monkeypatch.undo()
    assert path.read_bytes()[10:] == data


def test_a_write_without_progress_ends(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(DiskRefusedError) as caught:
        write_all(opened[0], b"abc", 0, path="x")
    assert caught.value.errno == errno.EIO


def test_writing_to_a_file_opened_for_reading_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "read only"
    path.write_bytes(b"kept")
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(DiskRefusedError, match="open the file for writing"):
            write_all(fd, b"new", 0, path=str(path))
        with pytest.raises(DiskRefusedError, match="open the file for writing"):
            reserve_blocks(fd, MIB, path=str(path))
    finally:
        os.close(fd)
    assert path.read_bytes() == b"kept"


@requires("mincore")
def test_write_behind_leaves_no_cache(opened: tuple[int, Path]) -> None:
    fd, path = opened
    reserve_blocks(fd, 8 * MIB, path=str(path))
    write_all(fd, b"z" * 8 * MIB, 0, path=str(path))
    assert cached_bytes(fd) == 8 * MIB
    start_writeback(fd, 0, 4 * MIB)
    finish_writeback(fd, 0, 4 * MIB)
    assert cached_bytes(fd) == 4 * MIB
    finish_writeback(fd, 4 * MIB, 4 * MIB)
    assert cached_bytes(fd) == 0
    assert path.read_bytes() == b"z" * 8 * MIB


def test_writing_back_nothing_touches_nothing(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the kernel a length of 0 means all the rest of the file."""
    fd, path = opened
    write_all(fd, b"z" * MIB, 0, path=str(path))
    injected = Injected(monkeypatch, "sync_file_range", None)
    start_writeback(fd, 0, 0)
    finish_writeback(fd, 0, 0)
    assert injected.calls == []
    assert cached_bytes(fd) == MIB


def test_a_kernel_without_range_sync_syncs_the_file(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    Injected(monkeypatch, "sync_file_range", errno.ENOSYS)
    start_writeback(opened[0], 0, 10)
    finish_writeback(opened[0], 0, 10)
    assert synced == [opened[0]]


@pytest.mark.parametrize("act", [start_writeback, finish_writeback])
def test_a_failed_write_back_is_refused(
    opened: tuple[int, Path],
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[int, int, int], None],
) -> None:
    Injected(monkeypatch, "sync_file_range", errno.EIO)
    with pytest.raises(DiskRefusedError) as caught:
        act(opened[0], 0, 10)
    assert (caught.value.errno, caught.value.path) == (errno.EIO, str(opened[1]))


def test_a_closed_descriptor_is_refused() -> None:
    with pytest.raises(DiskRefusedError, match="descriptor 99999"):
        start_writeback(99999, 0, 10)
    assert blocks.refused(OSError(), "cannot", 99999, "x", None).errno == errno.EIO


def test_a_range_is_reserved_and_given_back_alone(opened: tuple[int, Path]) -> None:
    fd, path = opened
    os.truncate(path, 8 * MIB)
    os.pwrite(fd, b"a" * 5, 0)
    before = path.stat().st_blocks
    reserve_blocks(fd, 2 * MIB, path=str(path), offset=4 * MIB)
    assert path.stat().st_blocks - before >= 2 * MIB // 512
    os.pwrite(fd, b"b" * MIB, 4 * MIB)
    free_blocks(fd, 4 * MIB, 2 * MIB)
    assert path.stat().st_blocks == before and path.stat().st_size == 8 * MIB
    assert os.pread(fd, 5, 0) == b"aaaaa" and os.pread(fd, 5, 4 * MIB) == bytes(5)


def test_a_range_past_the_end_extends_the_file(opened: tuple[int, Path]) -> None:
    reserve_blocks(opened[0], 100, path="x", offset=5000)
    assert opened[1].stat().st_size == 5100


def test_blocks_that_cannot_be_given_back_stay(
    opened: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    injected = Injected(monkeypatch, "fallocate", errno.EOPNOTSUPP)
    free_blocks(opened[0], 0, 4096)
    assert len(injected.calls) == 1
    free_blocks(opened[0], 0, 0)
    assert len(injected.calls) == 1
