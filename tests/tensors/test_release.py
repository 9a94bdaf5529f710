from __future__ import annotations

import os
from pathlib import Path

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
