"""Rows to their positions, against plain indexing, for every dtype, width, level and fault."""

from __future__ import annotations

import errno
import itertools
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive_rows import NARROW, building, content, cut_both, output, random_rows, same_bits
from overspill.build.moving.row_blocks import SpoolLimits, as_words, shape_spool
from overspill.build.moving.row_output import MissingPositionError, RepeatedPositionError, RowOutput
from overspill.build.moving.scatter import scatter_rows
from overspill.build.passes.spool import ScratchFile
from overspill.errors import DiskRefusedError, FormatError, InputError
from overspill.linux.cache import cached_bytes
from overspill.storage.records import STORED_DTYPES, numpy_view_dtype

AT_ONCE, ONE_LEVEL, DEEP = 1 << 20, 1 << 11, 64


def depth(out: RowOutput) -> int:
    """Levels of spools that an output takes; 0 where none is needed."""
    if out.count * (out.row_bytes + 8) <= out.memory_bytes // 2:
        return 0
    count, levels = out.count, 0
    while levels == 0 or count > out.bucket_rows:
        count = shape_spool(count, out.row_bytes, out.spool_limits(levels)).width
        levels += 1
    return levels


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(sorted(STORED_DTYPES)),
    row_shape=st.sampled_from([(), (1,), (3,), (2, 5), (0,), (4, 0), (40,), (200,)]),
    count=st.integers(0, 90),
    extra=st.integers(0, 10),
    piece=st.integers(1, 40),
    budget=st.sampled_from([AT_ONCE, ONE_LEVEL, DEEP]),
    seed=st.integers(0, 100),
)
def test_equal_to_indexing(
    dtype: str,
    row_shape: tuple[int, ...],
    count: int,
    extra: int,
    piece: int,
    budget: int,
    seed: int,
) -> None:
    rows = random_rows(dtype, (count, *row_shape), seed)
    positions = np.random.default_rng(seed).permutation(count + extra)[:count]
    positions[:: seed % 7 + 3] = -1
    kept = positions >= 0
    shape = (count + extra, *row_shape)
    wanted = np.zeros(shape, rows.dtype)
    wanted[:] = numpy_view_dtype(dtype).type(0)
    wanted[positions[kept]] = rows[kept]
    told: list[int] = []
    with tempfile.TemporaryDirectory() as place, building(Path(place)) as directory:
        out = output(directory, dtype, shape, budget_bytes=budget)
        pieces = cut_both(positions, rows, piece)
        result = scatter_rows(pieces, out, fill=0, on_progress=told.append)
        assert same_bits(content(directory, result.record), wanted)
    assert result.dropped == np.count_nonzero(~kept)
    assert result.missing == shape[0] - np.count_nonzero(kept)
    assert sum(told) == rows[:1].nbytes * shape[0] or not count
    assert all(done > 0 for done in told)


@pytest.mark.parametrize(
    ("count", "width", "budget", "levels"),
    [(40, 4, AT_ONCE, 0), (60, 4, ONE_LEVEL, 1), (1000, 4, ONE_LEVEL, 3), (3000, 1, 40, 6)],
)
def test_levels(tmp_path: Path, count: int, width: int, budget: int, levels: int) -> None:
    rows = random_rows("int32", (count, width))
    positions = np.random.default_rng(1).permutation(count)
    wanted = np.empty_like(rows)
    wanted[positions] = rows
    with building(tmp_path) as directory:
        out = output(directory, "int32", rows.shape, budget_bytes=budget)
        assert depth(out) == levels, "or the test tests something else"
        result = scatter_rows(cut_both(positions, rows, 50), out)
        assert same_bits(content(directory, result.record), wanted)
    assert (result.missing, result.dropped) == (0, 0)


@pytest.mark.parametrize("order", ["rising", "falling", "strided"])
def test_blocks_fill_in_any_order(tmp_path: Path, order: str) -> None:
    """Ten thousand rows: blocks become full, are written behind and used again."""
    count = 10_000
    positions = {
        "rising": np.arange(count),
        "falling": np.arange(count)[::-1],
        "strided": np.arange(count) * 7 % count,
    }[order]
    rows = random_rows("uint16", (count, 3))
    wanted = np.empty_like(rows)
    wanted[positions] = rows
    with building(tmp_path) as directory:
        out = output(directory, "uint16", rows.shape, budget_bytes=30_000)
        result = scatter_rows(cut_both(positions, rows, 333), out)
        assert same_bits(content(directory, result.record), wanted)


