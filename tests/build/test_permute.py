"""Gathers and inverses out of core, against plain indexing."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive_rows import MadeRows, building, content, cut, output, random_rows, same_bits
from overspill.build.moving.permute import (
    MissingPositionError,
    RepeatedPositionError,
    gather_rows,
    invert_permutation,
)
from overspill.build.passes.blocks import Blocks
from overspill.build.passes.partition import RangePartitioner
from overspill.build.remedies import DIRECTORY_ALONE, INPUTS_ALONE, REPORT
from overspill.errors import DiskRefusedError, FormatError, InputError
from overspill.storage.records import STORED_DTYPES

AT_ONCE, SOME, DEEP = 1 << 20, 1 << 11, 64


def source_of(rows: np.ndarray, dtype: str, size: int = 13) -> MadeRows:
    return MadeRows(len(rows), dtype, rows.shape[1:], lambda _: cut(rows, size))


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(sorted(STORED_DTYPES)),
    row_shape=st.sampled_from([(), (3,), (2, 5), (0,), (60,)]),
    count=st.integers(1, 80),
    wanted=st.integers(0, 120),
    skew=st.booleans(),
    index_type=st.sampled_from([np.int32, np.int64]),
    budget=st.sampled_from([AT_ONCE, SOME, DEEP]),
    seed=st.integers(0, 100),
)
def test_equal_to_indexing(
    dtype: str,
    row_shape: tuple[int, ...],
    count: int,
    wanted: int,
    skew: bool,
    index_type: type,
    budget: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(dtype, (count, *row_shape), seed)
    index = rng.integers(0, count, wanted).astype(index_type)
    if skew:
        index[rng.random(wanted) < 0.8] = count // 2
    told: list[int] = []
    with tempfile.TemporaryDirectory() as place, building(Path(place)) as directory:
        out = output(directory, dtype, (wanted, *row_shape), budget_bytes=budget)
        record = gather_rows(
            cut(index, seed + 1), source_of(rows, dtype), out, on_progress=told.append
        )
        assert same_bits(content(directory, record), rows[index])
    assert sum(told) == rows[index].nbytes


def test_a_second_level_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranges of 250 rows where two fit: each is partitioned again, down to single rows."""
    bases = set()
    enter = RangePartitioner.__enter__

    def spy(partitioner: RangePartitioner) -> RangePartitioner:
        bases.add(partitioner.base)
        return enter(partitioner)

    monkeypatch.setattr(RangePartitioner, "__enter__", spy)
    rows = random_rows("int64", (1000, 4))
    index = np.random.default_rng(0).permutation(1000)[:700]
    with building(tmp_path) as directory:
        out = output(directory, "int64", (700, 4), budget_bytes=300)
        record = gather_rows(cut(index, 90), source_of(rows, "int64"), out)
        assert same_bits(content(directory, record), rows[index])
    assert {256, 512, 768} < bases


@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
@pytest.mark.parametrize("wrong", [-1, 50, 2**40])
def test_an_index_out_of_range_names_its_place(tmp_path: Path, budget: int, wrong: int) -> None:
    index = np.arange(50)
    index[33] = wrong
    rows = random_rows("int32", (50, 2))
    with building(tmp_path) as directory:
        out = output(directory, "int32", (50, 2), budget_bytes=budget)
        with pytest.raises(InputError, match="not among 50") as caught:
            gather_rows(cut(index, 7), source_of(rows, "int32"), out)
        assert not (directory.path / out.path).exists()
    assert (caught.value.row, caught.value.value) == (33, str(wrong))
    assert caught.value.remedy == DIRECTORY_ALONE


@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
@pytest.mark.parametrize("length", [49, 51])
def test_an_index_of_another_length_is_refused(tmp_path: Path, budget: int, length: int) -> None:
    rows = random_rows("int32", (60, 2))
    with (
        building(tmp_path) as directory,
        pytest.raises(FormatError, match=f"{length} numbers.*{DIRECTORY_ALONE}"),
    ):
        out = output(directory, "int32", (50, 2), budget_bytes=budget)
        gather_rows(cut(np.arange(length), 7), source_of(rows, "int32"), out)


