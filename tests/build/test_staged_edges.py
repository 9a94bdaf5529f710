"""Edges staged for parts and read again as one spool: in order, bounded, and held to what was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overspill.build.part_spec import StagedFile, StagedRows
from overspill.build.parting.row_stager import RowCursor, RowStager
from overspill.build.parting.split_owners import HashOwners, Owners, equal_ranges
from overspill.build.parting.staged_edges import EdgeStager, StageSizes
from overspill.build.parting.staged_rows import StagedRowSource
from overspill.build.parting.staged_store import StagedStore
from overspill.errors import DiskRefusedError, FormatError, StaleFileError
from parted import splitmix64

NODES, EDGES = 5000, 300_000


def edges_of(count: int = EDGES) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    ends = [rng.integers(0, NODES, count) for _ in range(2)]
    ends[1][rng.random(count) < 0.3] = 17  # a hub
    return [*ends, np.arange(count)]


def stage(place: Path, edges: list[np.ndarray], owners: Owners, *, ids: bool) -> list[StagedFile]:
    """Stage some edges; the files of the parts that got some, by their whole paths."""
    place.mkdir(exist_ok=True)
    with EdgeStager(
        lambda part: place / f"{part}", owners, sources=NODES, most_ids=EDGES if ids else None
    ) as stager:
        for first in range(0, len(edges[0]), 70_001):
            some = [ends[first : first + 70_001] for ends in edges]
            assert stager.add(some[0], some[1], some[2] if ids else None) == len(some[0])
        found = [file for file in stager.finish() if file is not None]
    return [replace(file, path=str(place / file.path)) for file in found]


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("owners", [equal_ranges(NODES, 3), HashOwners(NODES, 2)], ids=str)
def test_a_parts_edges_come_back_by_range_in_the_order_of_the_input(
    tmp_path: Path, owners: Owners, ids: bool
) -> None:
    edges = edges_of()
    half = [[ends[:100_000] for ends in edges], [ends[100_000:] for ends in edges]]
    first, second = (stage(tmp_path / f"{n}", part, owners, ids=ids) for n, part in enumerate(half))
    sizes = StageSizes.of(owners.num_parts)
    for part in range(owners.num_parts):
        if isinstance(owners, HashOwners):
            mine = np.array([splitmix64(node) % 2 == part for node in range(NODES)])[edges[1]]
            start, rows = 0, NODES
        else:
            start, end = int(owners.bounds[part]), int(owners.bounds[part + 1])
            mine, rows = (edges[1] >= start) & (edges[1] < end), end - start
        expected = np.stack(edges, 1)[mine] - [0, start, 0]
        shift = sizes.shift(rows)
        files = [first[part], second[part]]
        with StagedStore(files, shift=shift, edge_ids=ids, wide=False) as store:
            blocks = store.blocks()
            found = blocks.read()
        assert blocks.edges == mine.sum() and blocks.shift == shift
        order = np.argsort(expected[:, 1] >> shift, kind="stable")
        assert np.array_equal(found, expected[order][:, : 3 if ids else 2])


def test_more_parts_have_fewer_ranges_and_the_pool_stays() -> None:
    for parts in (1, 2, 16, 300, 900):
        sizes = StageSizes.of(parts)
        assert sizes.pool_bytes(parts) <= 96 << 20
        for rows in (0, 1, 7, 10**6, 2**40):
            assert (max(0, rows - 1) >> sizes.shift(rows)) < sizes.ranges


def test_an_edge_of_no_node_ends_the_taking(tmp_path: Path) -> None:
    with EdgeStager(lambda part: tmp_path / f"{part}", equal_ranges(10, 2), sources=10) as stager:
        assert stager.add(np.array([1, 2, 3]), np.array([4, 10, 5])) == 1
    assert list(tmp_path.iterdir()) == []  # what was not finished is gone


def test_what_an_attempt_that_was_killed_has_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"half")
    (file,) = stage(tmp_path, edges_of(10), equal_ranges(NODES, 1), ids=False)
    with StagedStore([file], shift=0, edge_ids=False, wide=False) as store:
        assert store.blocks().edges == 10


def test_no_directory_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskRefusedError, match="gone/0"),
        EdgeStager(lambda part: tmp_path / f"gone/{part}", equal_ranges(9, 1), sources=9) as stager,
    ):
        stager.add(np.array([1]), np.array([2]))
        stager.finish()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize(
    ("harm", "error"),
    [(Path.unlink, StaleFileError), (cut, StaleFileError), (overwrite, FormatError)],
)
def test_a_staged_file_that_was_changed_is_told(
    tmp_path: Path, harm: Callable[[Path], None], error: type[Exception]
) -> None:
    files = stage(tmp_path, edges_of(5000), equal_ranges(NODES, 2), ids=False)
    harm(Path(files[1].path))
    with (
        pytest.raises(error) as caught,
        StagedStore(files, shift=3, edge_ids=False, wide=False) as store,
    ):
        store.blocks()
    assert files[1].path in str(caught.value) and "remedy" in str(caught.value)


def test_rows_go_where_their_edges_go_once_a_part(tmp_path: Path) -> None:
    targets, sources = np.array([0, 9, 5, 1, 5]), np.array([9, 8, 5, 0, 0])
    ids, rows = np.arange(10, 15), np.arange(10, dtype=np.float32).reshape(5, 2)
    owners = equal_ranges(10, 2)
    with RowStager(lambda name, part: tmp_path / f"{part}{name}", owners, ("w",)) as stager:
        stager.add((targets, sources), ids, {"w": rows})
        assert stager.finish() == [3, 4]
    for part, wanted in ((0, [0, 3, 4]), (1, [0, 1, 2, 4])):
        held = StagedRows(
            dtype="float32",
            row_shape=(2,),
            paths=(str(tmp_path / f"{part}w"),),
            counts=(len(wanted),),
        )
        pieces = [piece.copy() for piece in StagedRowSource(held).pieces(16)]
        assert np.array_equal(np.concatenate(pieces), rows[wanted])
        kept = np.fromfile(tmp_path / f"{part}", np.int64)
        assert kept.tolist() == ids[wanted].tolist()


def test_rows_are_taken_in_other_pieces_than_they_come() -> None:
    cursor = RowCursor(iter([np.arange(3), np.arange(3, 4), np.arange(4, 10)]))
    taken = [cursor.take(count) for count in (2, 5, 0, 3)]
    assert [held.tolist() for held in taken if held is not None] == [
        [0, 1],
        [2, 3, 4, 5, 6],
        [],
        [7, 8, 9],
    ]
    assert cursor.take(1) is None
