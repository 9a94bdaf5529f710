from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

import pytest
import torch

import overspill as ov
from overspill.errors import (
    DiskRefusedError,
    FormatError,
    InputError,
    MappingError,
    SettingsError,
    SpillDirError,
    StaleFileError,
    UnsupportedTensorError,
)
from overspill.storage.workspace import leave_runs
from overspill.tensors import headroom
from overspill.tensors.dtypes import MAPPABLE_DTYPES
from overspill.tensors.layouts import bytes_of
from spilling import open_descriptors, spill_files


def random_bytes(dtype: torch.dtype, count: int) -> torch.Tensor:
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    if dtype is torch.bool:
        raw %= 2
    return torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 0, (count,), (1,))


@pytest.mark.parametrize("dtype", MAPPABLE_DTYPES, ids=str)
def test_every_mappable_dtype_keeps_its_bits(dtype: torch.dtype, spill_dir: Path) -> None:
    source = random_bytes(dtype, 60)
    spilled = ov.spill_tensor_to_disk(source, required=True)
    assert (spilled.dtype, spilled.shape) == (dtype, source.shape)
    assert torch.equal(bytes_of(spilled), bytes_of(source))
    strided = ov.spill_tensor_to_disk(source[::3], required=True)
    raw = bytes_of(source).view(60, -1)[::3].reshape(-1)
    assert torch.equal(bytes_of(strided), raw)
    loaded = ov.load_spilled_tensor(spilled.untyped_storage().filename, dtype, source.shape)
    assert torch.equal(bytes_of(loaded), bytes_of(source))


@pytest.mark.parametrize(
    "source",
    [
        torch.tensor(7),
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.arange(5).expand(3, 5),
        torch.randn(4, 4, dtype=torch.complex64).conj(),
        torch.randn(4, 4, dtype=torch.complex64).conj().imag,
        torch.nn.Parameter(torch.randn(3, 3)),
        torch.randn(3, 3, requires_grad=True) * 2,
        torch.empty_strided((2, 3), (7, 1)).fill_(4),
    ],
    ids=["0-d", "permuted", "expanded", "conj", "neg", "parameter", "non-leaf", "gaps"],
)
def test_any_strided_source_becomes_contiguous_detached_values(
    source: torch.Tensor, spill_dir: Path
) -> None:
    spilled = ov.spill_tensor_to_disk(source, required=True)
    assert type(spilled) is torch.Tensor
    assert torch.equal(spilled, source.detach())
    assert spilled.is_contiguous() and not spilled.requires_grad
    assert not spilled.is_conj() and not spilled.is_neg()
    assert ov.is_disk_backed(spilled) and ov.is_disk_backed(spilled.unsqueeze(0)[0])
    (path,) = spill_files(spill_dir)
    assert spilled.untyped_storage().filename == str(path)
    assert path.stat().st_size == spilled.numel() * spilled.element_size()


def test_files_are_private_and_wholly_reserved(spill_dir: Path) -> None:
    before = os.umask(0o277)
    try:
        tensor = ov.allocate_disk_backed((1 << 20,), torch.float32, required=True)
    finally:
        os.umask(before)
    (path,) = spill_files(spill_dir)
    held = path.stat()
    assert stat.S_IMODE(held.st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert held.st_blocks * 512 >= tensor.numel() * 4 == held.st_size


def test_an_allocated_tensor_writes_through_to_its_file(spill_dir: Path) -> None:
    tensor = ov.allocate_disk_backed((3, 5), torch.int32, required=True)
    tensor.copy_(torch.arange(15).view(3, 5))
    (path,) = spill_files(spill_dir)
    assert path.read_bytes() == bytes_of(torch.arange(15, dtype=torch.int32)).numpy().tobytes()


def test_a_disk_backed_tensor_is_not_copied_again(spill_dir: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.arange(100), required=True)
    view = spilled[3:5]
    with ov.settings(min_bytes="1GiB"):  # tested before the threshold
        assert ov.spill_tensor_to_disk(spilled) is spilled
        assert ov.spill_tensor_to_disk(view, required=True) is view
    assert len(spill_files(spill_dir)) == 1


SPARSE = torch.eye(3).to_sparse()
NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.empty(0, 5), "no bytes"),
        (SPARSE, "sparse"),
        (torch.empty(5, device="meta"), "meta"),
        (torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "quantized"),
        (NESTED, "on cpu"),
        (torch.ones(2), "below the spill threshold"),
    ],
    ids=["empty", "sparse", "meta", "quantized", "nested", "small"],
)
def test_what_cannot_or_need_not_go_to_disk_gives_none_and_raises_when_required(
    tensor: torch.Tensor, told: str, spill_dir: Path
) -> None:
    with ov.settings(min_bytes=9):
        assert ov.spill_tensor_to_disk(tensor) is None
        with pytest.raises(UnsupportedTensorError, match=told):
            ov.spill_tensor_to_disk(tensor, required=True)
    assert not spill_dir.exists()