def test_scratch_files_that_something_else_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs that are cut a second time turn out to want rows that there are not."""
    read = Blocks.read
    monkeypatch.setattr(Blocks, "read", lambda blocks: read(blocks) - 1000)
    rows = random_rows("int32", (60, 2))
    with building(tmp_path) as directory:
        out = output(directory, "int32", (60, 2), budget_bytes=DEEP)
        with pytest.raises(FormatError, match="changed by something else") as caught:
            gather_rows(cut(np.arange(60), 7), source_of(rows, "int32"), out)
    assert (caught.value.path, caught.value.remedy) == (str(directory.path), DIRECTORY_ALONE)


@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
def test_a_source_that_ends_early_is_refused(tmp_path: Path, budget: int) -> None:
    rows = random_rows("int32", (60, 2))
    source = MadeRows(60, "int32", (2,), lambda _: cut(rows[:40], 7))
    with building(tmp_path) as directory:
        out = output(directory, "int32", (60, 2), budget_bytes=budget)
        with pytest.raises(FormatError, match="the rows ended after 40") as caught:
            gather_rows(cut(np.arange(60), 7), source, out)
    assert caught.value.remedy == INPUTS_ALONE


def test_rows_of_another_kind_are_refused(tmp_path: Path) -> None:
    source = source_of(random_rows("int32", (6, 2)), "int32")
    with building(tmp_path) as directory:
        for dtype, shape in (("int64", (6, 2)), ("int32", (6, 3)), ("int32", (6,))):
            with pytest.raises(FormatError, match=f"rows int32.*{REPORT}"):
                gather_rows(cut(np.arange(6), 7), source, output(directory, dtype, shape))


@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
@pytest.mark.parametrize("culprit", ["index", "source"])
def test_what_fails_is_closed_and_leaves_nothing(tmp_path: Path, budget: int, culprit: str) -> None:
    closed = []

    def failing(pieces: Iterator[np.ndarray], fails: bool) -> Iterator[np.ndarray]:
        try:
            yield next(pieces)
            if fails:
                raise InputError("damaged")
            yield from pieces
        finally:
            closed.append(True)

    rows = random_rows("int32", (60, 2))
    source = MadeRows(60, "int32", (2,), lambda _: failing(cut(rows, 7), culprit == "source"))
    with building(tmp_path) as directory:
        out = output(directory, "int32", (60, 2), budget_bytes=budget)
        with pytest.raises(InputError, match="damaged"):
            gather_rows(failing(cut(np.arange(60), 7), culprit == "index"), source, out)
        assert not (directory.path / out.path).exists()
    assert closed


@pytest.mark.parametrize("count", [100_000, 170_000])
def test_a_full_disk_is_refused_with_nothing_left(
    loop_disk: Callable[[int], Path], count: int
) -> None:
    """The pairs do not fit, or what is scattered."""
    disk = loop_disk(2 << 20)
    rows = np.zeros((count, 1), np.int32)
    with pytest.raises(DiskRefusedError) as caught, building(disk) as directory:
        out = output(directory, "int32", rows.shape, budget_bytes=1 << 18)
        gather_rows(cut(np.arange(count)[::-1], 9000), source_of(rows, "int32", 9000), out)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in disk.iterdir()] == ["lost+found"]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("count", [0, 1, 40, 900])
@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
def test_permutations_are_turned_around(
    tmp_path: Path, dtype: str, count: int, budget: int
) -> None:
    positions = np.random.default_rng(2).permutation(count).astype(np.int32)
    with building(tmp_path) as directory:
        out = output(directory, dtype, (count,), budget_bytes=budget)
        found = content(directory, invert_permutation(cut(positions, 70), out))
    assert found.dtype == dtype and np.array_equal(found, np.argsort(positions))


@pytest.mark.parametrize("budget", [AT_ONCE, DEEP])
def test_what_is_no_permutation_is_refused(tmp_path: Path, budget: int) -> None:
    with building(tmp_path) as directory:
        out = output(directory, "int32", (90,), budget_bytes=budget)
        with pytest.raises(RepeatedPositionError):
            invert_permutation(cut(np.arange(90) % 89, 7), out)
        with pytest.raises(MissingPositionError):
            invert_permutation(cut(np.arange(89), 7), out)
        with pytest.raises(InputError, match=f"row 90 has a position outside.*{DIRECTORY_ALONE}"):
            invert_permutation(cut(np.arange(91), 7), out)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", (5,)), ("uint8", (5,)), ("int8", (129,)), ("int32", (5, 1))]
)
def test_an_output_that_cannot_hold_places_is_refused(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    with (
        building(tmp_path) as directory,
        pytest.raises(FormatError, match=f"array of places.*{REPORT}"),
    ):
        invert_permutation(cut(np.arange(5), 7), output(directory, dtype, shape))