@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
def test_strided_and_unaligned_rows(tmp_path: Path, budget: int) -> None:
    data = random_rows("uint8", (60 * 8 * 2 + 1,))
    odd = data[1:].view(np.float64).reshape(60, 2)[:, :1]
    assert not odd.flags.aligned and not odd.flags.c_contiguous
    assert as_words(data[1:9].view(np.float64), 8).flags.aligned, "or a kernel is compiled for it"
    positions = np.arange(60)[::-1]
    with building(tmp_path) as directory:
        out = output(directory, "float64", (60, 1), budget_bytes=budget)
        result = scatter_rows(iter([(positions, odd)]), out)
        assert same_bits(content(directory, result.record), np.ascontiguousarray(odd[::-1]))


@pytest.mark.parametrize("width", [1, 40])
@pytest.mark.parametrize("budget", [AT_ONCE, ONE_LEVEL, DEEP])
@pytest.mark.parametrize("second", [1, 30, 59])
def test_a_repeated_position_names_both_rows(
    tmp_path: Path, width: int, budget: int, second: int
) -> None:
    positions = np.random.default_rng(second).permutation(80)[:60]
    positions[3], positions[second] = -1, positions[0]
    pieces = cut_both(positions, random_rows("int32", (60, width)), 7)
    with building(tmp_path) as directory:
        out = output(directory, "int32", (80, width), budget_bytes=budget)
        with pytest.raises(RepeatedPositionError, match=f"rows 0 and {second}") as caught:
            scatter_rows(pieces, out, fill=0)
        assert not (directory.path / out.path).exists()
    assert (caught.value.position, caught.value.rows) == (positions[0], (0, second))
    assert pickle.loads(pickle.dumps(caught.value)).rows == (0, second)


@pytest.mark.parametrize("budget", [ONE_LEVEL, DEEP])
@pytest.mark.parametrize("seed", range(4))
def test_more_rows_than_positions(tmp_path: Path, budget: int, seed: int) -> None:
    """A range overflows long before the input ends, which is never read whole."""
    positions = np.random.default_rng(seed).integers(0, 50, 100_000)
    read = []

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(positions), 10):
            read.append(start)
            yield positions[start : start + 10], np.zeros((10, 30), np.uint8)

    with building(tmp_path) as directory:
        out = output(directory, "uint8", (50, 30), budget_bytes=budget)
        with pytest.raises(RepeatedPositionError) as caught:
            scatter_rows(pieces(), out)
    assert caught.value.rows is not None
    first, other = np.flatnonzero(positions == caught.value.position)[:2]
    assert caught.value.rows == (first, other)
    assert len(read) < 1000


def test_without_a_trace_the_rows_are_not_told(tmp_path: Path) -> None:
    positions = np.arange(500) % 499
    with building(tmp_path) as directory:
        out = output(directory, "int64", (500,), budget_bytes=DEEP)
        with pytest.raises(
            RepeatedPositionError, match=r"two rows.*remedy: give each row"
        ) as caught:
            scatter_rows(iter([(positions, np.zeros(500, np.int64))]), out, traced=False)
    assert caught.value.position == 0 and caught.value.rows is None


@pytest.mark.parametrize("width", [1, 40])
@pytest.mark.parametrize("budget", [AT_ONCE, ONE_LEVEL, DEEP])
def test_missing_positions_are_counted(tmp_path: Path, width: int, budget: int) -> None:
    missing = [5, 17, 18, 79]
    positions = np.setdiff1d(np.arange(80), missing)[::-1]
    rows = random_rows("int32", (76, width))
    with building(tmp_path) as directory:
        out = output(directory, "int32", (80, width), budget_bytes=budget)
        with pytest.raises(
            MissingPositionError, match=r"4 positions have no row, 5 first.*remedy: give a row"
        ) as caught:
            scatter_rows(cut_both(positions, rows, 9), out)
        assert not (directory.path / out.path).exists()
        assert (caught.value.position, caught.value.missing) == (5, 4)
        assert pickle.loads(pickle.dumps(caught.value)).missing == 4
        filled = scatter_rows(cut_both(positions, rows, 9), out, fill=-3)
        found = content(directory, filled.record)
    assert filled.missing == 4 and np.all(found[missing] == -3)
    assert np.array_equal(found[positions], rows)


