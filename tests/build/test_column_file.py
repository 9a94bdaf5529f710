"""One column's bytes, as Arrow asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overspill.build.readers import column_file
from overspill.build.readers.column_file import PIECE_BYTES, ColumnFile
from overspill.build.readers.parquet_edges import ParquetTable
from overspill.build.readers.source import SourceFile

SIZE = 5 * PIECE_BYTES // 2


@pytest.fixture(name="content", scope="module")
def _content() -> bytes:
    return np.random.default_rng(0).bytes(SIZE)


@pytest.fixture(name="fd")
def _fd(content: bytes, tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def column(fd: int, *places: tuple[int, int]) -> closing[ColumnFile]:
    return closing(ColumnFile(fd, SIZE, places))


def test_every_read_is_that_of_the_file(fd: int, content: bytes) -> None:
    random = np.random.default_rng(1)
    with column(fd, (4, 70_000), (80_001, SIZE - 30)) as file:
        for start in [0, 4, 69_999, 70_000, 80_001, SIZE - 31, *random.integers(0, SIZE, 200)]:
            length = int(random.choice([0, 1, 5, 4096, 200_000, 2 * PIECE_BYTES]))
            assert file.seek(int(start)) == start
            assert file.read(length) == content[start : start + length]
            assert file.tell() == min(SIZE, start + length)


def test_positions_and_the_end(fd: int, content: bytes) -> None:
    with column(fd, (0, SIZE)) as file:
        assert file.seek(-8, os.SEEK_END) == SIZE - 8
        assert file.seek(4, os.SEEK_CUR) == SIZE - 4
        assert (file.read(100), file.read(100)) == (content[-4:], b"")
        file.seek(SIZE + 5)
        assert file.read() == b""
        file.seek(0)
        assert file.read() == content
        held = bytearray(10)
        file.seek(3)
        assert (file.readinto(held), bytes(held)) == (10, content[3:13])


def test_a_column_is_read_once_and_in_pieces(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    read = column_file.DirectReader.read

    def noted(self: column_file.DirectReader, offset: int, nbytes: int, memory: np.ndarray) -> int:
        asked.append((offset, nbytes))
        return read(self, offset, nbytes, memory)

    monkeypatch.setattr(column_file.DirectReader, "read", noted)
    first, last = (4, PIECE_BYTES + 10), (PIECE_BYTES + 20, PIECE_BYTES + 30)
    with column(fd, last, first) as file:
        for start, end in (first, last):
            file.seek(start)
            while file.tell() < end:
                file.read(min(1000, end - file.tell()))
    pieces = [(4, PIECE_BYTES), (PIECE_BYTES + 4, 6), (PIECE_BYTES + 20, 10)]
    assert asked == pieces


def test_the_next_piece_is_read_while_this_one_is_used(fd: int) -> None:
    with column(fd, (0, PIECE_BYTES), (PIECE_BYTES + 7, PIECE_BYTES + 9)) as file:
        file.read(1)
        assert file._coming is not None
        assert (file._coming.first, file._coming.nbytes) == (PIECE_BYTES + 7, 2)
        file.seek(PIECE_BYTES + 7)
        file.read(2)
        assert file._coming is None


def test_places_that_cannot_be(fd: int, content: bytes) -> None:
    with column(fd, (-5, 10), (SIZE - 5, SIZE + 1), (9, 9), (20, 10), (1 << 62, 1 << 63)) as file:
        file.seek(-0)
        assert file.read(50) == content[:50]


def test_a_file_that_was_cut_ends_there(fd: int, content: bytes) -> None:
    with column(fd, (0, SIZE)) as file:
        os.truncate(f"/proc/self/fd/{fd}", 1000)
        file.seek(900)
        assert file.read(300) == content[900:1000]


def test_the_descriptors_are_given_back(fd: int) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with column(fd, (0, SIZE)) as file:
        file.read(10)
        assert file.readable() and file.seekable()
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_numbers_come_in_larger_batches_than_text(tmp_path: Path) -> None:
    path = tmp_path / "edges.parquet"
    numbers = np.arange(300_000)
    table = pa.table({"src": numbers, "dst": numbers[::-1].copy(), "name": numbers.astype(str)})
    pq.write_table(table, path, row_group_size=250_000)
    read = ParquetTable(SourceFile.check(str(path)))
    found = [len(arrays[0]) for arrays, _ in read.batches(("src", "dst"), 1 << 30)]
    assert 1 << 17 < max(found) <= 240 << 10
    assert sum(found) == 300_000
    assert max(len(arrays[0]) for arrays, _ in read.batches(("name",), 1 << 30)) == 1 << 14
    ids = [chunk.ids for chunk in read.read(("src", "dst"), (), 1 << 30)]
    assert np.array_equal(np.concatenate([np.asarray(pair[0]) for pair in ids]), numbers)
    assert np.array_equal(np.concatenate([np.asarray(pair[1]) for pair in ids]), numbers[::-1])
