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
    borrowed_queue,
    fill_requests,
    has_queue,
    read_memory,
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
    held.close()


def wait_for_all(queue: ReadQueue) -> None:
    while queue.in_flight:
        queue.wait(queue.in_flight)


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
    wait_for_all(queue)
    assert queue.in_flight == 0 and queue.submit(pointers[taken:]) == PAGES - DEPTH
    wait_for_all(queue)
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
    with borrowed_queue() as first:
        pass
    with borrowed_queue() as again, borrowed_queue() as other:
        assert again is first and other is not first
    pid = os.fork()
    if pid == 0:
        with borrowed_queue() as mine:
            os._exit(0 if mine not in (first, other) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_queue_whose_span_was_broken_off_serves_nobody_again(file: tuple[int, bytes]) -> None:
    with pytest.raises(KeyboardInterrupt), borrowed_queue() as broken:
        requests, pointers = requests_for(file[0], [0], read_memory(PAGE))
        broken.submit(pointers)
        broken.in_flight = 0  # as if the handler had run before it was written down
        raise KeyboardInterrupt
    with pytest.raises(OSError):
        broken.submit(pointers)  # the kernel knows it no more, and has not given its number again
    with borrowed_queue() as queue:
        assert queue is not broken
    del requests


def test_nobody_gets_a_queue_that_has_reads_in_flight(file: tuple[int, bytes]) -> None:
    with borrowed_queue() as left:
        requests, pointers = requests_for(file[0], [0], read_memory(PAGE))
        left.submit(pointers)
    with borrowed_queue() as queue:
        assert queue is not left
    del requests


def test_memory_to_read_into_is_nobody_elses() -> None:
    memory = read_memory(3 * PAGE)
    assert memory.nbytes == 3 * PAGE and memory.ctypes.data % PAGE == 0
    memory[:] = 7
    found = Path("/proc/self/smaps").read_text().split(f"{memory.ctypes.data:x}-", 1)[1]
    flags = next(line for line in found.splitlines() if line.startswith("VmFlags:")).split()
    assert "dc" in flags and "sh" not in flags  # not copied by a fork, not shared


def test_whether_a_queue_is_to_be_had_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_queue()
    monkeypatch.setattr(aio, "_idle", [])
    Injected(monkeypatch, "syscall", errno.EAGAIN)
    assert not has_queue() and reads_asynchronously()


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
