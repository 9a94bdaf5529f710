"""What the page cache holds of a file: both ways agree, and what is hidden is not made up."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from overspill.linux import cachestat
from overspill.linux.cache import drop_cache
from overspill.linux.cachestat import CachedPages, cached_pages

from .injection import Injected

NBYTES = 100_001  # 24 pages and a part


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(NBYTES))
    os.fsync(fd)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("way", ["cachestat", "mincore"])
def test_what_is_present_is_counted(way: str, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "mincore":
        Injected(monkeypatch, "syscall", errno.ENOSYS)
    dirty = 0 if cached_dirty(file) is not None else None
    assert cached_pages(file) == CachedPages(NBYTES, dirty)
    drop_cache(file)
    assert cached_pages(file) == CachedPages(0, dirty)
    os.pread(file, 1, NBYTES - 1)
    held = cached_pages(file)
    assert held is not None and 0 < held.resident_bytes <= NBYTES


def cached_dirty(fd: int) -> int | None:
    held = cached_pages(fd)
    assert held is not None
    return held.dirty_bytes


def test_dirty_pages_are_told(file: int) -> None:
    if cached_dirty(file) is None:
        pytest.skip("this kernel has no cachestat")
    os.pwrite(file, b"x", 0)
    dirty = cached_dirty(file)
    assert dirty == 0 or 4096 <= (dirty or 0) <= NBYTES  # 0: it was written back at once
    os.fsync(file)
    assert cached_dirty(file) == 0


def test_no_mapping_is_made_where_the_kernel_counts(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cached_dirty(file) is None:
        pytest.skip("this kernel has no cachestat")
    mapped = Injected(monkeypatch, "mmap", None)
    cached_pages(file)
    assert mapped.calls == []


def test_what_the_kernel_hides_is_not_told(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Injected(monkeypatch, "syscall", errno.EPERM)
    monkeypatch.setattr(cachestat, "shows_residency", lambda path: False)
    assert cached_pages(file) is None


def test_a_file_that_cannot_be_mapped_is_not_told(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cachestat, "_counted", refuses)
    Injected(monkeypatch, "mmap", errno.ENOMEM)
    assert cached_pages(file) is None


def refuses(fd: int) -> tuple[int, int, int]:
    raise OSError(errno.ENOSYS, "no")
