"""Pages are read whole or an error says why; nothing here may end by a signal."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confined import make_cold
from overspill.errors import MappingError, StaleFileError
from overspill.linux import libc, safe_read
from overspill.linux.fetch import PAGE_BYTES
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.safe_read import SafeReader, read_method

METHODS = ["process_vm_readv", "preadv"]
PAGES = 2600
NBYTES = PAGES * PAGE_BYTES - 1000


@pytest.fixture
def mapping(tmp_path: Path) -> Mapping:
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(2).bytes(NBYTES))
    return map_file(path, nbytes=NBYTES)


def ranges(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    firsts, counts = zip(*pairs, strict=True)
    return np.array(firsts, dtype=np.int64), np.array(counts, dtype=np.int64)


def expected(path: str, firsts: np.ndarray, counts: np.ndarray) -> bytes:
    data = Path(path).read_bytes()
    return b"".join(
        data[first * PAGE_BYTES : (first + count) * PAGE_BYTES]
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cold", [True, False])
def test_ranges_come_one_after_the_other(mapping: Mapping, method: Any, cold: bool) -> None:
    if cold:
        make_cold(Path(mapping.path))
    asked = ranges((0, 1), (17, 3), (100, 700), (2000, 33), (PAGES - 2, 2))
    out = np.zeros(int(asked[1].sum()) * PAGE_BYTES, dtype=np.uint8)
    SafeReader(mapping, method=method).read(*asked, out)
    assert out[:-1000].tobytes() == expected(mapping.path, *asked)


@pytest.mark.parametrize("method", METHODS)
def test_more_ranges_than_one_call_takes(mapping: Mapping, method: Any) -> None:
    firsts = np.arange(0, PAGES - 1, 2, dtype=np.int64)
    out = np.zeros(firsts.size * PAGE_BYTES, dtype=np.uint8)
    SafeReader(mapping, method=method).read(firsts, np.ones_like(firsts), out)
    assert out.tobytes() == expected(mapping.path, firsts, np.ones_like(firsts))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_asked_is_nothing_done(mapping: Mapping, method: Any) -> None:
    none = np.empty(0, dtype=np.int64)
    SafeReader(mapping, method=method).read(none, none, np.empty(0, dtype=np.uint8))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("left", [0, 3 * PAGE_BYTES, 1500 * PAGE_BYTES + 7])
def test_a_file_that_was_cut_is_an_error(mapping: Mapping, method: Any, left: int) -> None:
    os.truncate(mapping.path, left)
    firsts = np.arange(0, PAGES, 2, dtype=np.int64)
    out = np.zeros(firsts.size * PAGE_BYTES, dtype=np.uint8)
    with pytest.raises(StaleFileError, match="cut") as caught:
        SafeReader(mapping, method=method).read(firsts, np.ones_like(firsts), out)
    assert caught.value.path == mapping.path and caught.value.remedy


def test_a_cut_between_the_opening_and_the_read_is_an_error(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        os.truncate(mapping.path, 5 * PAGE_BYTES)
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    out = np.zeros(10 * PAGE_BYTES, dtype=np.uint8)
    with pytest.raises(StaleFileError, match=f"ends after {5 * PAGE_BYTES} of {NBYTES}"):
        SafeReader(mapping, method="preadv").read(*ranges((0, 10)), out)


def test_what_the_first_way_could_not_read_the_second_does(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stopped within the second range: that range and what follows is read again."""
    answers = [(3 + 1) * PAGE_BYTES]
    monkeypatch.setattr(safe_read, "_process_vm_readv", lambda vectors, out: answers.pop())
    reader = SafeReader(mapping, method="process_vm_readv")
    asked = ranges((5, 3), (20, 2), (40, 1))
    out = np.zeros(6 * PAGE_BYTES, dtype=np.uint8)
    reader.read(*asked, out)
    assert not out[: 3 * PAGE_BYTES].any()  # what the answer claimed
    assert out[3 * PAGE_BYTES :].tobytes() == expected(mapping.path, asked[0][1:], asked[1][1:])
    assert (reader.method, answers) == ("process_vm_readv", [])


@pytest.mark.parametrize("number", [errno.EFAULT, errno.ENOMEM])
def test_a_refusal_is_named_by_the_second_way(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(safe_read, "_process_vm_readv", refused)
    reader, out = SafeReader(mapping), np.zeros(PAGE_BYTES, dtype=np.uint8)
    reader.read(*ranges((9, 1)), out)
    assert out.tobytes() == expected(mapping.path, *ranges((9, 1)))
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(MappingError) as caught:
        reader.read(*ranges((9, 1)), out)
    assert (caught.value.errno, caught.value.path) == (errno.EIO, mapping.path)
    assert "dmesg" in str(caught.value)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_a_right_withdrawn_after_the_probe_is_made_up_for_once(
    mapping: Mapping,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    real = libc.call

    def barred(name: str, *arguments: Any) -> int:
        if name == "process_vm_readv":
            raise OSError(number, "barred")
        return real(name, *arguments)

    monkeypatch.setattr(libc, "call", barred)
    reader, out = SafeReader(mapping, method="process_vm_readv"), np.zeros(PAGE_BYTES, np.uint8)
    for first in (40, 50):
        reader.read(*ranges((first, 1)), out)
        assert out.tobytes() == expected(mapping.path, *ranges((first, 1)))
    assert reader.method == "preadv"
    assert len(caplog.records) == 1
    read_method.cache_clear()
    try:
        assert SafeReader(mapping).method == "preadv"
    finally:
        read_method.cache_clear()


def test_auto_takes_what_the_probe_found(mapping: Mapping) -> None:
    assert SafeReader(mapping).method == read_method() == "process_vm_readv"


def test_a_reader_does_not_pickle(mapping: Mapping) -> None:
    with pytest.raises(MappingError, match="make a new one"):
        pickle.dumps(SafeReader(mapping))


@pytest.mark.parametrize("method", METHODS)
def test_a_forked_child_reads_for_itself(mapping: Mapping, method: Any) -> None:
    reader = SafeReader(mapping, method=method)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            out = np.zeros(PAGE_BYTES, dtype=np.uint8)
            reader.read(*ranges((3, 1)), out)
            code = 0 if out.tobytes() == expected(mapping.path, *ranges((3, 1))) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