def test_a_repeated_position_is_told_before_a_missing_one(tmp_path: Path) -> None:
    positions = np.arange(500)
    positions[0] = 499
    with building(tmp_path) as directory, pytest.raises(RepeatedPositionError):
        out = output(directory, "int64", (500,), budget_bytes=DEEP)
        scatter_rows(iter([(positions, np.zeros(500, np.int64))]), out)


@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
@pytest.mark.parametrize("wrong", [-2, 60, 2**40, -(2**63)])
def test_a_position_out_of_range_names_its_row(tmp_path: Path, budget: int, wrong: int) -> None:
    positions = np.arange(60)
    positions[41] = wrong
    pieces = cut_both(positions, np.zeros((60, 1), np.int32), 8)
    with building(tmp_path) as directory:
        out = output(directory, "int32", (60, 1), budget_bytes=budget)
        with pytest.raises(InputError, match="row 41 has a position outside of the 60") as caught:
            scatter_rows(pieces, out)
    assert (caught.value.row, caught.value.value) == (41, str(wrong))


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((3, 2), np.int64),
        np.zeros((3, 3), np.int32),
        np.zeros((4, 2), np.int32),
        np.zeros((3, 2), ">i4"),
        np.zeros(6, np.int32),
    ],
)
def test_rows_of_another_kind_are_refused(tmp_path: Path, rows: np.ndarray) -> None:
    with (
        building(tmp_path) as directory,
        pytest.raises(FormatError, match=r"a\.safetensors: rows.*remedy: report"),
    ):
        scatter_rows(iter([(np.arange(3), rows)]), output(directory, "int32", (3, 2)))


def test_a_fill_that_does_not_fit_is_refused_first(tmp_path: Path) -> None:
    with building(tmp_path) as directory, pytest.raises(InputError, match="does not fit uint8"):
        scatter_rows(iter(()), output(directory, "uint8", (3,)), fill=256)


@pytest.mark.parametrize("width", [1, 40])
@pytest.mark.parametrize("budget", [AT_ONCE, ONE_LEVEL, DEEP])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_input_that_fails_is_closed_and_leaves_nothing(
    tmp_path: Path, width: int, budget: int, after: int
) -> None:
    closed = []

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        try:
            for number in range(after):
                yield np.array([number]), np.zeros((1, width), np.int32)
            raise InputError("the input is damaged")
        finally:
            closed.append(True)

    with building(tmp_path) as directory:
        out = output(directory, "int32", (60, width), budget_bytes=budget)
        with pytest.raises(InputError, match="damaged"):
            scatter_rows(pieces(), out)
        assert closed == [True] and not (directory.path / out.path).exists()


@pytest.mark.parametrize("kind", ["rows0", "rows1", "positions", "rows"])
def test_each_scratch_file_may_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    width = 40 if kind == "rows" else 1
    real = RowOutput.scratch

    def scratch(out: RowOutput, name: str) -> Path:
        path = real(out, name)
        if name == kind:
            path.mkdir()  # where the file should go
            blocked.append(path)
        return path

    blocked: list[Path] = []
    monkeypatch.setattr(RowOutput, "scratch", scratch)
    rows = np.zeros((300, width), np.int32)
    with pytest.raises(DiskRefusedError) as caught, building(tmp_path) as directory:
        try:
            out = output(directory, "int32", rows.shape, budget_bytes=DEEP)
            scatter_rows(cut_both(np.arange(300), rows, 9), out)
        finally:
            blocked[0].rmdir()
    assert caught.value.errno == errno.EEXIST


