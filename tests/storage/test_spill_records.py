"""What a spill file says of itself: kept with it, and believed only where it can be true."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from overspill.storage.spill_records import (
    ATTRIBUTE,
    TensorRecord,
    record_tensor,
    recorded_tensor,
)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("record", "nbytes"),
    [
        (TensorRecord("float32", (1000, 64)), 256_000),
        (TensorRecord("float8_e4m3fn", (3,)), 3),
        (TensorRecord("complex128", ()), 16),
        (TensorRecord("int64", (0, 7)), 0),
    ],
)
def test_what_is_written_is_read_and_is_no_data(record: TensorRecord, nbytes: int, fd: int) -> None:
    os.ftruncate(fd, nbytes)
    before = os.fstat(fd)
    assert record_tensor(fd, record)
    assert recorded_tensor(fd, nbytes) == record
    after = os.fstat(fd)
    # In the inode: no block more, no byte more.
    assert (after.st_blocks, after.st_size) == (before.st_blocks, before.st_size)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"float32",  # as a scalar it would have 4 bytes
        b"float32 10 11",
        b"float32 -10 -10",
        b"float32 10 10 ",
        b"float32  10 10",
        b"\x1b[31mfloat32 10 10",
        b"float32\n10 10",
        b"Float32 10 10",
        b"\xff 10 10",
        "float32 \N{ARABIC-INDIC DIGIT ONE}0 10".encode(),
        b"float32 " + b"1 " * 65 + b"100",
        b"float32 " + b"9" * 1000,
        b"cos(system) 10 10",
        b"x" * 33 + b" 10 10",
    ],
)
def test_what_cannot_be_true_is_not_believed(text: bytes, fd: int) -> None:
    os.setxattr(fd, ATTRIBUTE, text)
    assert recorded_tensor(fd, 400) is None
    os.setxattr(fd, ATTRIBUTE, b"float32 10 10")
    assert recorded_tensor(fd, 400) is not None
    assert recorded_tensor(fd, 401) is None


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSPC, errno.EPERM, errno.EDQUOT])
def test_without_attributes_nothing_is_recorded(
    number: int, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "setxattr", refuses)
    monkeypatch.setattr(os, "getxattr", refuses)
    assert not record_tensor(fd, TensorRecord("float32", (1,)))
    assert recorded_tensor(fd, 4) is None
    monkeypatch.delattr(os, "setxattr")
    monkeypatch.delattr(os, "getxattr")
    assert not record_tensor(fd, TensorRecord("float32", (1,)))
    assert recorded_tensor(fd, 4) is None


def test_a_shape_of_no_use_to_people_is_left_out(fd: int) -> None:
    assert not record_tensor(fd, TensorRecord("uint8", (1 << 60,) * 64))
    assert os.listxattr(fd) == []
