from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.linux import direct
from overspill.linux.cache import cached_bytes
from overspill.linux.direct import (
    DIRECT_ALIGNMENT_BYTES,
    DirectReader,
    aligned_bytes,
    set_direct,
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def test_the_flag_goes_on_and_off_and_others_stay(opened: int) -> None:
    fcntl.fcntl(opened, fcntl.F_SETFL, os.O_APPEND)
    assert set_direct(opened, True) and is_direct(opened)
    with pytest.raises(OSError) as caught:  # the kernel holds it to the alignment
        os.pwrite(opened, b"x" * 10, 0)
    assert caught.value.errno == errno.EINVAL
    assert set_direct(opened, False) and not is_direct(opened)
    assert fcntl.fcntl(opened, fcntl.F_GETFL) & os.O_APPEND
    assert os.pwrite(opened, b"x" * 10, 0) == 10
    assert DIRECT_ALIGNMENT_BYTES % 4096 == 0


def test_a_file_system_without_it_says_so(opened: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def refusing(fd: int, command: int, *rest: Any) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, command, *rest)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    assert not set_direct(opened, True)


def test_a_system_without_it_says_so(opened: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "fcntl", None)
    assert not set_direct(opened, True)
    assert set_direct(opened, False)


def test_a_closed_descriptor_is_no_error(opened: int) -> None:
    spare = os.dup(opened)
    os.close(spare)
    assert not set_direct(spare, True)


def content_of(path: Path, nbytes: int) -> bytes:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return data


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    data = content_of(tmp_path / "file", 300_001)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd, data
    os.close(fd)


PLACES = [(0, 0), (0, 1), (0, 4096), (128, 4096), (4095, 2), (77_777, 100_000), (299_000, 1001)]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_parts_are_read_as_they_are(
    held: tuple[int, bytes], cached: bool, place: tuple[int, int]
) -> None:
    (fd, data), (offset, nbytes) = held, place
    if cached:
        os.pread(fd, len(data), 0)
    memory = aligned_bytes(nbytes + 2 * DIRECT_ALIGNMENT_BYTES)
    with DirectReader(fd) as reader:
        start = reader.read(offset, nbytes, memory)
    assert start == offset % DIRECT_ALIGNMENT_BYTES
    assert memory[start : start + nbytes].tobytes() == data[offset : offset + nbytes]


def test_a_part_beyond_the_end_is_an_error(held: tuple[int, bytes]) -> None:
    memory = aligned_bytes(3 * DIRECT_ALIGNMENT_BYTES)
    with DirectReader(held[0]) as reader, pytest.raises(EOFError):
        reader.read(299_000, 1002, memory)


@pytest.mark.requires("mincore")
def test_what_is_not_cached_is_not_brought_into_the_cache(held: tuple[int, bytes]) -> None:
    fd, _ = held
    if not set_direct(fd, True):
        pytest.skip("this file system has no direct reads")
    set_direct(fd, False)
    with DirectReader(fd) as reader:
        reader.read(0, 200_000, aligned_bytes(220_000))
        assert cached_bytes(fd) == 0
        os.pread(fd, 300_001, 0)
        calls: list[int] = []
        real = os.preadv
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "preadv", lambda f, *rest: calls.append(f) or real(f, *rest))
            reader.read(0, 200_000, aligned_bytes(220_000))
        assert set(calls) == {fd}


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_direct_reads_that_are_refused(
    held: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fd, data = held
    real = os.preadv

    def refuse(asked: int, *rest: Any) -> int:
        if asked != fd:
            raise OSError(number, "refused")
        return real(asked, *rest)

    memory = aligned_bytes(3 * DIRECT_ALIGNMENT_BYTES)
    with DirectReader(fd) as reader:
        if reader._direct < 0:
            pytest.skip("this file system has no direct reads")
        monkeypatch.setattr(os, "preadv", refuse)
        if number == errno.EINVAL:
            start = reader.read(5000, 4000, memory)
            assert memory[start : start + 4000].tobytes() == data[5000:9000]
        else:
            with pytest.raises(OSError, match="refused"):
                reader.read(5000, 4000, memory)


def test_without_direct_reads_the_cache_does_it(
    held: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, data = held
    monkeypatch.setattr(os, "open", refuse_to_open)
    with DirectReader(fd) as reader:
        memory = aligned_bytes(3 * DIRECT_ALIGNMENT_BYTES)
        start = reader.read(5000, 4000, memory)
    assert memory[start : start + 4000].tobytes() == data[5000:9000]


def refuse_to_open(*_: Any, **__: Any) -> int:
    raise OSError(errno.EINVAL, "no direct I/O")


@pytest.mark.parametrize("nbytes", [1, 4096, 100_000])
def test_aligned_memory_starts_at_a_page(nbytes: int) -> None:
    memory = aligned_bytes(nbytes)
    assert memory.nbytes == nbytes and memory.ctypes.data % DIRECT_ALIGNMENT_BYTES == 0