def test_off_nothing_is_spilled_and_the_rest_works(tmp_path: Path, no_spill_dir: None) -> None:
    assert not ov.is_tensor_spilling_enabled()
    assert ov.prepare_spill_dir() is None
    assert ov.spill_tensor_to_disk(torch.ones(10)) is None
    assert ov.allocate_disk_backed((10,), torch.float32) is None
    with pytest.raises(SpillDirError, match="OVERSPILL_DIR"):
        ov.spill_tensor_to_disk(torch.ones(10), required=True)
    with pytest.raises(SpillDirError, match="OVERSPILL_DIR"):
        ov.allocate_disk_backed((10,), torch.float32, required=True)
    path = tmp_path / "raw"
    path.write_bytes(bytes(40))
    loaded = ov.load_spilled_tensor(path, torch.float32, (10,))
    assert ov.is_disk_backed(loaded)
    assert ov.spill_tensor_to_disk(loaded) is loaded


def test_the_setting_is_read_at_each_use(tmp_path: Path, no_spill_dir: None) -> None:
    assert not ov.is_tensor_spilling_enabled()
    with ov.settings(spill_dir=tmp_path / "late", min_bytes=1):
        assert ov.is_tensor_spilling_enabled()
        assert ov.spill_tensor_to_disk(torch.ones(3)) is not None
        leave_runs()
    assert not ov.is_tensor_spilling_enabled()


def test_the_default_threshold_follows_the_headroom(
    spill_dir: Path, empty_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headroom, "available_memory_bytes", lambda: 16 * 4000)
    with ov.settings(min_bytes=None):
        assert ov.spill_tensor_to_disk(torch.ones(999)) is None
        assert ov.spill_tensor_to_disk(torch.ones(1000)) is not None
    with ov.settings(min_bytes=None, memory_limit_bytes=16 * 400):
        assert ov.spill_tensor_to_disk(torch.ones(100)) is not None


