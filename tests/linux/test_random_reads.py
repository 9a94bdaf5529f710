from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confined import make_cold
from overspill.errors import DiskRefusedError, InputError, StaleFileError
from overspill.linux import aio, random_reads
from overspill.linux.cache import cached_bytes
from overspill.linux.device_reads import device_bytes_read
from overspill.linux.random_reads import BLOCK_BYTES, RandomReads, read_randomly

BLOCKS = 3000
ALWAYS = 60.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random") / "data.bin"
    path.write_bytes(np.random.default_rng(2).bytes(BLOCKS * BLOCK_BYTES + 100))
    make_cold(path)
    return path


@pytest.fixture(params=["asynchronous", "threads"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "threads":
        monkeypatch.setattr(random_reads, "reads_asynchronously", lambda: False)
    return str(request.param)


def test_every_block_is_read_once_and_none_stays_cached(data: Path, way: str) -> None:
    before = device_bytes_read() or 0
    found = read_randomly(data, seconds=ALWAYS)
    assert (found.count, found.way, found.direct) == (BLOCKS, way, True)
    read = (device_bytes_read() or 0) - before  # a module that is imported meanwhile is among it
    assert 0 <= read - BLOCKS * BLOCK_BYTES < BLOCKS * BLOCK_BYTES // 2
    assert cached_bytes(data) == 0
    assert 0 < found.seconds < ALWAYS and found.per_second == found.count / found.seconds


def test_it_ends_with_the_time(data: Path, way: str) -> None:
    found = read_randomly(data, seconds=0.0, depth=16)
    assert found.count == 0


def test_the_first_bytes_are_left_out(data: Path, way: str) -> None:
    found = read_randomly(data, seconds=ALWAYS, start=1000 * BLOCK_BYTES)
    assert found.count == BLOCKS - 1000


@pytest.mark.parametrize("depth", [1, 2, 7, 300, 1000])
def test_the_queue_holds_no_more_than_its_depth(
    data: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, places = [], []
    real = random_reads._Flight._ask

    def ask(self: Any, some: Any, offsets: Any) -> None:
        asked.extend(offsets.tolist())
        places.extend(some.tolist())
        real(self, some, offsets)
        assert self._queue.in_flight <= min(depth, aio.DEPTH)

    monkeypatch.setattr(random_reads._Flight, "_ask", ask)
    found = read_randomly(data, seconds=ALWAYS, depth=depth)
    assert found.count == BLOCKS
    assert sorted(asked) == [block * BLOCK_BYTES for block in range(BLOCKS)]
    assert asked != sorted(asked) and set(places) == set(range(min(depth, aio.DEPTH)))


def test_each_seed_has_its_order(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []

    def noted(_fd: int, offsets: Any, *_: Any) -> RandomReads:
        orders.append(offsets.tolist())
        return RandomReads(1, 1.0, "threads", True)

    monkeypatch.setattr(random_reads, "_read", noted)
    for seed in (1, 1, 2):
        read_randomly(data, seconds=ALWAYS, seed=seed)
    assert orders[0] == orders[1] != orders[2]


def test_where_the_kernel_gives_no_queue_threads_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(random_reads, "borrowed_queue", refuse)
    found = read_randomly(data, seconds=ALWAYS)
    assert (found.way, found.count) == ("threads", BLOCKS)


def test_without_direct_io_threads_read_through_the_cache(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_reads, "set_direct", lambda _fd, on: not on)
    found = read_randomly(data, seconds=ALWAYS)
    assert (found.way, found.direct, found.count) == ("threads", False, BLOCKS)
    make_cold(data)


def test_a_failed_read_is_named_and_nothing_stays_in_flight(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = []
    real = aio.ReadQueue.wait

    def wait(self: Any, least: int) -> tuple[Any, Any]:
        places, results = real(self, least)
        queues.append(self)
        results[0] = -errno.EIO
        return places, results

    monkeypatch.setattr(aio.ReadQueue, "wait", wait)
    with pytest.raises(DiskRefusedError) as caught:
        read_randomly(data, seconds=ALWAYS)
    assert caught.value.errno == errno.EIO and caught.value.path == str(data)
    with pytest.raises(OSError):
        queues[-1].submit(np.zeros(1, np.uint64))  # destroyed, once its last read had ended
    assert queues[-1] not in aio._idle


def test_a_file_cut_meanwhile_is_an_error_and_not_a_rate(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100 * BLOCK_BYTES))
    real = random_reads._borrowed

    def cut_first(*arguments: Any) -> Any:
        os.truncate(path, 0)
        return real(*arguments)

    monkeypatch.setattr(random_reads, "_borrowed", cut_first)
    with pytest.raises(DiskRefusedError):
        read_randomly(path, seconds=ALWAYS)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StaleFileError, match="gone"):
        read_randomly(tmp_path / "gone", seconds=1)
    (tmp_path / "small").write_bytes(bytes(100))
    with pytest.raises(InputError, match="4096"):
        read_randomly(tmp_path / "small", seconds=1)
