from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overspill.linux import direct
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, set_direct


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
