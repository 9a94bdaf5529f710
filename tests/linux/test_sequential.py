from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from confined import make_cold
from overspill.errors import DiskRefusedError, StaleFileError
from overspill.linux import sequential
from overspill.linux.cache import cached_bytes
from overspill.linux.sequential import read_sequentially, write_sequentially

from .injection import Injected

MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [1, 4096, 8 * MIB, 21 * MIB + 5])
def test_what_was_written_lies_on_the_disk_and_not_in_the_cache(
    tmp_path: Path, nbytes: int
) -> None:
    path, whole = tmp_path / "file", -(-nbytes // 4096) * 4096
    assert write_sequentially(path, nbytes, b"0123456789")
    assert cached_bytes(path) == 0
    held = path.read_bytes()
    # Each piece begins with the pattern anew.
    assert len(held) == whole and held[:10] == (b"0123456789" * 2)[: min(10, whole)]
    assert held.count(b"0123456789") >= whole // 10 - whole // (8 * MIB) - 1
    assert path.stat().st_blocks * 512 >= whole


def test_reading_reads_all_of_it_past_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(17 * MIB + 123))
    make_cold(path)
    assert read_sequentially(path) == 17 * MIB + 123
    assert cached_bytes(path) == 0


def test_reads_and_writes_are_in_flight_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = _meet(monkeypatch, "pwrite", 4)
    write_sequentially(tmp_path / "file", 32 * MIB, b"x")
    assert together() == 4
    together = _meet(monkeypatch, "preadv", 4)
    read_sequentially(tmp_path / "file")
    assert together() == 4


def _meet(monkeypatch: pytest.MonkeyPatch, name: str, count: int) -> Callable[[], int]:
    """Let no call go on before so many are there."""
    barrier, real = threading.Barrier(count), getattr(os, name)
    met: list[int] = []

    def call(*arguments: Any) -> int:
        barrier.wait(120)
        met.append(1)
        return int(real(*arguments))

    monkeypatch.setattr(sequential.os, name, call)

    def counted() -> int:
        monkeypatch.setattr(sequential.os, name, real)
        return len(met)

    return counted


def test_without_direct_io_it_goes_through_the_cache_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequential, "set_direct", lambda _fd, on: not on)
    assert not write_sequentially(tmp_path / "file", MIB, b"x")
    assert read_sequentially(tmp_path / "file") == MIB


def test_a_full_disk_names_what_was_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Injected(monkeypatch, "fallocate", errno.ENOSPC)
    with pytest.raises(DiskRefusedError) as caught:
        write_sequentially(tmp_path / "file", MIB, b"x")
    assert caught.value.needed_bytes == MIB and caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(("name", "act"), [("pwrite", "write"), ("preadv", "read")])
def test_an_error_of_the_device_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, act: str
) -> None:
    path = tmp_path / "file"
    if act == "read":
        path.write_bytes(bytes(MIB))

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sequential.os, name, fail)
    with pytest.raises(DiskRefusedError, match="cannot") as caught:
        write_sequentially(path, MIB, b"x") if act == "write" else read_sequentially(path)
    assert caught.value.errno == errno.EIO and caught.value.path == str(path)


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StaleFileError, match="gone"):
        read_sequentially(tmp_path / "gone")
    with pytest.raises(StaleFileError, match="gone"):
        write_sequentially(tmp_path / "gone" / "file", MIB, b"x")
    (tmp_path / "file").touch()
    with pytest.raises(DiskRefusedError, match="File exists"):
        write_sequentially(tmp_path / "file", MIB, b"x")
