"""Every method brings the asked-for pages in, in requests that the kernel does not cut off."""

from __future__ import annotations

import errno
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capabilities import requires
from confined import make_cold
from overspill.errors import MappingError, StaleFileError
from overspill.linux import fetch, libc
from overspill.linux.fetch import PageFetcher, fetch_method, split_ranges
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.pages import PAGE_BYTES, advise, resident_pages

pytestmark = requires("mincore")
METHODS = ["process_madvise", "fadvise", "pread"]
PAGES = 4000
NBYTES = PAGES * PAGE_BYTES - 1000
LARGEST = 128 << 10


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fetch") / "data.bin"
    path.write_bytes(np.random.default_rng(2).bytes(NBYTES))
    return path


@pytest.fixture
def cold(data: Path) -> Mapping:
    make_cold(data)
    mapping = map_file(data, nbytes=NBYTES)
    advise(mapping.address, mapping.nbytes, "random")
    return mapping


def ranges(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    firsts, counts = zip(*pairs, strict=True)
    return np.array(firsts, dtype=np.int64), np.array(counts, dtype=np.int64)


def settle(mapping: Mapping, wanted: np.ndarray) -> None:
    """Wait for the reads under way, by touching the pages that were asked for and no other."""
    assert int(np.asarray(mapping)[wanted * PAGE_BYTES].sum()) > 0


@pytest.mark.parametrize("method", METHODS)
def test_exactly_the_asked_pages_come_in(cold: Mapping, method: Any) -> None:
    firsts, counts = ranges((0, 1), (17, 3), (100, 700), (2000, 33), (PAGES - 1, 1))
    wanted = np.concatenate([np.arange(f, f + n) for f, n in zip(firsts, counts, strict=True)])
    assert PageFetcher(cold, method=method).request(firsts, counts) is None
    settle(cold, wanted)
    found = resident_pages(cold.address, cold.nbytes)
    assert np.flatnonzero(found).tolist() == wanted.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_thousands_of_single_pages(cold: Mapping, method: Any) -> None:
    """More than one call holds; each page on its own, as a gather asks."""
    firsts = np.arange(0, PAGES, 2, dtype=np.int64)[: 1024 + 7]
    before = major_faults()
    PageFetcher(cold, method=method).request(firsts, np.ones_like(firsts))
    settle(cold, firsts)
    assert np.flatnonzero(resident_pages(cold.address, NBYTES)).tolist() == firsts.tolist()
    # Without the request every touch would be a major fault of its own; the last few may still
    # be under way when touched.
    assert major_faults() - before < firsts.size // 2


def major_faults() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[9])