@pytest.mark.parametrize("nbytes", [700 << 10, 1200 << 10])
@pytest.mark.parametrize("width", [16, 300])
def test_a_full_disk_is_refused_with_nothing_left(
    loop_disk: Callable[[int], Path], nbytes: int, width: int
) -> None:
    """The smaller output is refused by its scratch file, the larger one by itself."""
    disk = loop_disk(2 << 20)
    count = nbytes // width // 4
    rows = np.zeros((count, width), np.int32)
    with pytest.raises(DiskRefusedError) as caught, building(disk) as directory:
        scatter_rows(
            cut_both(np.arange(count), rows, 1000),
            output(directory, "int32", rows.shape, budget_bytes=nbytes // 4),
        )
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in disk.iterdir()] == ["lost+found"]


def test_a_write_that_fails_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, numbers = np.zeros((300, 1), np.int32), itertools.count()

    def write_all(fd: int, data: Any, offset: int, *, path: str) -> None:
        if next(numbers) == 3:
            raise DiskRefusedError("no more", path=path, errno=errno.EIO)

    monkeypatch.setattr("overspill.build.moving.row_spool.write_all", write_all)
    with building(tmp_path) as directory, pytest.raises(DiskRefusedError, match="no more"):
        out = output(directory, "int32", rows.shape, budget_bytes=DEEP)
        scatter_rows(cut_both(np.arange(300), rows, 9), out)


@pytest.mark.requires("mincore")
@pytest.mark.parametrize("width", [16, 40_000])
def test_the_page_cache_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Ranges and wide rows alike: what was read of 32 MiB is no longer cached at the end."""
    cached: list[int] = []
    remove = ScratchFile.remove

    def spy(file: ScratchFile) -> None:
        if file.fd >= 0 and not file.path.name.endswith(".positions"):
            cached.append(cached_bytes(file.fd))
        remove(file)

    monkeypatch.setattr(ScratchFile, "remove", spy)
    count = (32 << 20) // width
    step = count // 30
    pieces = (
        (
            np.arange(start, min(count, start + step)),
            np.ones((step, width), np.uint8)[: count - start],
        )
        for start in range(0, count, step)
    )
    with building(tmp_path) as directory:
        out = output(directory, "uint8", (count, width), budget_bytes=2 << 20)
        scatter_rows(pieces, out)  # the positions are two windows of dirty pages at most
        assert cached_bytes(directory.path / out.path) <= 64 << 10
    assert cached and max(cached) <= 64 << 10


def test_shapes_of_spools_keep_their_limits() -> None:
    for count, row_bytes in itertools.product(
        [1, 10**3, 10**7, 10**9, 10**11], [0, 1, 4, 500, 9000]
    ):
        limits = SpoolLimits(512, 64 << 10, 30 << 20, max(1, (15 << 20) // (2 * row_bytes + 1)))
        shape = shape_spool(count, row_bytes, limits)
        blocks = shape.ranges + shape.spare_blocks
        assert shape.ranges <= 512 and blocks * shape.staged_bytes <= 1.1 * limits.pool_bytes
        assert shape.block_bytes % 4096 == 0
        used = shape.first_row_byte + shape.capacity * row_bytes
        assert used <= shape.block_bytes <= max(256 << 10, used + 4095)
        assert shape.ranges * shape.width >= count > (shape.ranges - 1) * shape.width
        assert (
            shape.nbytes
            <= 1.3 * count * (row_bytes + 4) + (2 << 20) + shape.ranges * shape.block_bytes
        )
        assert count <= limits.bucket_rows or shape.ranges > 1


def test_more_rows_than_a_spool_tells_apart_are_refused() -> None:
    with pytest.raises(FormatError, match=r"more than can be put in order.*raise memory_limit"):
        shape_spool(2**45, 1, SpoolLimits(4, 64, 64, 1 << 20))


def test_the_plan_gives_the_memory(tmp_path: Path) -> None:
    with building(tmp_path) as directory:
        out = output(directory, "int32", (5, 1))
        assert out.memory_bytes == 6 * 64 + 3 * 64
        assert output(directory, "int32", (5, 1), budget_bytes=9).memory_bytes == 9
        assert out.plan is NARROW
