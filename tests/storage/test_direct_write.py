from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.errors import DiskRefusedError
from overspill.linux.blocks import reserve_blocks
from overspill.linux.cache import cached_bytes
from overspill.storage import direct_write
from overspill.storage.direct_write import BUFFERED_BYTES, write_past_cache

BLOCK = 4096
SMALL_BUFFER = 16 * BLOCK
SIZES = [0, 1, BLOCK - 1, BLOCK, SMALL_BUFFER, 4 * SMALL_BUFFER, 9 * SMALL_BUFFER + BLOCK + 17]


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_write, "_BUFFER_BYTES", SMALL_BUFFER)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    # Whatever happened, the descriptor is an ordinary one again and no thread is left.
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
    assert not [t for t in threading.enumerate() if t.name.startswith("overspill")]
    os.close(fd)


def random_bytes(nbytes: int) -> np.ndarray:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)


def in_chunks(data: np.ndarray, chunk_bytes: int) -> Iterator[memoryview]:
    """Chunks in one staging buffer, gone as soon as the next is asked for."""
    staging = np.empty(chunk_bytes, dtype=np.uint8)
    for start in range(0, len(data), chunk_bytes):
        piece = data[start : start + chunk_bytes]
        staging[: len(piece)] = piece
        yield staging[: len(piece)].data
        staging[:] = 0


def write(fd: int, data: np.ndarray, chunk_bytes: int = 1 << 16) -> None:
    reserve_blocks(fd, len(data), path="file")
    write_past_cache(in_chunks(data, chunk_bytes), fd, path="file")


def write_lasting(fd: int, data: np.ndarray, chunk_bytes: int = 1 << 30) -> None:
    reserve_blocks(fd, len(data), path="file")
    pieces = [data[at : at + chunk_bytes].data for at in range(0, len(data), chunk_bytes)]
    write_past_cache(pieces, fd, path="file", lasting=True)


def held(fd: int) -> np.ndarray:
    nbytes = os.fstat(fd).st_size
    return np.frombuffer(os.pread(fd, nbytes, 0), dtype=np.uint8)


@pytest.mark.parametrize("writing", [write, write_lasting])
@pytest.mark.parametrize("chunk_bytes", [1 << 16, 3 * SMALL_BUFFER, 1 << 20, 10_007])
@pytest.mark.parametrize("nbytes", SIZES)
def test_every_byte_in_its_place_and_no_byte_more(
    nbytes: int, chunk_bytes: int, writing: Callable[..., None], opened: int
) -> None:
    data = random_bytes(nbytes)
    writing(opened, data, chunk_bytes)
    assert np.array_equal(held(opened), data)


def test_nothing_stays_cached_but_the_last_block(opened: int) -> None:
    write(opened, random_bytes(9 * SMALL_BUFFER + 17))
    assert cached_bytes(opened) <= 32 * BLOCK  # the last block, and what read-ahead found beside it


@pytest.mark.parametrize(("writing", "flying"), [(write, 3), (write_lasting, 4)])
def test_several_writes_are_in_flight(
    writing: Callable[..., None], flying: int, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(flying, timeout=60)
    pwrite = os.pwrite

    def meeting(*arguments: Any) -> int:
        together.wait()
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", meeting)
    data = random_bytes(2 * flying * SMALL_BUFFER)
    writing(opened, data)
    monkeypatch.undo()
    assert np.array_equal(held(opened), data)


@pytest.mark.parametrize("writing", [write, write_lasting])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("at", [1, 3, 9])
def test_a_write_that_fails_is_raised_once_all_are_done(
    at: int, number: int, writing: Callable[..., None], opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def failing(fd: int, data: memoryview, offset: int) -> int:
        if offset == (at - 1) * SMALL_BUFFER:
            raise OSError(number, os.strerror(number))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(DiskRefusedError) as caught:
        writing(opened, random_bytes(9 * SMALL_BUFFER))
    assert caught.value.errno == number and caught.value.remedy
    assert caught.value.needed_bytes == SMALL_BUFFER


def test_a_source_that_fails_leaves_nothing_running(opened: int) -> None:
    def broken() -> Iterator[memoryview]:
        yield random_bytes(3 * SMALL_BUFFER).data
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_past_cache(broken(), opened, path="file")


@pytest.mark.parametrize("refused_at", ["open", "first write", "short write"])
def test_without_direct_writes_it_goes_through_the_cache(
    refused_at: str, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    refusals = []

    def picky(fd: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refusals.append(offset)
            if refused_at == "first write":
                raise OSError(errno.EINVAL, "Invalid argument")
            return pwrite(fd, data[:BLOCK], offset)
        return pwrite(fd, data, offset)

    if refused_at == "open":
        monkeypatch.setattr(direct_write, "set_direct", lambda fd, on: not on)
    monkeypatch.setattr(os, "pwrite", picky)
    data = random_bytes(9 * SMALL_BUFFER + 5)
    write(opened, data)
    assert bool(refusals) == (refused_at != "open")
    assert np.array_equal(held(opened), data)


@pytest.mark.parametrize("writing", [write, write_lasting])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_without_threads_this_one_writes(
    threads: int, writing: Callable[..., None], opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(started) == threads:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    data = random_bytes(9 * SMALL_BUFFER + 5)
    writing(opened, data)
    assert len(started) <= threads
    assert np.array_equal(held(opened), data)


def test_what_is_buffered_is_what_is_said() -> None:
    assert BUFFERED_BYTES == 16 << 20