@pytest.mark.parametrize("method", METHODS)
def test_no_request_is_longer_than_the_kernel_serves(
    cold: Mapping, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    lengths: list[int] = []
    record_lengths(monkeypatch, lengths)
    PageFetcher(cold, method=method).request(*ranges((5, 1), (10, 3000)))
    assert max(lengths) == LARGEST
    assert sum(lengths) == 3001 * PAGE_BYTES


def record_lengths(monkeypatch: pytest.MonkeyPatch, lengths: list[int]) -> None:
    real_call, real_advise, real_read = libc.system_call, os.posix_fadvise, os.preadv

    def call(number: int, *arguments: int) -> int:
        assert arguments[2] <= 1024
        raw = (libc.ctypes.c_char * (arguments[2] * 16)).from_address(arguments[1]).raw
        lengths.extend(length for _, length in struct.iter_unpack("=QQ", raw))
        return real_call(number, *arguments)

    def posix_fadvise(fd: int, offset: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            lengths.append(length)
        real_advise(fd, offset, length, advice)

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        lengths.extend(len(buffer) for buffer in buffers)
        return real_read(fd, buffers, offset)

    monkeypatch.setattr(libc, "system_call", call)
    monkeypatch.setattr(os, "posix_fadvise", posix_fadvise)
    monkeypatch.setattr(os, "preadv", preadv)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 200)), max_size=30).map(
        lambda gaps: _disjoint(gaps)
    )
)
def test_split_ranges_covers_the_same_pages_in_order(pairs: list[tuple[int, int]]) -> None:
    firsts = np.array([first for first, _ in pairs], dtype=np.int64)
    counts = np.array([count for _, count in pairs], dtype=np.int64)
    pieces = split_ranges(firsts, counts)
    covered = [
        page for first, count in zip(*pieces, strict=True) for page in range(first, first + count)
    ]
    assert covered == [page for first, count in pairs for page in range(first, first + count)]
    assert all(1 <= count <= LARGEST // PAGE_BYTES for count in pieces[1])


def _disjoint(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    placed, at = [], 0
    for gap, count in gaps:
        placed.append((at + gap, count))
        at += gap + count
    return placed


@pytest.mark.parametrize("method", METHODS)
def test_nothing_asked_is_nothing_done(cold: Mapping, method: Any) -> None:
    none = np.empty(0, dtype=np.int64)
    PageFetcher(cold, method=method).request(none, none)
    assert not resident_pages(cold.address, NBYTES).any()


@pytest.mark.parametrize(
    "pairs", [[(-1, 1)], [(PAGES, 1)], [(PAGES - 1, 2)], [(3, 0)], [(0, 1), (2**50, 5)]]
)
def test_pages_outside_of_the_file_are_refused(cold: Mapping, pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(MappingError, match="outside the file"):
        PageFetcher(cold).request(*ranges(*pairs))


def test_arrays_that_do_not_go_together_are_refused(cold: Mapping) -> None:
    with pytest.raises(MappingError, match="do not go together"):
        PageFetcher(cold).request(np.zeros(2, dtype=np.int64), np.ones(3, dtype=np.int64))


def test_small_dtypes_do_not_overflow(cold: Mapping) -> None:
    pages = np.array([PAGES - 1], dtype=np.int16)
    PageFetcher(cold).request(pages, np.ones(1, dtype=np.uint8))
    settle(cold, np.array([PAGES - 1]))
    assert np.flatnonzero(resident_pages(cold.address, NBYTES)).tolist() == [PAGES - 1]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_the_probe_falls_back_where_the_call_is_barred(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def barred(*_: int) -> int:
        raise OSError(number, os.strerror(number))

    fetch_method.cache_clear()
    monkeypatch.setattr(libc, "system_call", barred)
    try:
        assert fetch_method() == "fadvise"
        monkeypatch.delattr(os, "posix_fadvise")
        fetch_method.cache_clear()
        assert fetch_method() == "pread"
    finally:
        fetch_method.cache_clear()


def test_a_right_withdrawn_after_the_probe_is_made_up_for_once(
    cold: Mapping, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def barred(*_: int) -> int:
        raise OSError(errno.EPERM, "barred")

    monkeypatch.setattr(libc, "system_call", barred)
    fetcher = PageFetcher(cold, method="process_madvise")
    for first in (40, 50):
        fetcher.request(*ranges((first, 2)))
    assert fetcher.method == "fadvise"
    assert len(caplog.records) == 1
    settle(cold, np.array([40, 41, 50, 51]))
    assert np.flatnonzero(resident_pages(cold.address, NBYTES)).tolist() == [40, 41, 50, 51]


def test_the_kernel_stopping_midway_does_not_end_the_request(
    cold: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells how many bytes it took; the piece it stopped at is left, the rest asked for."""
    asked: list[int] = []
    answers = [2 * PAGE_BYTES + LARGEST, 0, 3 * PAGE_BYTES]

    def partial(vectors: np.ndarray) -> int:
        asked.append(len(vectors))
        return answers.pop(0)

    monkeypatch.setattr(fetch, "_process_madvise", partial)
    PageFetcher(cold, method="process_madvise").request(
        *ranges((0, 2), (10, LARGEST // PAGE_BYTES), (100, 1), (200, 1), (300, 3))
    )
    # 5 pieces: 2 taken, the third failed; of the remaining 2 the first failed; the last taken.
    assert asked == [5, 2, 1]
    assert answers == []


def test_another_refusal_is_an_error(cold: Mapping, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.ENOMEM, "no")

    monkeypatch.setattr(libc, "system_call", refused)
    with pytest.raises(MappingError) as caught:
        PageFetcher(cold, method="process_madvise").request(*ranges((0, 1)))
    assert (caught.value.errno, caught.value.path) == (errno.ENOMEM, cold.path)


@pytest.mark.parametrize("method", ["fadvise", "pread"])
@pytest.mark.parametrize("change", ["removed", "replaced", "unreadable"])
def test_methods_that_open_the_file_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any, change: str
) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * PAGE_BYTES)
    fetcher = PageFetcher(map_file(path, nbytes=PAGE_BYTES), method=method)
    error: type[Exception] = StaleFileError
    if change == "unreadable":
        error = MappingError
        monkeypatch.setattr(fetch.os, "open", _denied)
    else:
        path.unlink()
    if change == "replaced":
        path.write_bytes(b"y" * PAGE_BYTES)
    with pytest.raises(error):
        fetcher.request(*ranges((0, 1)))


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")]
)
@pytest.mark.parametrize("method", ["process_madvise", "fadvise"])
def test_a_limit_on_open_files_is_told_as_such(
    cold: Mapping, monkeypatch: pytest.MonkeyPatch, method: Any, number: int, remedy: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    fetcher = PageFetcher(cold, method=method)
    monkeypatch.setattr(fetch.os, "pidfd_open" if method == "process_madvise" else "open", full)
    with pytest.raises(MappingError) as caught:
        fetcher.request(*ranges((0, 1)))
    assert caught.value.errno == number and remedy in (caught.value.remedy or "")


@pytest.mark.timeout(120)
def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * PAGE_BYTES)
    mapping = map_file(path, nbytes=PAGE_BYTES)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StaleFileError), fetch.reopened(mapping):
        pass


def _denied(*_: object) -> int:
    raise PermissionError(errno.EACCES, "denied")


def test_process_madvise_serves_a_file_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 10 * PAGE_BYTES)
    make_cold(path)
    mapping = map_file(path, nbytes=10 * PAGE_BYTES)
    path.unlink()
    PageFetcher(mapping, method="process_madvise").request(*ranges((2, 3)))
    settle(mapping, np.arange(2, 5))
    assert resident_pages(mapping.address, mapping.nbytes)[2:5].all()


@pytest.mark.parametrize("method", METHODS)
def test_a_forked_child_fetches_for_itself(cold: Mapping, method: Any) -> None:
    fetcher = PageFetcher(cold, method=method)
    fetcher.request(*ranges((1, 1)))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            fetcher.request(*ranges((500, 4)))
            settle(cold, np.arange(500, 504))
            code = 0 if resident_pages(cold.address, NBYTES)[500:504].all() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_fetcher_does_not_pickle(cold: Mapping) -> None:
    with pytest.raises(MappingError, match="make a new one"):
        pickle.dumps(PageFetcher(cold))


def test_auto_takes_what_the_probe_found(cold: Mapping) -> None:
    assert PageFetcher(cold).method == fetch_method()
    assert fetch_method() in METHODS


def test_a_request_inside_a_memory_limit_survives(
    data: Path, run_python: Callable[..., Any]
) -> None:
    """Asking for more than the limit holds is harmless: clean pages are dropped again."""
    make_cold(data)
    result = run_python(
        """
        import sys
        import numpy as np
        from overspill.linux.fetch import PageFetcher
        from overspill.linux.mapping import map_file
        mapping = map_file(sys.argv[1], nbytes=int(sys.argv[2]))
        pages = -(-mapping.nbytes // 4096)
        for _ in range(20):
            PageFetcher(mapping).request(np.array([0]), np.array([pages]))
            np.asarray(mapping)[::4096].sum()
        """,
        arguments=[data, NBYTES],
        limit_bytes=40 << 20,
    )
    assert result.check().kills == 0
