from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from linux.injection import Injected
from overspill.linux import aio
from overspill.linux.aio import (
    DEPTH,
    REQUEST_WORDS,
    ReadQueue,
    borrow_queue,
    fill_requests,
    give_back,
    reads_asynchronously,
)
from overspill.linux.direct import aligned_bytes

pytestmark = requires("aio")
PAGE = 4096
PAGES = DEPTH + 40


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    data = np.random.default_rng(1).bytes(PAGES * PAGE)
    (tmp_path / "data").write_bytes(data)
    fd = os.open(tmp_path / "data", os.O_RDONLY | os.O_DIRECT)
    yield fd, data
    os.close(fd)


@pytest.fixture
def queue() -> Iterator[ReadQueue]:
    held = ReadQueue()
    yield held
    held.drain()
    held.close()


def requests_for(fd: int, pages: list[int], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    requests = np.empty((len(pages), REQUEST_WORDS), np.uint64)
    places = np.arange(len(pages)) * PAGE
    fill_requests(
        requests,
        fd=fd,
        offsets=np.array(pages) * PAGE,
        lengths=np.full(len(pages), PAGE),
        addresses=memory.ctypes.data + places,
        first_number=7,
    )
    steps = np.arange(len(pages), dtype=np.uint64) * np.uint64(requests.strides[0])
    return requests, np.uint64(requests.ctypes.data) + steps


def test_pages_are_read_whatever_their_order(file: tuple[int, bytes], queue: ReadQueue) -> None:
    fd, data = file
    pages, memory = [5, 0, PAGES - 1, 17], aligned_bytes(4 * PAGE)
    requests, pointers = requests_for(fd, pages, memory)
    assert queue.submit(pointers) == 4 and queue.in_flight == 4
    numbers, results = [], []
    while queue.in_flight:
        some = queue.wait(1)
        numbers += some[0].tolist()
        results += some[1].tolist()
    assert sorted(numbers) == [7, 8, 9, 10] and results == [PAGE] * 4
    assert memory.tobytes() == b"".join(data[p * PAGE : (p + 1) * PAGE] for p in pages)
    del requests


def test_a_full_queue_takes_no_more(file: tuple[int, bytes], queue: ReadQueue) -> None:
    fd, data = file
    memory = aligned_bytes(PAGES * PAGE)
    requests, pointers = requests_for(fd, list(range(PAGES)), memory)
    taken = 0
    while taken < DEPTH:
        taken += queue.submit(pointers[taken:])
    assert taken == queue.in_flight == DEPTH and queue.submit(pointers[taken:]) == 0
    queue.drain()
    assert queue.in_flight == 0 and queue.submit(pointers[taken:]) == PAGES - DEPTH
    queue.drain()
    assert memory.tobytes() == data
    del requests


def test_a_read_that_fails_tells_its_errno(queue: ReadQueue, file: tuple[int, bytes]) -> None:
    fd, _ = file
    memory = aligned_bytes(2 * PAGE)
    requests, pointers = requests_for(fd, [0], memory[8:])  # not aligned
    try:
        queue.submit(pointers)
    except OSError as error:
        assert error.errno == errno.EINVAL
    else:
        assert queue.wait(1)[1].tolist() == [-errno.EINVAL]
    del requests


def test_a_queue_is_used_again_but_not_by_a_forked_child() -> None:
    first = borrow_queue()
    give_back(first)
    again = borrow_queue()
    assert again is first and borrow_queue() is not first
    give_back(again)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if borrow_queue() is not first else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EAGAIN])
def test_a_system_that_gives_none_says_so(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "_idle", [])
    reads_asynchronously.cache_clear()
    Injected(monkeypatch, "syscall", number)
    try:
        assert not reads_asynchronously()
    finally:
        reads_asynchronously.cache_clear()


def test_an_unknown_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reads_asynchronously.cache_clear()
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    try:
        assert not reads_asynchronously()
    finally:
        reads_asynchronously.cache_clear()
