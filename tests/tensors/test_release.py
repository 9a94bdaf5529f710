from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

import overspill as ov
from capabilities import requires
from overspill.linux.mapping import map_file
from overspill.linux.pages import resident_bytes
from overspill.tensors.mapping import wrap_mapping

MIB = 1 << 20


@requires("mincore")
def test_the_whole_file_leaves_memory_and_the_tensor_stays_valid(spill_dir: Path) -> None:
    values = torch.randint(0, 100, (4 * MIB,), dtype=torch.int8)
    spilled = ov.spill_tensor_to_disk(values, required=True)
    spilled[0] = 101  # a dirty page, which cannot be dropped before it is written back
    assert resident_bytes(spilled.data_ptr(), 4 * MIB) == 4 * MIB
    result = ov.release_page_cache(spilled[100:200])
    assert result and result.completed
    assert result.resident_before_bytes == 4 * MIB
    assert result.resident_after_bytes == 0
    assert int(spilled[0]) == 101
    assert torch.equal(spilled[1:], values[1:])


def test_a_private_mapping_keeps_what_was_written_to_it(tmp_path: Path) -> None:
    path = tmp_path / "array"
    path.write_bytes(bytes(MIB))
    tensor = wrap_mapping(map_file(path, nbytes=MIB), dtype=torch.uint8, shape=(MIB,))
    tensor[5000] = 7
    assert ov.release_page_cache(tensor)
    assert int(tensor[5000]) == 7
    assert int(tensor.sum()) == 7


def test_memory_is_not_released_and_the_result_says_so() -> None:
    result = ov.release_page_cache(torch.ones(10))
    assert not result
    assert (result.failed_step, result.reason) == ("open", "the tensor is not disk-backed")


def test_another_file_under_the_name_is_left_alone(spill_dir: Path, tmp_path: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.ones(1000), required=True)
    path = Path(spilled.untyped_storage().filename)
    (tmp_path / "new").write_bytes(bytes(4000))
    (tmp_path / "new").replace(path)
    result = ov.release_page_cache(spilled)
    assert not result and "another file" in (result.reason or "")
    path.unlink()
    assert not ov.release_page_cache(spilled)
    assert int(spilled.sum()) == 1000


def test_available_memory_is_a_number_of_bytes_below_the_machines() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < ov.available_memory_bytes() < total


class TestByPath:
    @requires("mincore")
    def test_a_file_that_nothing_maps_leaves_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(os.urandom(MIB))
        result = ov.release_page_cache_by_path(path)
        assert result and result.resident_before_bytes == MIB
        assert result.resident_after_bytes == 0

    def test_refused_while_something_maps_it(self, spill_dir: Path, tmp_path: Path) -> None:
        spilled = ov.spill_tensor_to_disk(torch.ones(1000), required=True)
        path = spilled.untyped_storage().filename
        (tmp_path / "link").symlink_to(path)
        for name in (path, Path(path), tmp_path / "link"):
            result = ov.release_page_cache_by_path(name)
            assert not result and result.failed_step == "unmap"
            assert "release_page_cache" in (result.reason or "")
        del spilled
        assert ov.release_page_cache_by_path(path)

    def test_what_is_no_file_is_told(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none", tmp_path, Path("/dev/null")):
            result = ov.release_page_cache_by_path(path)
            assert isinstance(result.completed, bool)
        assert not ov.release_page_cache_by_path(tmp_path / "none")
        assert not ov.release_page_cache_by_path(tmp_path)

    def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        assert ov.release_page_cache_by_path(tmp_path / "empty")


class TestLiveMappings:
    def test_by_whatever_means_and_also_after_unlink(self, tmp_path: Path) -> None:
        path = tmp_path / "a file\nof two lines"
        path.write_bytes(bytes(8192))
        assert not ov.has_live_mapping(path)
        for make in (
            lambda: np.memmap(path, dtype=np.uint8),
            lambda: torch.from_file(str(path), shared=True, size=8192, dtype=torch.uint8),
            lambda: map_file(path, nbytes=8192),
        ):
            held = make()
            assert ov.has_live_mapping(path) and ov.has_live_mapping(str(path))
            del held
            assert not ov.has_live_mapping(path)
        held = np.memmap(path, dtype=np.uint8)
        path.unlink()
        assert ov.has_live_mapping(path)
        path.write_bytes(bytes(8192))  # another file, which nothing maps
        assert not ov.has_live_mapping(path)
        path.unlink()
        del held
        assert not ov.has_live_mapping(path)

    def test_a_spilled_tensor_until_its_last_view_goes(self, spill_dir: Path) -> None:
        spilled = ov.spill_tensor_to_disk(torch.ones(1000), required=True)
        path = spilled.untyped_storage().filename
        view = spilled[5:]
        del spilled
        assert ov.has_live_mapping(path)
        del view
        assert not ov.has_live_mapping(path)

    def test_no_such_file(self, tmp_path: Path) -> None:
        assert not ov.has_live_mapping(tmp_path / "none")
