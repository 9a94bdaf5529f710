"""Releasing page cache: the steps in order, the step that failed, and what must not be lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from overspill.linux import cache, libc
from overspill.linux.cache import ReleaseResult, cached_bytes, drop_cache, release_mapped
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.pages import PAGE_BYTES, resident_bytes

from .injection import Injected

pytestmark = requires("mincore")
NBYTES = 64 * PAGE_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "data.bin"
    made.write_bytes(b"d" * NBYTES)
    return made


def touched(path: Path, *, shared: bool = False) -> Mapping:
    mapping = map_file(path, nbytes=NBYTES, shared=shared)
    assert np.asarray(mapping).sum() == NBYTES * ord("d")
    return mapping


def test_dirty_pages_are_written_and_everything_is_dropped(path: Path) -> None:
    assert cached_bytes(path) == NBYTES
    assert drop_cache(path) == ReleaseResult(True, NBYTES, 0)
    assert path.read_bytes() == b"d" * NBYTES


def test_a_descriptor_does_as_well(path: Path) -> None:
    with path.open("rb") as opened:
        assert drop_cache(opened.fileno()).resident_after_bytes == 0
        assert cached_bytes(opened.fileno()) == 0


@pytest.mark.parametrize("shared", [False, True])
def test_a_mapped_file_is_released_and_stays_valid(path: Path, shared: bool) -> None:
    mapping = touched(path, shared=shared)
    # What the order is for: mapped pages are skipped silently by a drop alone.
    assert drop_cache(path).resident_after_bytes == NBYTES
    result = release_mapped(mapping.address, NBYTES, path, shared=shared)
    assert result == ReleaseResult(True, NBYTES, 0)
    assert bool(result)
    assert cached_bytes(path) == 0
    assert np.asarray(mapping).sum() == NBYTES * ord("d")


def test_writes_through_a_shared_mapping_reach_the_file(path: Path) -> None:
    mapping = touched(path, shared=True)
    np.asarray(mapping)[:] = ord("e")
    assert release_mapped(mapping.address, NBYTES, path, shared=True)
    assert path.read_bytes() == b"e" * NBYTES


def test_private_changes_are_the_only_copy_and_stay(path: Path) -> None:
    mapping = touched(path)
    view = np.asarray(mapping)
    for page in (0, 1, 7, 63):
        view[page * PAGE_BYTES] = page + 1
    result = release_mapped(mapping.address, NBYTES, path)
    assert result.completed
    assert result.resident_after_bytes == 4 * PAGE_BYTES
    assert [view[page * PAGE_BYTES] for page in (0, 1, 7, 63)] == [1, 2, 8, 64]
    assert path.read_bytes() == b"d" * NBYTES


def test_a_large_range_is_looked_up_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_PAGES_A_READ", 5)
    mapping = touched(path)
    view = np.asarray(mapping)
    view[4 * PAGE_BYTES] = view[5 * PAGE_BYTES] = 9
    result = release_mapped(mapping.address + 10, NBYTES - 20, path)
    assert (result.completed, result.resident_after_bytes) == (True, 2 * PAGE_BYTES)
    assert view[4 * PAGE_BYTES] == view[5 * PAGE_BYTES] == 9


def test_another_process_may_keep_pages(path: Path) -> None:
    """Completed is not evicted."""
    mapping = touched(path)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        np.asarray(mapping).sum()  # into this process's own page table
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    result = release_mapped(mapping.address, NBYTES, path)
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    for fd in (*ready, *go):
        os.close(fd)
    assert result.completed
    assert result.resident_after_bytes > 0
    assert release_mapped(mapping.address, NBYTES, path).resident_after_bytes == 0


def test_a_failed_write_back_skips_the_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    mapping = touched(path)
    monkeypatch.setattr(os, "fsync", refused)
    injected = Injected(monkeypatch, "madvise", None)
    result = release_mapped(mapping.address, NBYTES, path)
    assert not result
    assert (result.failed_step, result.resident_after_bytes) == ("write back", NBYTES)
    assert "the disk is gone" in str(result.reason)
    assert injected.calls == []


def test_a_failed_unmapping_skips_the_drop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = touched(path)
    Injected(monkeypatch, "madvise", errno.EINVAL)
    dropped: list[int] = []
    monkeypatch.setattr(cache, "_drop", dropped.append)
    result = release_mapped(mapping.address, NBYTES, path, shared=True)
    assert (result.completed, result.failed_step, dropped) == (False, "unmap", [])


def test_a_failed_drop_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "posix_fadvise", refused)
    assert drop_cache(path).failed_step == "drop"


def test_a_missing_file_fails_to_open(path: Path) -> None:
    mapping = touched(path)
    path.unlink()
    for result in (release_mapped(mapping.address, NBYTES, path), drop_cache(path)):
        assert (result.completed, result.failed_step) == (False, "open")
    assert resident_bytes(mapping.address, NBYTES) == NBYTES


def test_an_empty_file_has_nothing_to_release(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert drop_cache(path) == ReleaseResult(True, 0, 0)
    assert release_mapped(0, 0, path, shared=True).completed


def test_counting_leaves_no_mapping(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Injected(monkeypatch, "mincore", errno.EAGAIN)
    with pytest.raises(OSError, match="mincore"):
        cached_bytes(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert libc.SUPPORTED


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert not drop_cache(pipe)