def test_an_unparsable_threshold_is_an_error_that_names_the_variable(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERSPILL_MIN_BYTES", "many")
    with pytest.raises(SettingsError, match="OVERSPILL_MIN_BYTES"):
        ov.spill_tensor_to_disk(torch.ones(10))


@pytest.mark.parametrize("shape", [(-1,), (3, -2), "ab", (1.5,), None, (2**40, 2**40)])
def test_a_shape_that_cannot_be_is_refused(shape: object, spill_dir: Path) -> None:
    with pytest.raises(InputError):
        ov.allocate_disk_backed(shape, torch.float32)  # type: ignore[arg-type]


def test_what_is_no_tensor_or_dtype_is_refused(spill_dir: Path) -> None:
    with pytest.raises(UnsupportedTensorError, match="not a tensor"):
        ov.spill_tensor_to_disk([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedTensorError, match="not a torch dtype"):
        ov.allocate_disk_backed((2,), "float32")  # type: ignore[arg-type]
    assert ov.allocate_disk_backed((2,), torch.qint8) is None


@pytest.mark.parametrize("shape", [5, (5,), [5], torch.Size([5]), (torch.tensor(5),)])
def test_shapes_as_torch_takes_them(shape: object, spill_dir: Path) -> None:
    tensor = ov.allocate_disk_backed(shape, torch.int8, required=True)  # type: ignore[arg-type]
    assert tensor.shape == (5,)


def test_thousands_of_times_the_disk_is_refused_before_anything_is_mapped(
    spill_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="overspill"):
        assert ov.allocate_disk_backed((1 << 50,), torch.float32) is None
    assert "could not place" in caplog.text
    with pytest.raises(DiskRefusedError) as caught:
        ov.allocate_disk_backed((1 << 50,), torch.float32, required=True)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.needed_bytes == 1 << 52
    assert caught.value.available_bytes is not None and caught.value.remedy
    assert spill_files(spill_dir) == []


def test_the_disk_limit_counts_the_whole_run(spill_dir: Path) -> None:
    with ov.settings(disk_limit_bytes=1000):
        assert ov.allocate_disk_backed((600,), torch.uint8) is not None
        with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT") as caught:
            ov.allocate_disk_backed((401,), torch.uint8, required=True)
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (401, 400)
        assert ov.allocate_disk_backed((400,), torch.uint8) is not None
    assert len(spill_files(spill_dir)) == 2


class TestLoading:
    def test_two_loads_share_one_mapping(self, tmp_path: Path, no_spill_dir: None) -> None:
        path = tmp_path / "raw"
        path.write_bytes(bytes(range(40)))
        one = ov.load_spilled_tensor(path, torch.uint8, (40,))
        other = ov.load_spilled_tensor(str(path), torch.int16, (4, 5))
        assert one.data_ptr() == other.data_ptr()
        one[0] = 99
        assert path.read_bytes()[0] == 99

    @pytest.mark.parametrize("nbytes", [0, 39, 41, 80])
    def test_a_size_that_is_not_exactly_right(
        self, nbytes: int, tmp_path: Path, no_spill_dir: None
    ) -> None:
        path = tmp_path / "raw"
        path.write_bytes(b"\1" * nbytes)
        with pytest.raises(ValueError, match=r"exactly 40") as caught:
            ov.load_spilled_tensor(path, torch.float32, (10,))
        assert isinstance(caught.value, FormatError)
        assert path.read_bytes() == b"\1" * nbytes  # torch would have grown it and zeroed a byte

    def test_a_missing_file_is_an_oserror_and_is_not_created(
        self, tmp_path: Path, no_spill_dir: None
    ) -> None:
        with pytest.raises(OSError) as caught:
            ov.load_spilled_tensor(tmp_path / "none", torch.float32, (10,))
        assert isinstance(caught.value, StaleFileError)
        assert caught.value.errno == errno.ENOENT
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_is_an_oserror(self, tmp_path: Path, no_spill_dir: None) -> None:
        with pytest.raises(MappingError) as caught:
            size = tmp_path.stat().st_size
            ov.load_spilled_tensor(tmp_path, torch.uint8, (size,))
        assert caught.value.errno == errno.EISDIR

    def test_an_empty_file_is_an_empty_tensor(self, tmp_path: Path, no_spill_dir: None) -> None:
        path = tmp_path / "raw"
        path.touch()
        assert ov.load_spilled_tensor(path, torch.float32, (0, 3)).shape == (0, 3)

    @pytest.mark.parametrize("shape", [(-1,), (3, -2), (1.5,), "ab", (2**40, 2**40)])
    def test_a_shape_that_cannot_be_is_refused_before_the_file_is_looked_at(
        self, shape: object, tmp_path: Path, no_spill_dir: None
    ) -> None:
        with pytest.raises(InputError):
            ov.load_spilled_tensor(tmp_path / "none", torch.float32, shape)  # type: ignore[arg-type]

    def test_quantized_dtypes_are_refused(self, tmp_path: Path, no_spill_dir: None) -> None:
        with pytest.raises(UnsupportedTensorError):
            ov.load_spilled_tensor(tmp_path / "raw", torch.qint8, (1,))


def test_no_descriptor_is_kept_for_a_tensor(spill_dir: Path) -> None:
    ov.prepare_spill_dir()
    before = open_descriptors()
    kept = [ov.spill_tensor_to_disk(torch.arange(10) + n, required=True) for n in range(200)]
    assert open_descriptors() == before
    assert all(int(tensor[0]) == n for n, tensor in enumerate(kept))


def test_big_tensors_are_written_behind_and_small_ones_stay_cached(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = torch.arange(5 << 18, dtype=torch.int64)  # 10 MiB: more than one window
    for available in (1 << 20, 1 << 40):
        monkeypatch.setattr(headroom, "available_memory_bytes", lambda n=available: n)
        spilled = ov.spill_tensor_to_disk(source.view(-1, 4).t(), required=True)
        assert torch.equal(spilled, source.view(-1, 4).t())
