"""Reads that fill what they were given, or say why not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from overspill.build.whole_reads import fill_from
from overspill.errors import StaleFileError


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "x").write_bytes(bytes(range(100)))
    opened = os.open(tmp_path / "x", os.O_RDONLY)
    yield opened
    os.close(opened)


def test_short_reads_go_on_where_they_stopped(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out, read = np.zeros(40, np.uint8), os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:7]], at))
    fill_from(fd, out, 30, path="x", remedy="r")
    assert out.tolist() == list(range(30, 70))


def test_a_file_that_ends_or_cannot_be_read_has_a_remedy(fd: int, tmp_path: Path) -> None:
    with pytest.raises(StaleFileError, match="x was cut while in use; remedy: make it again"):
        fill_from(fd, np.zeros(40, np.uint8), 61, path="x", remedy="make it again")
    unreadable = os.open(tmp_path / "x", os.O_WRONLY)
    try:
        with pytest.raises(StaleFileError, match="remedy: make it again") as caught:
            fill_from(unreadable, np.zeros(4, np.uint8), 0, path="x", remedy="make it again")
    finally:
        os.close(unreadable)
    assert (caught.value.errno, caught.value.path) == (errno.EBADF, "x")


def test_an_alignment_that_is_refused_once_is_given_up(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = os.preadv, []

    def strict(on: int, views: list[memoryview], at: int) -> int:
        if on < 0:
            raise OSError(errno.EINVAL, "alignment")
        return read(on, views, at)

    def other() -> int:
        asked.append(True)
        return fd

    monkeypatch.setattr(os, "preadv", strict)
    out = np.zeros(40, np.uint8)
    fill_from(-1, out, 10, path="x", remedy="r", unaligned=other)
    assert out.tolist() == list(range(10, 50)) and asked == [True]
    for unaligned in (None, lambda: -1):
        with pytest.raises(StaleFileError, match="alignment"):
            fill_from(-1, out, 10, path="x", remedy="r", unaligned=unaligned)
