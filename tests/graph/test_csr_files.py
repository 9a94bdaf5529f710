"""The disk path as the plan chooses it: under a limit, with faults, and where there is no disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
from overspill.errors import DiskRefusedError, NoRoomError, StaleFileError
from overspill.graph import csr_columns, csr_homes
from overspill.graph.csr_columns import FileColumn, MemoryColumn
from overspill.graph.csr_plan import Shape, sizes_in_memory, sizes_within
from spilling import no_spill_dir, open_descriptors, spill_dir, spill_files

__all__ = ["no_spill_dir", "spill_dir"]
MIB = 1 << 20
EDGES, NODES = 1_000_000, 5000


@pytest.fixture(scope="module")
def edges() -> torch.Tensor:
    """Random edges, a third of them of one row."""
    made = torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(5))
    made[0, ::3] = 17
    return made


@pytest.mark.parametrize("sort", [True, False])
def test_under_a_limit_it_is_written_to_disk_and_equals_what_memory_gives(
    sort: bool, edges: torch.Tensor, spill_dir: Path
) -> None:
    weights = torch.rand(EDGES, 2)
    options: dict[str, Any] = {"edge_ids": True, "weights": weights, "sort_within_row": sort}
    with ov.settings(spill_dir=None):
        wanted = ov.build_csr(*edges, NODES, **options)
    ov.prepare_spill_dir()
    before = open_descriptors()
    found = ov.build_csr(*edges, NODES, memory_limit=20 * MIB, **options)
    assert open_descriptors() == before
    assert not any(ov.is_disk_backed(one) for one in wanted if one is not None)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    # The large ones; what was scratch is gone.
    assert all(ov.is_disk_backed(one) for one in found[1:])
    assert len(spill_files(spill_dir)) == sum(ov.is_disk_backed(one) for one in found)


def test_a_scatter_that_has_no_room_in_memory_goes_to_disk(
    edges: torch.Tensor, spill_dir: Path
) -> None:
    wanted = ov.build_csr(*edges, NODES)
    assert not ov.is_disk_backed(wanted.indices)
    with ov.settings(random_access_reserve_bytes=1 << 50):
        assert ov.plan_placement((EDGES,), torch.int32, random_access=True).home == "disk"
        found = ov.build_csr(*edges, NODES)
    assert ov.is_disk_backed(found.indices) and torch.equal(found.indices, wanted.indices)


def test_without_a_disk_the_error_names_both_remedies(
    edges: torch.Tensor, no_spill_dir: None
) -> None:
    with pytest.raises(NoRoomError, match="OVERSPILL_DIR") as caught:
        ov.build_csr(*edges, NODES, edge_ids=True, memory_limit=20 * MIB)
    assert caught.value.needed_bytes is not None


def test_a_limit_below_the_smallest_scratch_is_refused(
    edges: torch.Tensor, spill_dir: Path
) -> None:
    with pytest.raises(NoRoomError, match="memory_limit") as caught:
        ov.build_csr(*edges, NODES, memory_limit=2 * MIB)
    needed = caught.value.needed_bytes
    assert needed is not None and needed > 2 * MIB and spill_files(spill_dir) == []
    found = ov.build_csr(*edges, NODES, memory_limit=needed)
    assert int(found.indptr[-1]) == EDGES


@pytest.mark.parametrize("call", ["pwrite", "fsync", "preadv"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_disk_that_refuses_leaves_nothing(
    call: str, at: int, edges: torch.Tensor, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., int] = getattr(os, call)
    calls = []

    def failing(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) == at:
            raise OSError(errno.ENOSPC if call == "pwrite" else errno.EIO, "injected")
        return real(*arguments)

    ov.prepare_spill_dir()
    before = open_descriptors()
    monkeypatch.setattr(csr_columns.os, call, failing)
    with pytest.raises(DiskRefusedError):
        ov.build_csr(*edges, NODES, edge_ids=True, weights=edges[0], memory_limit=20 * MIB)
    monkeypatch.undo()
    assert len(calls) >= at
    assert spill_files(spill_dir) == [] and open_descriptors() == before


class TestColumns:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        (tmp_path / "column").write_bytes(np.arange(40, dtype=np.int32).tobytes())
        return tmp_path / "column"

    def test_a_file_is_read_and_written_in_pieces(self, path: Path) -> None:
        array = np.memmap(path, np.int32, "r+", shape=(20, 2))
        column = FileColumn(array, 3, str(path))
        assert column.load(5, 8).tolist() == [[10, 11], [12, 13], [14, 15]]
        made = column.target(0, 9)  # longer than usual
        made[:] = 7
        column.store(4, made)
        column.settle()
        column.close(synced=True)
        column.close(synced=True)
        assert array[3:14].ravel().tolist() == [6, 7, *[7] * 18, 26, 27]
        array._mmap.close()

    def test_in_memory_what_is_made_in_its_place_stays(self) -> None:
        column = MemoryColumn(np.arange(10), 4)
        held = column.load(2, 5)
        piece = column.target(2, 5)
        piece[:] = held[::-1]
        column.store(2, piece)
        column.scatter(8, np.array([50, 60]))
        assert column.array.tolist() == [0, 1, 4, 3, 2, 5, 6, 7, 50, 60]

    def test_a_file_that_is_gone_or_short_is_stale(self, path: Path) -> None:
        array = np.zeros((20, 2), np.int32)
        column = FileColumn(array, 3, str(path))
        os.truncate(path, 8)
        with pytest.raises(StaleFileError, match="short"):
            column.load(0, 2)
        column.close(synced=False)
        path.unlink()
        with pytest.raises(StaleFileError) as caught:
            FileColumn(array, 3, str(path))
        assert caught.value.errno == errno.ENOENT

    def test_the_windows_behind_a_writer_are_written_back(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        windows = []
        monkeypatch.setattr(csr_columns, "_WINDOW_BYTES", 64)
        monkeypatch.setattr(
            csr_columns, "finish_writeback", lambda _fd, *window: windows.append(window)
        )
        column = FileColumn(np.zeros((20, 2), np.int32), 3, str(path))
        for start in range(0, 20, 5):
            column.store(start, np.ones((5, 2), np.int32))
        column.scatter(0, np.ones((20, 2), np.int32))
        column.close(synced=False)
        assert windows == [(0, 80), (80, 80)]


class TestSizes:
    SHAPE = Shape(edges=10**9, num_rows=10**8, num_cols=10**8, column_bytes=4, item_bytes=(8, 16))

    @pytest.mark.parametrize("limit", [256 * MIB, 1 << 30, 8 << 30])
    def test_they_stay_within_the_limit(self, limit: int) -> None:
        sizes = sizes_within(self.SHAPE, limit)
        assert 0 < sizes.scratch_bytes <= limit
        assert sizes.chunk_edges is not None and sizes.chunk_edges >= 1 << 17
        assert sizes.bucket_edges <= sizes_in_memory(self.SHAPE).bucket_edges

    def test_in_memory_the_rows_numbers_come_on_top_of_the_outputs(self) -> None:
        plain = Shape(edges=10**9, num_rows=10**7, num_cols=10**7, column_bytes=4)
        total = plain.output_bytes + sizes_in_memory(plain).scratch_bytes
        assert total < 2.2 * 8 * 10**9
        assert plain.output_bytes == 8 * (10**7 + 1) + 4 * 10**9

    def test_memory_that_was_planned_for_one_output_is_not_promised_twice(self) -> None:
        rooms = csr_homes.Rooms(threshold_bytes=100, memory_bytes=150, shm_bytes=0)
        assert csr_homes._hold(rooms, (90,), 60)
        assert not csr_homes._hold(rooms, (90,), 61)
        assert not csr_homes._hold(rooms, (90, 90), 0)
