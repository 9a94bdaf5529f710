from __future__ import annotations

from pathlib import Path

import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import UnsupportedTensorError
from overspill.linux.mapping import map_file
from overspill.linux.pages import PAGE_BYTES
from overspill.tensors.mapping import wrap_mapping
from overspill.tensors.resident import Residency

PAGES = 64


@pytest.fixture
def cold(spill_dir: Path) -> torch.Tensor:
    """A spilled tensor, one row a page, of which nothing is in memory."""
    source = torch.arange(PAGES * PAGE_BYTES, dtype=torch.int32)[: PAGES * PAGE_BYTES // 4]
    tensor = ov.spill_tensor_to_disk(source.view(PAGES, -1), required=True)
    result = ov.release_page_cache(tensor)
    assert result and result.resident_after_bytes == 0
    return tensor


@requires("mincore")
class TestResidency:
    def test_it_counts_what_is_there(self, cold: torch.Tensor) -> None:
        assert ov.residency(cold) == Residency(0, PAGES * PAGE_BYTES)
        cold.sum()
        assert ov.residency(cold) == Residency(PAGES * PAGE_BYTES, PAGES * PAGE_BYTES)

    def test_a_view_is_asked_for_its_own_span(self, cold: torch.Tensor) -> None:
        cold.sum()
        row = PAGE_BYTES
        assert ov.residency(cold[3:5]).total_bytes == 2 * row
        assert ov.residency(cold[::2]).total_bytes == (PAGES - 1) * row
        assert ov.residency(cold[:, 0]).total_bytes == (PAGES - 1) * row + 4
        assert ov.residency(cold[5, 7]) == Residency(4, 4)
        assert ov.residency(cold.t()).total_bytes == PAGES * row
        assert ov.residency(cold[:1].expand(1, row // 4)).total_bytes == row
        assert ov.residency(cold[:0]) == Residency(0, 0)

    def test_private_mappings(self, tmp_path: Path) -> None:
        path = tmp_path / "array"
        path.write_bytes(bytes(4 * PAGE_BYTES))
        tensor = wrap_mapping(
            map_file(path, nbytes=4 * PAGE_BYTES),
            dtype=torch.uint8,
            shape=(3 * PAGE_BYTES,),
            payload_offset=PAGE_BYTES,
        )
        assert ov.residency(tensor) == Residency(3 * PAGE_BYTES, 3 * PAGE_BYTES)


@pytest.mark.parametrize("held", [torch.ones(3), torch.empty(0), "text", None])
def test_what_is_not_disk_backed_has_none(held: object) -> None:
    with pytest.raises(UnsupportedTensorError, match="disk-backed"):
        ov.residency(held)  # type: ignore[arg-type]


def test_one_line_for_people() -> None:
    assert str(Residency(1 << 20, 4 << 20)) == "1.0 MiB of 4.0 MiB in memory (25%)"
    assert Residency(0, 0).share == 1.0


@requires("mincore")
class TestQuestionsFaultInNoPage:
    """What is asked about a tensor must not bring it into memory."""

    def test_of_the_tensor_itself(self, cold: torch.Tensor) -> None:
        view = cold[3:, ::2].t()
        for tensor in (cold, view):
            assert ov.is_disk_backed(tensor)
            assert tensor.shape and tensor.stride() and tensor.dtype and len(tensor)
            assert tensor.numel() and tensor.element_size() and tensor.dim() == 2
            assert tensor.is_contiguous() is (tensor is cold)
            assert tensor.data_ptr() and tensor.untyped_storage().filename
            handle = ov.handle(tensor)
            assert repr(handle) and str(handle) and hash(repr(handle))
            residency = ov.residency(tensor)
            assert repr(residency) and str(residency)
            assert ov.has_live_mapping(tensor.untyped_storage().filename)
            assert ov.spill_tensor_to_disk(tensor) is tensor
            ov.share_memory(tensor)
            tensor.share_memory_()
        assert ov.residency(cold).resident_bytes == 0

    def test_of_handles_opened_again(self, cold: torch.Tensor) -> None:
        opened = ov.handle(cold[5:]).open()
        filename = cold.untyped_storage().filename
        loaded = ov.load_spilled_tensor(filename, torch.int32, (PAGES * PAGE_BYTES // 4,))
        assert opened.shape == (PAGES - 5, PAGE_BYTES // 4) and loaded.dim() == 1
        assert ov.residency(cold).resident_bytes == 0

    def test_of_reports_and_plans(self, cold: torch.Tensor) -> None:
        report = ov.memory_report()
        assert repr(report) and str(report)
        plan = ov.plan_placement(cold.shape, cold.dtype)
        assert repr(plan)
        with ov.spill_scope() as scope:
            assert repr(scope)
        assert ov.residency(cold).resident_bytes == 0

    def test_of_a_partition_book(self, spill_dir: Path) -> None:
        table = ov.allocate_disk_backed(PAGES * PAGE_BYTES, torch.uint8, required=True).zero_()
        book = ov.TensorPartitionBook(table)
        ov.release_page_cache(table)
        assert repr(book) and book.num_ids == PAGES * PAGE_BYTES
        book.__reduce__()
        ov.share_memory({"book": book})
        assert ov.residency(table).resident_bytes == 0

    def test_one_page_that_is_read_is_seen(self, cold: torch.Tensor) -> None:
        """So that the tests above could fail."""
        assert int(cold[PAGES // 2, 0]) == PAGES // 2 * PAGE_BYTES // 4
        assert ov.residency(cold).resident_bytes > 0

    def test_discarding_reads_nothing(self, cold: torch.Tensor) -> None:
        assert ov.discard(cold)
        assert ov.residency(cold).resident_bytes == 0
