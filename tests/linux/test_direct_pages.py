"""Pages come past the cache, whole and in order, or an error says why; nothing stays in flight."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from confined import make_cold
from linux.injection import Injected
from overspill.errors import MappingError, StaleFileError
from overspill.linux import aio
from overspill.linux.direct_pages import WINDOW_PAGES, DirectPages
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.pages import PAGE_BYTES, resident_pages
from overspill.linux.safe_read import SafeReader

pytestmark = requires("aio")
PAGES = 3 * WINDOW_PAGES + 100
NBYTES = PAGES * PAGE_BYTES - 1000


@pytest.fixture
def mapping(tmp_path: Path) -> Mapping:
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(2).bytes(NBYTES))
    make_cold(path)
    return map_file(path, nbytes=NBYTES)


def direct(mapping: Mapping) -> DirectPages:
    held = DirectPages(mapping, SafeReader(mapping))
    assert held.is_possible()
    return held


def windows(*given: tuple[list[int], list[int]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for firsts, counts in given:
        yield np.array(firsts), np.array(counts)


def all_pages() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, PAGES, WINDOW_PAGES):
        firsts = np.arange(first, min(first + WINDOW_PAGES, PAGES))
        yield firsts, np.ones_like(firsts)


def read_all(pages: DirectPages) -> bytes:
    found = [memory.copy() for memory in pages.read(all_pages())]
    return np.concatenate(found)[:NBYTES].tobytes()


def test_ranges_come_window_by_window(mapping: Mapping) -> None:
    data = Path(mapping.path).read_bytes()
    asked = [([0, 17], [1, 3]), ([100], [700]), ([2000, 2001, PAGES - 2], [1, 33, 2])]
    for memory, (firsts, counts) in zip(direct(mapping).read(windows(*asked)), asked, strict=True):
        expected = b"".join(
            data[first * PAGE_BYTES : (first + count) * PAGE_BYTES]
            for first, count in zip(firsts, counts, strict=True)
        )
        assert memory[: len(expected)].tobytes() == expected


def test_more_windows_than_there_is_memory_for(mapping: Mapping) -> None:
    assert read_all(direct(mapping)) == Path(mapping.path).read_bytes()


@requires("mincore")
def test_nothing_is_left_in_the_page_cache(mapping: Mapping) -> None:
    for _ in direct(mapping).read(all_pages()):
        pass
    assert not resident_pages(mapping.address, mapping.nbytes).any()


def test_nothing_asked_is_nothing_done(mapping: Mapping) -> None:
    assert list(direct(mapping).read(windows())) == []


def test_who_stops_in_the_middle_leaves_nothing_in_flight(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "_idle", [])
    reading = direct(mapping).read(all_pages())
    next(reading)
    assert aio._idle == []
    reading.close()
    assert [queue for queue in aio._idle if queue.in_flight] == []
    assert read_all(direct(mapping)) == Path(mapping.path).read_bytes()


@pytest.mark.parametrize("left", [0, 3 * PAGE_BYTES, 1500 * PAGE_BYTES + 7])
def test_a_file_that_was_cut_is_an_error(mapping: Mapping, left: int) -> None:
    reading = direct(mapping).read(all_pages())
    next(reading)
    os.truncate(mapping.path, left)
    with pytest.raises(StaleFileError) as caught:
        for _ in reading:
            pass
    assert caught.value.path == mapping.path and caught.value.remedy


def test_a_file_that_was_replaced_is_an_error(mapping: Mapping) -> None:
    Path(mapping.path).rename(mapping.path + ".old")
    Path(mapping.path).write_bytes(bytes(NBYTES))
    with pytest.raises(StaleFileError, match="replaced"):
        read_all(direct(mapping))


def test_a_disk_that_refuses_is_named(mapping: Mapping, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, real = direct(mapping), aio.ReadQueue.wait

    def wait(queue: aio.ReadQueue, least: int) -> tuple[np.ndarray, np.ndarray]:
        numbers, results = real(queue, least)
        return numbers, np.where(numbers == 5, -errno.EIO, results)

    def read(*_: object) -> None:
        raise MappingError("the disk refused", path=mapping.path, errno=errno.EIO)

    monkeypatch.setattr(aio.ReadQueue, "wait", wait)
    monkeypatch.setattr(SafeReader, "read", read)
    with pytest.raises(MappingError, match="refused"):
        read_all(pages)


def test_a_read_that_failed_only_past_the_cache_is_made_through_it(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, real = direct(mapping), aio.ReadQueue.wait

    def wait(queue: aio.ReadQueue, least: int) -> tuple[np.ndarray, np.ndarray]:
        numbers, results = real(queue, least)
        return numbers, np.full_like(results, -errno.EINVAL)

    monkeypatch.setattr(aio.ReadQueue, "wait", wait)
    assert read_all(pages) == Path(mapping.path).read_bytes()
    assert not pages.is_possible()


def test_a_submission_that_is_refused_is_made_through_the_cache(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(_queue: aio.ReadQueue, _pointers: np.ndarray) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(aio.ReadQueue, "submit", submit)
    assert read_all(direct(mapping)) == Path(mapping.path).read_bytes()


@pytest.mark.parametrize("name", ["submit", "wait"])
@pytest.mark.parametrize("call", [1, 2, 4])
def test_an_interrupt_before_a_call_is_written_down_spoils_no_later_read(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    """As a signal's handler raises: in Python, when the system call has returned."""
    data, real, left = Path(mapping.path).read_bytes(), getattr(aio.ReadQueue, name), [call]

    def interrupted(queue: aio.ReadQueue, *arguments: object) -> object:
        before = queue.in_flight
        found = real(queue, *arguments)
        left[0] -= 1
        if left[0] == 0:
            queue.in_flight = before
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(aio.ReadQueue, name, interrupted)
    pages = direct(mapping)
    with pytest.raises(KeyboardInterrupt):
        read_all(pages)
    for _ in range(3):
        assert read_all(pages) == data


def test_without_a_queue_it_is_not_possible_now(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = direct(mapping)
    monkeypatch.setattr(aio, "_idle", [])
    Injected(monkeypatch, "syscall", errno.EAGAIN)
    assert not pages.is_possible()
    # Who had asked before the others took them all reads through the cache.
    assert read_all(pages) == Path(mapping.path).read_bytes()
    monkeypatch.undo()
    assert pages.is_possible()


def test_a_file_system_without_direct_reads(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, real = direct(mapping), os.open

    def refusing(path: str, flags: int, *more: int, **options: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert read_all(pages) == Path(mapping.path).read_bytes()
    assert not pages.is_possible()


def test_threads_read_at_the_same_time_and_a_fork_takes_nothing_from_them(
    mapping: Mapping,
) -> None:
    pages, data = direct(mapping), Path(mapping.path).read_bytes()
    wrong: list[int] = []

    def check() -> None:
        for _ in range(4):
            if read_all(pages) != data:
                wrong.append(1)

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    for thread in threads:
        thread.join()
    assert wrong == []
